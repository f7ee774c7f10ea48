"""Fuzz every reader of untrusted files: a damaged file is read, or refused with a one-line error.

python tools/fuzz.py --cases 100000
python tools/fuzz.py --only network --seed 3 --first 1234 --cases 1     # repeat one case

Target, seed and number determine a case. Cases run in forked processes: a crash, an exception other
than a `UserError`, more than 20 seconds of CPU time or more than a gigabyte of memory is a failure
of one case, after which the next runs.
"""

from __future__ import annotations

import faulthandler
import io
import json
import math
import multiprocessing
import os
import re
import resource
import shutil
import signal
import stat
import struct
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import tespec.core.compat  # noqa: F401  # before mmengine

import cyclopts
import h5py
import hdf5plugin
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tespec.core import config
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.core.settings import HistogramSpec, Size
from tespec.datasets.images import held_out_batch, open_images
from tespec.events import event_histogram, open_events, packing
from tespec.events.opening import open_reader
from tespec.inference import load_trained
from tespec.models import EventSwin
from tespec.runs.data import Data, settings_of
from tespec.sample import DATASETS, make_world
from tespec.tasks import base, find_task, import_tasks
from tespec.training import checkpoint
from tespec.weights import files, load

sys.path.insert(0, str(REPOSITORY / "tests"))
from event_seeds import SEEDS, Seed
from twins import rvt_archive

SECONDS = 20  # of CPU time that a case may use
PATIENCE = 60  # seconds that it may take for each of CPU time, on a busy machine
MEMORY = 1 << 30  # bytes that a case may use
ADDRESSES = 4 * MEMORY  # bytes that a case may allocate without using them
SHOWN = 5  # failures printed per target
GOOD = ("refused", "accepted")  # outcomes of a case
LOG = "outcomes.txt"
# in memory if available, because hundreds of thousands of files are written
SHARED_MEMORY = Path("/dev/shm")
Rng = np.random.Generator

HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**63, 10**400, -1e308, math.nan, math.inf),
    *("", "x" * 5000, "../../../etc/passwd", "/etc/passwd", "\x00", "NaN", "1e999"),
    *("<script>alert(1)</script>", [], {}, {"": None}, [None] * 50, [[[[[[[[[[]]]]]]]]]]),
)


def _pick(rng: Rng, values: Any) -> Any:
    return values[rng.integers(len(values))]


# Each function below damages the file at a path.


LENGTHS = (0, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def _damage_bytes(path: Path, rng: Rng) -> None:
    """Truncate the file, change or insert bytes, or overwrite some with a large length."""
    data = bytearray(path.read_bytes())
    kind = rng.integers(0, 8)
    position = int(rng.integers(0, max(1, len(data) - 8)))
    if kind == 0:
        del data[position:]
    elif kind == 1:
        data[position:position] = rng.bytes(int(rng.integers(1, 40)))
    elif kind == 2:
        data[position : position + 8] = struct.pack("<Q", _pick(rng, LENGTHS))
    else:
        for position in rng.integers(0, max(1, len(data)), rng.integers(1, 6)):
            data[position : position + 1] = rng.bytes(1)
    path.write_bytes(bytes(data))


def _changed(value: Any, rng: Rng) -> Any:
    """Copy of `value` with a random part replaced, removed or duplicated."""
    parts: dict[Any, Any] = {}
    if isinstance(value, dict | list):
        parts = dict(value if isinstance(value, dict) else enumerate(value))
    if parts and rng.random() < 0.85:
        key = _pick(rng, list(parts))
        kind = rng.random()
        if kind < 0.12:
            del parts[key]
        elif kind < 0.17:
            parts[str(_pick(rng, HOSTILE))[:50]] = parts[key]
        else:
            parts[key] = _changed(parts[key], rng)
        return parts if isinstance(value, dict) else list(parts.values())
    if type(value) in (int, float) and rng.random() < 0.3:
        return _pick(rng, [-value, value * 10**9, str(value)])
    return _pick(rng, HOSTILE)


def _damage_text(path: Path, rng: Rng) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(int(rng.integers(1, 4))):
        content = _changed(content, rng)
    path.write_text(json.dumps(content), encoding="utf-8", errors="replace")


KINDS: tuple[Any, ...] = (
    *("<u2", "u1", "<i8", "<f4", "?", "S7", "V3"),
    *(h5py.string_dtype(), h5py.ref_dtype, h5py.vlen_dtype(np.int32)),
    *(np.dtype([("a", "<i4")]), np.dtype(("<f8", (1000,)))),
)
SHAPES = ((), (0,), (1,), (60,), (61,), (60, 4), (10**9,), (2**62,), (10**9, 9, 9))
PLUGINS = (
    *(hdf5plugin.Zstd(), hdf5plugin.LZ4(), hdf5plugin.Blosc(), hdf5plugin.Bitshuffle()),
    *(hdf5plugin.BZip2(), hdf5plugin.Blosc2(), hdf5plugin.SZ3(absolute=0.1)),
)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"scaleoffset": 3},
    {"fletcher32": True},
    {"compression": "gzip"},
    {"compression": "lzf", "shuffle": True},
    *(dict(plugin) for plugin in PLUGINS),
)


def _damage_hdf5(path: Path, rng: Rng) -> None:
    """Overwrite bytes of a chunk of a dataset, or replace it by a link, a group or another one."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = _pick(rng, [name for name in names if isinstance(file[name], h5py.Dataset)])
        kind = rng.integers(7)
        if kind < 3 and file[name].chunks:
            offset = (0,) * file[name].ndim
            chunk = bytearray(file[name].id.read_direct_chunk(offset)[1])
            chunk[rng.integers(len(chunk)) :] = rng.bytes(int(rng.integers(0, 3000)))
            skipped_filters = int(rng.integers(0, 4))
            file[name].id.write_direct_chunk(offset, bytes(chunk), filter_mask=skipped_filters)
            return
        del file[name]
        if kind < 5:
            external = h5py.ExternalLink(str(path.parent / "other.h5"), "/a")
            file[name] = _pick(rng, [h5py.SoftLink(names[0]), external])
        elif kind == 5:
            file.create_group(name)
        else:
            shape = _pick(rng, SHAPES)
            options = {"chunks": tuple(min(side, 64) for side in shape)} | _pick(rng, FILTERS)
            if not all(shape) or not shape:
                options = {}
            # some combinations are invalid
            with suppress(OSError, ValueError, TypeError, RuntimeError, OverflowError):
                file.create_dataset(name, shape, _pick(rng, KINDS), **options)


def _damage_arrays(path: Path, rng: Rng) -> None:
    """Change an array of a `.npy` or `.npz` file, or the shape in its header."""
    loaded = np.load(path)
    arrays = {"": loaded} if path.suffix == ".npy" else dict(loaded)
    name = _pick(rng, list(arrays))
    kind = rng.integers(4)
    array = arrays.pop(name)
    if kind == 0:
        array = array.reshape([1] * int(rng.integers(0, 3)) + [-1])
    elif kind == 1:
        values = np.resize(np.frombuffer(array.tobytes(), "u1"), int(rng.integers(0, 100)))
        array = values.astype(_pick(rng, ("f4", "i8", "?", "S7", "M8[s]")))
    header = np.lib.format.header_data_from_array_1_0(array)
    if kind == 2:
        header["shape"] = _pick(rng, SHAPES)
    stored = io.BytesIO()
    np.lib.format.write_array_header_2_0(stored, header)
    content = stored.getvalue() + array.tobytes()
    if path.suffix == ".npy":
        path.write_bytes(content)
        return
    np.savez(path, **arrays)
    compression = int(rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(f"{name}.npy", content)


FIELDS = ("", "nan", "inf", "-1", "1e400", "9" * 400, "0x1", "x", "1,2", "\0", '"', "#", "\r")
FIELDS += ("\ufeff", "1_000", "2.5")


def _damage_lines(path: Path, rng: Rng) -> None:
    """Replace a field of a text file, or remove, repeat or swap lines."""
    lines = path.read_text().splitlines()
    for _ in range(int(rng.integers(1, 4))):
        line = int(rng.integers(len(lines)))
        kind = rng.integers(8)
        if kind == 0:
            del lines[line:]
        elif kind == 1:
            lines[line:line] = [lines[line]] * int(rng.integers(1, 3))
        elif kind == 2:
            lines[0], lines[line] = lines[line], lines[0]
        else:
            parts = re.split(r"([, ])", lines[line])
            parts[rng.integers(len(parts))] = _pick(rng, FIELDS)
            lines[line] = "".join(parts)
        if not lines:
            break
    path.write_text(_pick(rng, ("\n", "\n", "\r\n", "\r")).join(lines) + "\n", newline="")


DTYPES = (torch.float16, torch.float64, torch.int64, torch.bool)
DTYPES += (torch.float8_e4m3fn, torch.complex64)


def _damage_tensors(path: Path, rng: Rng) -> None:
    """Change name, shape or dtype of a tensor, and change or drop the recipe."""
    with safe_open(path, framework="pt") as file:
        recipe = json.loads(file.metadata()["tespec"])
    tensors = load_file(path)
    name = _pick(rng, sorted(tensors))
    tensor = tensors.pop(name)
    shape = [1] * int(rng.integers(0, 5)) + [-1]
    choices = [tensor, tensor.reshape(shape), tensor.to(_pick(rng, DTYPES)), tensor.flatten()[:0]]
    kind = int(rng.integers(len(choices) + 1))
    if kind == len(choices):
        name = str(_pick(rng, HOSTILE))[:40] + name
    else:
        tensor = choices[kind]
    tensors[name] = tensor.contiguous()
    if rng.random() < 0.5:
        recipe = _changed(recipe, rng)
    text = json.dumps(recipe).encode("utf-8", "replace").decode()
    save_file(tensors, path, metadata={"tespec": text} if rng.random() < 0.9 else None)


DAMAGES: dict[str, Callable[[Path, Rng], None]] = {
    ".json": _damage_text,
    ".h5": _damage_hdf5,
    ".hdf5": _damage_hdf5,
    ".safetensors": _damage_tensors,
    ".npy": _damage_arrays,
    ".npz": _damage_arrays,
    ".csv": _damage_lines,
    ".txt": _damage_lines,
}
LINKS = ("/dev/zero", "/dev/full", "/dev/null", "loop", "/missing")
# Other things than a file at its path.
OTHER_KINDS: tuple[Callable[[Path], Any], ...] = (
    Path.mkdir,
    lambda path: os.mknod(path, stat.S_IFIFO | 0o600),
    lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    *(partial(Path.symlink_to, target=target) for target in LINKS),
)


def _harm(path: Path, rng: Rng) -> None:
    """Damage a file, or one of a folder: its structured content, its bytes, or its kind."""
    victim = path
    if path.is_dir():
        victim = _pick(rng, sorted(file for file in path.rglob("*") if file.is_file()))
    content = victim.read_bytes()
    victim.unlink()  # a hard link to the intact file
    if rng.random() < 0.03:
        _pick(rng, OTHER_KINDS)(victim)
        return
    victim.write_bytes(content)
    function = DAMAGES.get(victim.suffix, _damage_bytes) if rng.random() < 0.6 else _damage_bytes
    function(victim, rng)


def write_store(path: Path) -> None:
    SEEDS["dat"].write(path.with_name("a.dat"))
    packing.pack(open_reader(path.with_name("a.dat")), path)


def read_events(path: Path, sensor: Size | None = None) -> None:
    """Read events and check the guarantees of every recording.

    Args:
        path: damaged recording.
        sensor: height and width in px, for files without them.
    """
    stream = open_events(path, sensor)
    height, width = stream.height, stream.width
    first, end = stream.t_first, stream.t_last + 1
    for t0, t1 in [(first, end), (first, first + 40_000), (60_000, 61_500)]:
        events = stream.slice(t0, t1)
        assert (np.diff(events.t) >= 0).all()
        if len(events.t):
            assert t0 <= events.t[0] <= events.t[-1] < t1
            assert events.x.max() < width
            assert events.y.max() < height
            assert events.p.max() <= 1
        if max(height, width) < 2_000:
            event_histogram(*events, t_start=t0, t_end=t1, bins=2, height=height, width=width)
    assert len(stream.slice(first, end).t) == stream.count


def read_dataset(task: str, root: Path, changes: Sequence[str] = ()) -> None:
    """Read the labels of the test recordings, and the events of some windows.

    Args:
        task: name of the task.
        root: damaged data set.
        changes: of settings.
    """
    settings = settings_of(Data(root, "sample"), task, "recurrent", changes=changes)
    for recording in base.open_dataset(settings, root).recordings("test"):
        assert recording.histograms(0, 3, settings.binning).max() <= 10
        assert all(recording.labels[index] is not None for index in range(len(recording.labels)))


def read_images(root: Path) -> None:
    images = open_images(root)
    paths = [*images.train, *images.held_out]
    held_out_batch(images, paths, [lambda im: torch.from_numpy(np.array(im.resize((16, 16))))])


def network_weights() -> dict[str, torch.Tensor]:
    return EventSwin("swin_micro", recurrent=False, bins=1, img_size=(32, 32)).state_dict()


def write_backbone(path: Path) -> None:
    recipe = {"bins": 1, "in_channels": 2, "sensor": [32, 32]}
    recipe |= {"backbone": "swin_micro", "recurrent": False}
    files.write_weights(path, network_weights(), recipe)


def read_backbone(path: Path) -> None:
    load.inspect(path)
    load.read_backbone(path)


def write_network(path: Path) -> None:
    settings = config.finetuning_settings("gen1", "feedforward", "smoke")
    network = find_task(settings).network(settings, base.random_backbone(settings, (32, 32)))
    histograms = asdict(HistogramSpec.from_settings(settings, (32, 32), 50.0))
    recipe = config.as_facts(settings) | {load.HISTOGRAMS: histograms}
    files.write_weights(path, network.state_dict(), recipe)


def write_run(folder: Path) -> None:
    state = {"step": 3, "model": {"weight": torch.ones(4, 5)}, "state": (torch.ones(3), None)}
    content = {"run": "a", "trainer": state, "curve": {"curve": [{"step": 1.0}]}}
    checkpoint.save_checkpoint(folder, 3, content)


def read_run(run: Path) -> None:
    path, damaged = checkpoint.newest_complete(run)
    if path is None:
        raise UserError(run, f"{damaged} damaged", "resume from another one")
    checkpoint.read_checkpoint(path, "a")


# recordings outside the test split
OTHERS = ("train", "val", "imgs", "dir[013]", "outdoor_day[23]*")


def write_archive(name: str, layout: dict[str, int], root: Path) -> None:
    """Write the test recordings of the sample world as RVT's archive.

    Args:
        name: "gen1" or "1mpx".
        layout: of `rvt_archive`.
        root: folder to write.
    """
    _copy_of_world(name, root)
    rvt_archive.archive(root, **layout)


def world() -> Path:
    return make_world("tiny", processes=1, datasets=DATASETS)


def _copy_of_world(name: str, root: Path) -> None:
    ignored = ["street0[01]_000[1-9]*"] if name == "objects" else OTHERS
    shutil.copytree(world() / name, root, ignore=shutil.ignore_patterns(*ignored))


class Target(NamedTuple):
    """Intact file or folder with its writer and reader."""

    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    weight: float = 1.0  # relative number of cases


def _of_dataset(name: str, write: Callable[[Path], Any], *changes: str) -> Target:
    return Target(name, write, partial(read_dataset, name, changes=changes), 0.1)


def _of_recording(seed: Seed) -> Target:
    weight = 0.3 if seed.name.endswith((".csv", ".txt", ".bag")) else 1.0  # these are slow
    return Target(seed.name, seed.write, partial(read_events, sensor=seed.sensor), weight)


TARGETS: dict[str, Target] = {
    **{name: _of_recording(seed) for name, seed in SEEDS.items()},
    "store": Target("a", write_store, read_events),
    **{
        name: _of_dataset(name, partial(_copy_of_world, name))
        for name in DATASETS
        if name != "objects"
    },
    "gen1-rvt": _of_dataset("gen1", partial(write_archive, "gen1", rvt_archive.GEN1), "rule=rvt"),
    "1mpx-rvt": _of_dataset(
        "1mpx", partial(write_archive, "1mpx", rvt_archive.ONE_MPX), "rule=rvt"
    ),
    "images": Target("objects", partial(_copy_of_world, "objects"), read_images, 0.1),
    "backbone": Target("a.safetensors", write_backbone, read_backbone, 0.1),
    "network": Target("a.safetensors", write_network, load_trained, 0.1),
    "pth": Target(
        "a.pth",
        lambda path: torch.save({"state_dict": network_weights()}, path),
        files.read_tensors,
    ),
    "checkpoint": Target("run", write_run, read_run),
}


def memory(field: str) -> int:
    """Bytes of this process by a field of its status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def run_case(target: Target, root: Path, rng: Rng) -> str:
    """Damage a copy of a file and read it.

    Args:
        target: writes and reads the file.
        root: folder with the intact file in `sound`.
        rng: draws the damage.

    Returns:
        "accepted", "refused" or the failure.
    """
    sound = root / "sound" / target.name
    path = root / "case" / target.name
    shutil.rmtree(path.parent, ignore_errors=True)  # of the case before, which may have crashed
    path.parent.mkdir()
    if sound.is_dir():
        shutil.copytree(sound, path, copy_function=os.link)
    else:
        os.link(sound, path)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    before = memory("VmRSS")
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    faulthandler.dump_traceback_later(PATIENCE * SECONDS, exit=True)
    try:
        _harm(path, rng)
        target.read(path)
        outcome = "accepted"
    except UserError:
        outcome = "refused"
    except (Exception, SystemExit):
        outcome = " ".join(traceback.format_exc().splitlines()[-3:])[:500]
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_PROF, 0)
    if (used := memory("VmHWM") - before) > MEMORY:
        outcome = f"used {used / 1e9:.2f} GB of memory"
    if strays := {path.name for path in root.iterdir()} - {"sound", "case", "cache", LOG}:
        outcome = f"written outside of the folder: {strays}"
    return outcome


def run_cases(name: str, root: Path, numbers: Sequence[int], seed: int) -> int:
    """Run cases in a forked process until one of them ends it.

    Args:
        name: key of `TARGETS`.
        root: folder with the intact file in `sound`; each outcome is a line of the file `LOG`.
        numbers: of the cases.
        seed: seed of the damages.

    Returns:
        Exit code of the process, 0 if it ran all cases.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        limit = memory("VmSize") + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        faulthandler.register(signal.SIGPROF, chain=True)  # print where it is, then die
        with (root / LOG).open("a", buffering=1) as log:
            for number in numbers:
                rng = np.random.default_rng([seed, number, *name.encode()])
                print(run_case(TARGETS[name], root, rng), file=log)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def search(name: str, first: int, cases: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Run cases of a target; after a crash or a hang, another process continues with the next one.

    Args:
        name: key of `TARGETS`.
        first: number of the first case.
        cases: number of cases.
        seed: seed of the damages.

    Returns:
        Numbers of cases by outcome, and a text for each failure.
    """
    torch.set_num_threads(1)  # a process that has started threads cannot be forked safely
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    outcomes: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-", dir=parent) as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # libraries warn when they are imported
        root = Path(folder)
        sound = root / "sound" / TARGETS[name].name
        sound.parent.mkdir()
        TARGETS[name].write(sound)
        TARGETS[name].read(sound)
        warnings.simplefilter("error")
        while len(outcomes) < cases:
            code = run_cases(name, root, range(first + len(outcomes), first + cases), seed)
            with (root / LOG).open("a") as log:
                log.write(f"ended the process with code {code}, see above\n" if code else "")
            outcomes = (root / LOG).read_text().splitlines()
    counts = Counter[str]()
    failures: list[str] = []
    for number, outcome in enumerate(outcomes, first):
        if outcome not in GOOD:
            failures.append(f"case {number}: {outcome}")
            outcome = "failed"
        counts[outcome] += 1
    return counts, failures


def main(
    *,
    cases: int = 100_000,
    only: str | None = None,
    seed: int = 0,
    first: int = 0,
    processes: int = os.cpu_count() or 1,
) -> int:
    """Fuzz readers and print the failures.

    Args:
        cases: number of cases in all, or of `--only`.
        only: fuzz this target only.
        seed: seed of the damages.
        first: number of the first case.
        processes: targets at the same time.
    """
    if only not in {None, *TARGETS}:
        raise SystemExit(f"no target {only}; choose from {', '.join(TARGETS)}")
    world()
    names = [only] if only else list(TARGETS)
    total = sum(TARGETS[name].weight for name in names)
    numbers = [math.ceil(cases * TARGETS[name].weight / total) for name in names]
    failed = False
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        results = pool.map(search, names, repeat(first), numbers, repeat(seed))
        for name, (counts, failures) in zip(names, results, strict=True):
            print(f"{name}: {', '.join(f'{counts[kind]} {kind}' for kind in (*GOOD, 'failed'))}")
            again = f"python tools/fuzz.py --only {name} --seed {seed} --first N --cases 1"
            for failure in failures[:SHOWN]:
                print(f"  {failure}\n    {again}")
            failed |= bool(failures)
    return int(failed)


import_tasks()

if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
