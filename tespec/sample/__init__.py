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
from tespec.core.files import one_at_a_time
from tespec.core.paths import cache_root
from tespec.core.progress import progress
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
    """List all recordings of one data set of a world, in a fixed order."""
    if seed < 0:
        raise UserError(f"seed {seed} of the sample world", "is negative", "give 0 or more")
    for kind, name, known in (("size", size, CONTENTS), ("dataset", dataset, DATASETS)):
        if name not in known:
            raise UserError(
                f"sample world, {kind} '{name}'",
                f"no such {kind}",
                f"choose from {', '.join(known)}",
            )
    sensor, splits = CONTENTS[size][dataset]
    first = STREETS_PER_WORLD * (seed + 3) + STREETS_PER_DATASET * DATASETS.index(dataset)
    found: list[SampleRecording] = []
    for split, (number, seconds) in splits.items():
        for index in range(number):
            name = (
                OFFICIAL[dataset][split][index]
                if dataset in OFFICIAL
                else NUMBERED[dataset](len(found))
            )
            night = "night" in name or (
                dataset != "mvsec" and index % NIGHT_EVERY == NIGHT_EVERY - 2
            )
            street = first + FIRST_STREET[split] + index
            found.append(SampleRecording(dataset, split, name, sensor, seconds, street, night))
    return found


def world_folder(size: str = "small", seed: int = 0, root: Path | None = None) -> Path:
    """Return the folder of a world, whether or not it exists; for the arguments see `make_world`."""
    return (cache_root() if root is None else root) / f"sample-v{VERSION}-{seed}-{size}"


def make_world(
    size: str = "small",
    seed: int = 0,
    root: Path | None = None,
    processes: int | None = None,
    datasets: Sequence[str] = DEFAULT,
) -> Path:
    """Make the requested data sets of a sample world that are missing, and return the world's folder.

    Each data set, a key of `WRITERS`, has a subfolder. Streets of different seeds differ. Worlds
    lie in `root`, by default the cache. If multiple processes request the same world concurrently,
    one makes it and the others wait. It uses `processes` workers, by default one per CPU core,
    which import the caller's main module: a script needs `if __name__ == "__main__"`.
    """
    wanted = {dataset: recordings_of(size, seed, dataset) for dataset in datasets}
    folder = world_folder(size, seed, root)
    if all((folder / dataset).is_dir() for dataset in wanted):
        return folder
    if getattr(
        multiprocessing.current_process(), "_inheriting", False
    ):  # would wait for its parent forever
        remedy = 'move its code under `if __name__ == "__main__":`'
        raise UserError(
            sys.argv[0], "is imported by each worker process that makes the sample world", remedy
        )
    processes = processes or os.cpu_count() or 1
    with one_at_a_time(folder):
        for dataset, recordings in wanted.items():
            if (folder / dataset).is_dir():
                continue
            unfinished = folder / f".{dataset}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            (unfinished / "dataset.json").write_text(
                json.dumps(facts(size, seed, dataset), indent=1) + "\n"
            )
            recordings.sort(key=lambda recording: -recording.seconds)  # the longest first
            pool = ProcessPoolExecutor(
                min(processes, len(recordings)), multiprocessing.get_context("spawn")
            )
            with pool, progress(f"making the sample world's {dataset}", "recordings") as advance:
                run: Any = pool.map if processes > 1 else map
                for done, _ in enumerate(run(partial(_write, unfinished), recordings), start=1):
                    advance(done, len(recordings), "")
            unfinished.replace(folder / dataset)
    return folder


def facts(size: str, seed: int, dataset: str) -> dict[str, Any]:
    """Return the content of a data set's `dataset.json`, whether or not it exists."""
    recordings = recordings_of(size, seed, dataset)
    height, width, label_rows = recordings[0].sensor
    splits = CONTENTS[size][dataset][1]
    found: dict[str, Any] = {
        "dataset": dataset,
        "data": "sample",
        "world": {"version": VERSION, "seed": seed, "size": size},
        "sensor": {"height": height, "width": width},
        "splits": {
            split: [each.name for each in recordings if each.split == split] for split in splits
        },
    }
    if dataset in ("ddd17", "dsec"):
        found["label_rows"] = label_rows
    if dataset == "ddd17":
        found |= {
            "frame_rate": FRAME_RATE / layouts.DDD17_STRIDE,
            "classes": list(layouts.DDD17_CLASSES),
        }
    return found


def _write(root: Path, recording: SampleRecording) -> None:
    """Make one recording; `ego_speed/<name>.npy` (N, 2) contains time in us and speed in m/s."""
    dataset, street = recording.dataset, Street(recording.seed, recording.seconds, recording.night)
    WRITERS[dataset](street.record(street.camera(*recording.sensor)), root, recording)
    if dataset in CLOCKS:
        times = CLOCKS[dataset] + PERIOD_US * np.arange(1, street.frames)
        (root / "ego_speed").mkdir(exist_ok=True)
        np.save(
            root / "ego_speed" / f"{recording.name}.npy",
            np.stack([times, street.ego_speed[1:]], axis=1),
        )
