"""Fuzz every reader of untrusted files: a damaged file must be read, or refused with a one-line error.

python tools/fuzz.py --cases 100000
python tools/fuzz.py --only network --seed 3 --first 1234 --cases 1     # repeat one case

Target, seed and number determine a case. Each target runs in its own process, which detects crashes, hangs and more
than a gigabyte of memory.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import multiprocessing
import os
import resource
import shutil
import struct
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tespec.core.compat  # noqa: F401  # before mmengine

import h5py
import hdf5plugin
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tespec.core import config
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.core.settings import HistogramSpec
from tespec.datasets.images import held_out_batch, open_images
from tespec.events import event_histogram, open_events, packing
from tespec.events.opening import open_reader
from tespec.events.readers.dat import write_dat
from tespec.inference import load_trained
from tespec.models import EventSwin
from tespec.runs.data import Data, settings_of
from tespec.sample import DATASETS, make_world
from tespec.tasks import base, find_task, import_tasks
from tespec.training import checkpoint
from tespec.weights import files, load

SECONDS = 20  # time limit of a case
MEMORY = 1 << 30  # bytes; limit of a target's memory in addition to its needs at the start
SHOWN = 5  # failures printed per target
ROOM = Path("/dev/shm")  # in memory if available, because hundreds of thousands of files are written
DATA = REPOSITORY / "tests" / "data"
Rng = np.random.Generator

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, -1e308, "", "x" * 5000, "../../../etc/passwd", "/etc/passwd", "\x00", "NaN",
    [], {}, {"": None}, [None] * 50, "<script>alert(1)</script>", "1e999", math.nan, math.inf, [[[[[[[[[[]]]]]]]]]],
)  # fmt: skip
LENGTHS = (0, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def pick(rng: Rng, values: Any) -> Any:
    return values[rng.integers(len(values))]


def damage(path: Path, rng: Rng) -> None:
    """Truncate the file, change or insert bytes, or overwrite some with a large length."""
    data, kind = bytearray(path.read_bytes()), rng.integers(0, 8)
    place = int(rng.integers(0, max(1, len(data) - 8)))
    if kind == 0:
        del data[place:]
    elif kind == 1:
        data[place:place] = rng.bytes(int(rng.integers(1, 40)))
    elif kind == 2:
        data[place : place + 8] = struct.pack("<Q", pick(rng, LENGTHS))
    else:
        for place in rng.integers(0, max(1, len(data)), rng.integers(1, 6)):
            data[place : place + 1] = rng.bytes(1)
    path.write_bytes(bytes(data))


def changed(value: Any, rng: Rng) -> Any:
    """Copy of `value` with a random part replaced, removed or duplicated."""
    parts = dict(value if isinstance(value, dict) else enumerate(value)) if isinstance(value, dict | list) else {}
    if parts and rng.random() < 0.85:
        key, kind = pick(rng, list(parts)), rng.random()
        if kind < 0.12:
            del parts[key]
        elif kind < 0.17:
            parts[str(pick(rng, HOSTILE))[:50]] = parts[key]
        else:
            parts[key] = changed(parts[key], rng)
        return parts if isinstance(value, dict) else list(parts.values())
    if type(value) in (int, float) and rng.random() < 0.3:
        return pick(rng, [-value, value * 10**9, str(value)])
    return pick(rng, HOSTILE)


def damage_text(path: Path, rng: Rng) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(int(rng.integers(1, 4))):
        content = changed(content, rng)
    path.write_text(json.dumps(content), encoding="utf-8", errors="replace")


KINDS: tuple[Any, ...] = ("<u2", "u1", "<i8", "<f4", "?", "S7", "V3", h5py.string_dtype(), h5py.ref_dtype,
                          h5py.vlen_dtype(np.int32), np.dtype([("a", "<i4")]), np.dtype(("<f8", (1000,))))  # fmt: skip
SHAPES = ((), (0,), (1,), (60,), (61,), (60, 4), (10**9,), (2**62,), (10**9, 9, 9))
FILTERS: tuple[dict[str, Any], ...] = ({}, {"scaleoffset": 3}, {"fletcher32": True}, {"compression": "gzip"}, *(
    dict(each()) for each in (hdf5plugin.Zstd, hdf5plugin.LZ4, hdf5plugin.Blosc, hdf5plugin.Bitshuffle)
))  # fmt: skip


def damage_hdf5(path: Path, rng: Rng) -> None:
    """Overwrite bytes of a chunk of a dataset, or replace it by a link, a group or another dataset."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
        name, kind = pick(rng, names), rng.integers(7)
        if kind < 3 and file[name].chunks:
            place = (0,) * file[name].ndim
            content = bytearray(file[name].id.read_direct_chunk(place)[1])
            content[rng.integers(len(content)) :] = rng.bytes(int(rng.integers(0, 3000)))
            file[name].id.write_direct_chunk(place, bytes(content), filter_mask=int(rng.integers(0, 4)))
            return
        del file[name]
        if kind < 5:
            file[name] = pick(rng, [h5py.SoftLink(names[0]), h5py.ExternalLink(str(path.parent / "other.h5"), "/a")])
        elif kind == 5:
            file.create_group(name)
        else:
            shape = pick(rng, SHAPES)
            chunks = {"chunks": tuple(min(side, 64) for side in shape)} | pick(rng, FILTERS)
            with suppress(OSError, ValueError, TypeError, RuntimeError, OverflowError):  # some combinations are invalid
                file.create_dataset(name, shape, pick(rng, KINDS), **(chunks if shape and all(shape) else {}))


DTYPES = (torch.float16, torch.float64, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)


def damage_tensors(path: Path, rng: Rng) -> None:
    """Change name, shape or dtype of a tensor, and change or drop the recipe."""
    with safe_open(path, framework="pt") as file:
        recipe = json.loads(file.metadata()["tespec"])
    tensors = load_file(path)
    name = pick(rng, sorted(tensors))
    tensor = tensors.pop(name)
    name, tensor = pick(rng, [
        (str(pick(rng, HOSTILE))[:40] + name, tensor),
        (name, tensor.reshape([1] * int(rng.integers(0, 5)) + [-1])),
        (name, tensor.to(pick(rng, DTYPES))),
        (name, tensor.flatten()[:0]),
        (name, tensor),
    ])  # fmt: skip
    tensors[name] = tensor.contiguous()
    text = json.dumps(changed(recipe, rng) if rng.random() < 0.5 else recipe).encode("utf-8", "replace").decode()
    save_file(tensors, path, metadata={"tespec": text} if rng.random() < 0.9 else None)


CONTENTS: dict[str, Callable[[Path, Rng], None]] = {
    ".json": damage_text, ".h5": damage_hdf5, ".hdf5": damage_hdf5, ".safetensors": damage_tensors,
}  # fmt: skip


def harm(path: Path, rng: Rng) -> None:
    """Damage a file, or one of a folder: its structured content, if it has any, or its bytes."""
    victim = path if path.is_file() else pick(rng, sorted(each for each in path.rglob("*") if each.is_file()))
    content = victim.read_bytes()
    victim.unlink()  # a hard link to the intact file
    victim.write_bytes(content)
    (CONTENTS.get(victim.suffix, damage) if rng.random() < 0.6 else damage)(victim, rng)


NAMELESS = (".npz", ".npy", ".csv", ".txt", ".bin")  # formats that do not name the sensor's size
EVENTS = [np.sort(np.random.default_rng(0).integers(0, end, 60)) for end in (346, 260, 150_000, 2)]


def write_evt2(path: Path) -> None:
    rows = zip(*(column.tolist() for column in EVENTS), strict=True)
    words = [word for x, y, t, p in rows for word in (8 << 28 | t >> 6, p << 28 | (t & 63) << 22 | x << 11 | y)]
    path.write_bytes(b"% evt 2.0\n% geometry 640x480\n% end\n" + np.array(words, "<u4").tobytes())


def write_bin(path: Path) -> None:
    x, y, t, p = EVENTS
    np.stack([x % 256, y % 240, p << 7 | t >> 16, t >> 8 & 255, t & 255], axis=1).astype("u1").tofile(path)


def write_rpg(path: Path) -> None:
    x, y, t, p = EVENTS
    np.savetxt(path, np.stack([t / 1e6, x, y, p], axis=1), "%.6f %d %d %d")


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, column in zip("xytp", EVENTS, strict=True):
            file.create_dataset(f"events/{name}", data=column, chunks=True, **hdf5plugin.Zstd())
        file["t_offset"] = 0


def write_store(path: Path) -> None:
    write_dat(path.with_name("a.dat"), *EVENTS, 260, 346)
    packing.pack(open_reader(path.with_name("a.dat")), path)


def read_events(path: Path) -> None:
    """Read events and check the guarantees of every recording."""
    stream = open_events(path, (260, 346) if path.suffix in NAMELESS else None)
    for t0, t1 in [(stream.t_first, stream.t_last + 1), (stream.t_first, stream.t_first + 40_000), (60_000, 61_500)]:
        events = stream.slice(t0, t1)
        assert (np.diff(events.t) >= 0).all()
        if len(events.t):
            assert t0 <= events.t[0] <= events.t[-1] < t1
            assert all(found.max() < end for found, end in zip(events[:2], (stream.width, stream.height), strict=True))
            assert events.p.max() <= 1
        if max(stream.height, stream.width) < 2_000:
            event_histogram(*events, t_start=t0, t_end=t1, bins=2, height=stream.height, width=stream.width)
    assert len(stream.slice(stream.t_first, stream.t_last + 1).t) == stream.count


def read_dataset(task: str, root: Path) -> None:
    """Read the labels of the test recordings, and the events of some windows."""
    settings = settings_of(Data(root, "sample"), task, "recurrent")
    for recording in base.open_dataset(settings, root).recordings("test"):
        assert recording.histograms(0, 3, settings.binning).max() <= 10
        assert all(recording.labels[index] is not None for index in range(len(recording.labels)))


def read_images(root: Path) -> None:
    images = open_images(root)
    paths = [*images.train, *images.held_out]
    held_out_batch(images, paths, [lambda image: torch.from_numpy(np.array(image.resize((16, 16))))])


def network_weights() -> dict[str, torch.Tensor]:
    return EventSwin("micro", recurrent=False, bins=1, img_size=(32, 32)).state_dict()


def write_backbone(path: Path) -> None:
    recipe = {"bins": 1, "in_channels": 2, "sensor": [32, 32], "width": "micro", "recurrent": False}
    files.write_weights(path, network_weights(), recipe)


def read_backbone(path: Path) -> None:
    load.inspect(path)
    load.read_backbone(path)


def write_network(path: Path) -> None:
    settings = config.finetuning_settings("gen1", "feedforward", "tiny")
    network = find_task(settings).network(settings, base.fresh_backbone(settings, (32, 32)))
    recipe = config.as_facts(settings) | {load.HISTOGRAMS: asdict(HistogramSpec.of(settings, (32, 32), 50.0))}
    files.write_weights(path, network.state_dict(), recipe)


def write_run(folder: Path) -> None:
    state = {"step": 3, "model": {"weight": torch.ones(4, 5)}, "state": (torch.ones(3), None)}
    checkpoint.save_checkpoint(folder, 3, {"run": "a", "trainer": state, "curve": {"curve": [{"step": 1.0}]}})


def read_run(run: Path) -> None:
    path, damaged = checkpoint.newest_whole(run)
    if path is None:
        raise UserError(run, f"{damaged} damaged", "resume from another one")
    checkpoint.read_checkpoint(path, "a")


OTHERS = ("train", "val", "imgs", "dir[013]", "outdoor_day[23]*")  # recordings outside the test split


class Target(NamedTuple):
    """Intact file or folder with its writer and reader; without a writer it is copied from the sample world."""

    name: str
    write: Callable[[Path], Any] | None
    read: Callable[[Path], Any] = read_events
    weight: float = 1.0


TARGETS: dict[str, Target] = {
    "dat": Target("a.dat", lambda path: write_dat(path, *EVENTS, 260, 346)),
    "evt2": Target("a.raw", write_evt2),
    "evt3": Target("a.raw", lambda path: path.write_bytes((DATA / "evt3_640x480_2.08s.raw").read_bytes()[:5000])),
    "aedat4": Target("a.aedat4", partial(shutil.copyfile, DATA / "davis.aedat4")),
    "npz": Target("a.npz", lambda path: np.savez_compressed(path, **dict(zip("xytp", EVENTS, strict=True)))),
    "npy": Target("a.npy", lambda path: np.save(path, np.rec.fromarrays(EVENTS, names="x,y,t,p"))),
    "csv": Target("a.csv", lambda path: np.savetxt(path, np.stack(EVENTS, axis=1), "%d", ",", header="x,y,t,p")),
    "txt": Target("a.txt", write_rpg),
    "bin": Target("a.bin", write_bin),
    "hdf5": Target("a.h5", write_hdf5),
    "store": Target("a", write_store),
    **{name: Target(name, None, partial(read_dataset, name), 0.1) for name in DATASETS if name != "objects"},
    "images": Target("objects", None, read_images, 0.1),
    "backbone": Target("a.safetensors", write_backbone, read_backbone, 0.1),
    "network": Target("a.safetensors", write_network, load_trained, 0.1),
    "pth": Target("a.pth", lambda path: torch.save({"state_dict": network_weights()}, path), files.read_weights),
    "checkpoint": Target("run", write_run, read_run),
}


def run(name: str, first: int, cases: int, seed: int, world: Path) -> Counter[str]:
    """Run cases of one target in this process; return counts by outcome, failures with the prefix "failed: "."""
    target, counts = TARGETS[name], Counter[str]()
    warnings.simplefilter("ignore")  # libraries warn when they are imported
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-", dir=ROOM if ROOM.is_dir() else None) as place:
        root, sound = Path(place), Path(place) / "sound" / target.name
        sound.parent.mkdir()
        if target.write:
            target.write(sound)
        else:
            others = shutil.ignore_patterns(*(["street0[01]_000[1-9]*"] if name == "images" else OTHERS))
            shutil.copytree(world / target.name, sound, ignore=others)
        target.read(sound)
        warnings.simplefilter("error")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(first, first + cases):
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                rng, path = np.random.default_rng([seed, number, *name.encode()]), root / "case" / target.name
                path.parent.mkdir()
                shutil.copytree(sound, path, copy_function=os.link) if sound.is_dir() else os.link(sound, path)
                harm(path, rng)
                target.read(path)
                counts["accepted"] += 1
            except UserError:
                counts["refused"] += 1
            except (Exception, SystemExit):
                counts[f"failed: case {number}: {' '.join(traceback.format_exc().splitlines()[-3:])[:500]}"] += 1
            shutil.rmtree(root / "case")
        faulthandler.cancel_dump_traceback_later()
        if strays := {path.name for path in root.iterdir()} - {"sound", "case", "cache"}:
            counts[f"failed: written outside of the folder: {strays}"] += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > MEMORY:
        counts[f"failed: used {grown / 1e9:.2f} GB of memory"] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="number of cases in all, or of --only")
    parser.add_argument("--only", choices=TARGETS, help="fuzz this target only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    world = make_world("tiny", processes=1, datasets=DATASETS)
    names = [options.only] if options.only else list(TARGETS)
    whole, failed = sum(TARGETS[name].weight for name in names), False
    for name in names:
        share = math.ceil(options.cases * TARGETS[name].weight / whole)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                counts = pool.submit(run, name, options.first, share, options.seed, world).result()
            except BrokenProcessPool:
                counts = Counter({"failed: the process ended, see above": 1})
        print(f"{name}: {counts['refused']} refused, {counts['accepted']} accepted", flush=True)
        failures = [each for each in counts if each.startswith("failed: ")]
        for each in failures[:SHOWN]:
            print(f"  {each}\n    python tools/fuzz.py --only {name} --seed {options.seed} --first N --cases 1")
        failed |= bool(failures)
    return int(failed)


import_tasks()

if __name__ == "__main__":
    sys.exit(main())
