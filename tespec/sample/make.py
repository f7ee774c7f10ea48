"""Makes a world once, in parallel, and keeps it: the same bytes whatever the number of processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from tespec.core.description import Description
from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time
from tespec.core.paths import cache_root
from tespec.sample import ddd17, dsec, mvsec, prophesee
from tespec.sample.recordings import VERSION, Recording, content_of, recordings_of
from tespec.sample.street import FRAME_RATE, Film, Street

DEFAULT = ("ddd17", "1mpx")  # what the demo needs
WRITERS: dict[str, Callable[[Film, Path, Recording], None]] = {
    "ddd17": ddd17.write,
    "gen1": prophesee.write,
    "1mpx": prophesee.write,
    "dsec": dsec.write,
    "mvsec": mvsec.write,
    "objects": prophesee.write_objects,
}
# Time of the first frame by the clock of a recording whose layout has no place for the ego speed, in us.
CLOCKS = {"gen1": 0, "1mpx": 0, "dsec": dsec.OFFSET_US, "mvsec": mvsec.EPOCH_US}


def make_world(
    size: str = "small",
    seed: int = 0,
    root: Path | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    datasets: Sequence[str] = DEFAULT,
) -> Path:
    """The folder of a sample world, with a folder for each data set; those asked for that it lacks are made.

    Several processes may ask for the same world at once: one makes it, the others wait. With more than one process the
    caller's main module is imported by each of them, so a script needs `if __name__ == "__main__"`.

    Args:
        size: a key of `CONTENTS`.
        seed: any non-negative integer; streets of different seeds differ.
        root: folder in which worlds are kept; None: the harness's cache.
        processes: how many make recordings at once; None: one per processor.
        progress: called with the recordings that are done and all there are to make.
        datasets: keys of `WRITERS`.

    Raises:
        UserError: unknown size or data set, or negative seed.
    """
    left = {dataset: recordings_of(size, seed, dataset) for dataset in dict.fromkeys(datasets)}
    if seed < 0:
        raise UserError(f"seed {seed} of the sample world", "is negative", "give 0 or more")
    folder = world_folder(size, seed, root)
    if all((folder / dataset).is_dir() for dataset in datasets):
        return folder
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # it would wait for its parent for ever
        remedy = 'put what it does below `if __name__ == "__main__":`'
        raise UserError(sys.argv[0], "is imported by each process that makes the sample world", remedy)
    with one_at_a_time(folder):
        left = {dataset: recordings for dataset, recordings in left.items() if not (folder / dataset).is_dir()}
        for dataset in left:
            unfinished = _unfinished(folder, dataset)
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            (unfinished / "dataset.json").write_text(json.dumps(_facts(size, seed, dataset), indent=1) + "\n")
        planned = [recording for recordings in left.values() for recording in recordings]
        planned.sort(key=lambda recording: -recording.seconds * recording.sensor.height)
        for done, recording in enumerate(_make(planned, folder, processes or os.cpu_count() or 1), start=1):
            left[recording.dataset].remove(recording)
            if not left[recording.dataset]:
                _unfinished(folder, recording.dataset).replace(folder / recording.dataset)
            if progress is not None:
                progress(done, len(planned))
    return folder


def _make(planned: list[Recording], folder: Path, processes: int) -> Iterator[Recording]:
    if processes == 1:
        for recording in planned:
            make_recording(recording, _unfinished(folder, recording.dataset))
            yield recording
        return
    street = Street(0, 0.02)
    next(street.record(street.camera(8, 8)))  # the processes read from numba's cache what this one compiles
    with ProcessPoolExecutor(min(processes, len(planned)), multiprocessing.get_context("spawn")) as pool:
        made = {pool.submit(make_recording, each, _unfinished(folder, each.dataset)): each for each in planned}
        for future in as_completed(made):
            future.result()
            yield made[future]


def world_folder(size: str = "small", seed: int = 0, root: Path | None = None) -> Path:
    """Where the world of these arguments lies once it is made; see `make_world`."""
    return (cache_root() if root is None else root) / f"sample-v{VERSION}-{seed}-{size}"


def _unfinished(folder: Path, dataset: str) -> Path:
    return folder / f".{dataset}.unfinished"


def make_recording(recording: Recording, root: Path) -> None:
    """Make one recording in its data set's folder; `ego_speed/<name>.npy` (N, 2) holds time in us and speed in m/s."""
    dataset = recording.dataset
    street = Street(recording.seed, recording.seconds, recording.night)
    WRITERS[dataset](street.record(street.camera(*recording.sensor)), root, recording)
    if dataset in CLOCKS:
        times = CLOCKS[dataset] + np.arange(1, street.frames) * (1_000_000 // FRAME_RATE)
        (root / "ego_speed").mkdir(exist_ok=True)
        np.save(root / "ego_speed" / f"{recording.name}.npy", np.stack([times, street.ego_speed[1:]], axis=1))


def description(size: str, seed: int, dataset: str) -> Description:
    """The `dataset.json` of one data set of a world, whether it is made or not; errors as of `content_of`."""
    return Description.model_validate(_facts(size, seed, dataset))


def _facts(size: str, seed: int, dataset: str) -> dict[str, Any]:
    sensor = content_of(size, dataset).sensor
    splits: dict[str, list[str]] = {}
    for recording in recordings_of(size, seed, dataset):
        splits.setdefault(recording.split, []).append(recording.name)
    facts: dict[str, Any] = {
        "dataset": dataset,
        "data": "sample",
        "world": {"version": VERSION, "seed": seed, "size": size},
        "sensor": {"height": sensor.height, "width": sensor.width},
        "splits": splits,
    }
    if dataset in ("ddd17", "dsec"):
        facts["label_rows"] = sensor.label_rows
    if dataset == "ddd17":
        facts |= {"frame_rate": FRAME_RATE / ddd17.IMAGE_STRIDE, "classes": list(ddd17.CLASSES)}
    return facts
