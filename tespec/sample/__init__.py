"""A small synthetic driving world in the layouts of the real data sets, for use without them."""

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tespec.core.errors import UserError
from tespec.core.files import file_lock
from tespec.core.paths import cache_root
from tespec.core.progress import log, progress
from tespec.datasets import Dsec, Mvsec
from tespec.sample import layouts
from tespec.sample.layouts import SampleRecording, SampleSensor
from tespec.sample.street import FRAME_RATE, PERIOD_US, Film, Street

VERSION = 9
# Per size and data set: the sensor, and for each split the number of recordings and their duration
# in s.
CONTENTS: dict[str, dict[str, tuple[SampleSensor, dict[str, tuple[int, float]]]]] = {
    "tiny": {
        "ddd17": (SampleSensor(80, 96, 64), {"train": (2, 2.0), "test": (1, 2.0), "val": (1, 2.0)}),
        "1mpx": (SampleSensor(64, 96, 64), {"train": (1, 2.0), "val": (1, 2.0), "test": (1, 2.0)}),
        "gen1": (SampleSensor(64, 80, 64), {"train": (2, 2.0), "val": (1, 2.0), "test": (1, 2.0)}),
        "dsec": (SampleSensor(64, 80, 56), {"train": (2, 2.0), "test": (1, 2.0), "val": (1, 2.0)}),
        "mvsec": (SampleSensor(64, 80, 64), {"train": (1, 2.0), "test": (2, 2.0), "val": (1, 2.0)}),
        "objects": (SampleSensor(64, 96, 64), {"train": (2, 2.0), "val": (1, 2.0)}),
    },
    "small": {
        "ddd17": (
            SampleSensor(120, 160, 96),
            {"train": (24, 3.5), "test": (10, 4.0), "val": (4, 4.0)},
        ),
        "1mpx": (
            SampleSensor(96, 160, 96),
            {"train": (14, 8.0), "val": (2, 8.0), "test": (4, 8.0)},
        ),
        "gen1": (
            SampleSensor(96, 128, 96),
            {"train": (32, 8.0), "val": (6, 8.0), "test": (8, 8.0)},
        ),
        "dsec": (SampleSensor(96, 128, 88), {"train": (8, 8.0), "val": (3, 8.0), "test": (3, 8.0)}),
        "mvsec": (
            SampleSensor(96, 128, 96),
            {"train": (1, 60.0), "val": (2, 8.0), "test": (4, 8.0)},
        ),
        "objects": (SampleSensor(180, 240, 180), {"train": (12, 8.0), "val": (2, 8.0)}),
    },
}
DATASETS = tuple(CONTENTS["small"])
DEFAULT = ("ddd17", "1mpx")  # data sets of the demo
# Names of recordings: official ones by split, or in their style, formatted from the index in the
# data set.
OFFICIAL = {
    "dsec": {**Dsec.splits, "val": [f"zurich_city_{number:02d}_a" for number in (9, 10, 11)]},
    "mvsec": {**Mvsec.splits, "val": ["outdoor_day3", "outdoor_night4"]},
}
NUMBERED: dict[str, Callable[[int], str]] = {
    "ddd17": "dir{}".format,
    "1mpx": "moorea_2019-02-19_{:03d}_td_500000_8500000".format,
    "gen1": lambda number: f"17-04-13_15-05-{10 + number}_500000_8500000",
    "objects": "street{:02d}".format,
}
NIGHT_EVERY = 4  # every fourth recording of a split is at night; MVSEC has its official nights
# A street's number is its seed. Each split has its own range, so that it can grow without changing
# the other splits.
STREETS_PER_WORLD, STREETS_PER_DATASET = 1000, 100
FIRST_STREET = {"train": 0, "val": 60, "test": 80}
WRITERS: dict[str, Callable[[Film, Path, SampleRecording], None]] = {
    "ddd17": layouts.write_ddd17,
    "1mpx": layouts.write_prophesee,
    "gen1": layouts.write_prophesee,
    "dsec": layouts.write_dsec,
    "mvsec": layouts.write_mvsec,
    "objects": layouts.write_objects,
}
# Start time in us, on the data set's clock, of recordings whose ego speed is stored in
# `ego_speed/`.
CLOCKS = {"gen1": 0, "1mpx": 0, "dsec": layouts.DSEC_OFFSET_US, "mvsec": layouts.MVSEC_EPOCH_US}


def recordings_of(size: str, seed: int, dataset: str) -> list[SampleRecording]:
    """List the recordings of one data set of a world, in a fixed order.

    Args:
        size: key of `CONTENTS`.
        seed: seed of the world.
        dataset: one of `DATASETS`.

    Raises:
        UserError: no such size or data set, or a negative seed.
    """
    if seed < 0:
        raise UserError(f"seed {seed} of the sample world", "is negative", "give 0 or more")
    for kind, name, names in (("size", size, CONTENTS), ("dataset", dataset, DATASETS)):
        if name not in names:
            where = f"sample world, {kind} '{name}'"
            raise UserError(where, f"no such {kind}", f"choose from {', '.join(names)}")
    sensor, splits = CONTENTS[size][dataset]
    first = STREETS_PER_WORLD * (seed + 3) + STREETS_PER_DATASET * DATASETS.index(dataset)
    recordings: list[SampleRecording] = []
    for split, (number, seconds) in splits.items():
        for index in range(number):
            if dataset in OFFICIAL:
                name = OFFICIAL[dataset][split][index]
            else:
                name = NUMBERED[dataset](len(recordings))
            in_turn = dataset != "mvsec" and index % NIGHT_EVERY == NIGHT_EVERY - 2
            night = in_turn or "night" in name
            street = first + FIRST_STREET[split] + index
            recordings.append(SampleRecording(dataset, split, name, sensor, seconds, street, night))
    return recordings


def world_folder(size: str = "small", seed: int = 0, root: Path | None = None) -> Path:
    """Return the folder of a world, whether or not it exists.

    Args:
        size: "tiny" or "small".
        seed: seed of the streets.
        root: folder that contains the worlds, by default the cache.
    """
    return (cache_root() if root is None else root) / f"sample-v{VERSION}-{seed}-{size}"


def make_world(
    size: str = "small",
    seed: int = 0,
    root: Path | None = None,
    processes: int | None = None,
    datasets: Sequence[str] = DEFAULT,
) -> Path:
    """Make the requested data sets of a sample world that are missing.

    If multiple processes request the same world concurrently, one makes it and the others wait.
    Worker processes import the caller's main module: a script needs `if __name__ == "__main__"`.

    Args:
        size: "tiny" or "small".
        seed: worlds of different seeds have different streets.
        root: folder that contains the worlds, by default the cache.
        processes: worker processes, by default one per CPU core.
        datasets: of `DATASETS`.

    Returns:
        Folder of the world, with a subfolder per data set.

    Raises:
        UserError: no such size or data set, or a script without a guarded main module.

    Example:
        >>> world = make_world("tiny", datasets=["gen1"])
        >>> sorted(path.name for path in (world / "gen1").iterdir())
        ['dataset.json', 'ego_speed', 'test', 'train', 'val']
    """
    recordings = {dataset: recordings_of(size, seed, dataset) for dataset in datasets}
    folder = world_folder(size, seed, root)
    if all((folder / dataset).is_dir() for dataset in recordings):
        return folder
    # A worker that imports an unguarded script would wait for its parent forever.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        what = "is imported by each worker process that makes the sample world"
        raise UserError(sys.argv[0], what, 'move its code under `if __name__ == "__main__":`')

    def waiting(owner: str) -> None:
        log(f"{folder}: waiting for {owner}, which makes the sample world")

    with file_lock(folder, waiting):
        for dataset in recordings:
            if not (folder / dataset).is_dir():
                _make_dataset(folder, dataset, size, seed, processes or os.cpu_count() or 1)
    return folder


def _make_dataset(folder: Path, dataset: str, size: str, seed: int, processes: int) -> None:
    unfinished = folder / f".{dataset}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    description = unfinished / "dataset.json"
    description.write_text(json.dumps(facts(size, seed, dataset), indent=1) + "\n")
    # the longest first
    recordings = sorted(recordings_of(size, seed, dataset), key=lambda each: -each.seconds)
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(recordings)), spawn)
    with pool, progress(f"making the sample world's {dataset}", "recordings") as advance:
        run: Any = pool.map if processes > 1 else map
        for done, _ in enumerate(run(partial(_write, unfinished), recordings), start=1):
            advance(done, len(recordings), "")
    unfinished.replace(folder / dataset)


def facts(size: str, seed: int, dataset: str) -> dict[str, Any]:
    """Return the content of a data set's `dataset.json`, whether or not it exists.

    Args:
        size: of the world.
        seed: of the world.
        dataset: one of `DATASETS`.
    """
    recordings = recordings_of(size, seed, dataset)
    height, width, label_rows = recordings[0].sensor
    content: dict[str, Any] = {
        "dataset": dataset,
        "data": "sample",
        "world": {"version": VERSION, "seed": seed, "size": size},
        "sensor": {"height": height, "width": width},
        "splits": {
            split: [recording.name for recording in recordings if recording.split == split]
            for split in CONTENTS[size][dataset][1]
        },
    }
    if dataset in ("ddd17", "dsec"):
        content["label_rows"] = label_rows
    if dataset == "ddd17":
        content["frame_rate"] = FRAME_RATE / layouts.DDD17_STRIDE
        content["classes"] = list(layouts.DDD17_CLASSES)
    return content


def _write(root: Path, recording: SampleRecording) -> None:
    """Make one recording; `ego_speed/<name>.npy` (N, 2) contains time in us and speed in m/s."""
    street = Street(recording.seed, recording.seconds, recording.night)
    camera = street.camera(*recording.sensor)
    WRITERS[recording.dataset](street.record(camera), root, recording)
    if recording.dataset in CLOCKS:
        times = CLOCKS[recording.dataset] + PERIOD_US * np.arange(1, street.frames)
        path = root / "ego_speed" / f"{recording.name}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.stack([times, street.ego_speed[1:]], axis=1))
