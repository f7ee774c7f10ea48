"""Makes a world once, in parallel, and keeps it: the same bytes whatever the number of processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time
from tespec.core.paths import cache_root
from tespec.core.progress import progress
from tespec.sample import layouts
from tespec.sample.recordings import VERSION, Recording, recordings_of
from tespec.sample.street import FRAME_RATE, PERIOD_US, Film, Street

DEFAULT = ("ddd17", "1mpx")  # what the demo needs
WRITERS: dict[str, Callable[[Film, Path, Recording], None]] = {
    "ddd17": layouts.write_ddd17,
    "gen1": layouts.write_prophesee,
    "1mpx": layouts.write_prophesee,
    "dsec": layouts.write_dsec,
    "mvsec": layouts.write_mvsec,
    "objects": layouts.write_objects,
}
# Time of the first frame by the clock of a recording whose layout has no place for the ego speed, in us.
CLOCKS = {"gen1": 0, "1mpx": 0, "dsec": layouts.DSEC_OFFSET_US, "mvsec": layouts.MVSEC_EPOCH_US}


def world_folder(size: str = "small", seed: int = 0, root: Path | None = None) -> Path:
    """Where the world of these arguments lies once it is made; see `make_world`."""
    return (cache_root() if root is None else root) / f"sample-v{VERSION}-{seed}-{size}"


def make_world(
    size: str = "small",
    seed: int = 0,
    root: Path | None = None,
    processes: int | None = None,
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
        datasets: keys of `WRITERS`.

    Raises:
        UserError: unknown size or data set, or negative seed.
    """
    wanted = {dataset: recordings_of(size, seed, dataset) for dataset in datasets}
    if seed < 0:
        raise UserError(f"seed {seed} of the sample world", "is negative", "give 0 or more")
    folder = world_folder(size, seed, root)
    if all((folder / dataset).is_dir() for dataset in wanted):
        return folder
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # it would wait for its parent for ever
        remedy = 'put what it does below `if __name__ == "__main__":`'
        raise UserError(sys.argv[0], "is imported by each process that makes the sample world", remedy)
    with one_at_a_time(folder):
        for dataset, recordings in wanted.items():
            if not (folder / dataset).is_dir():
                unfinished = folder / f".{dataset}.unfinished"
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir(parents=True)
                (unfinished / "dataset.json").write_text(json.dumps(facts(size, seed, dataset), indent=1) + "\n")
                _make(recordings, unfinished, processes or os.cpu_count() or 1)
                unfinished.replace(folder / dataset)
    return folder


def facts(size: str, seed: int, dataset: str) -> dict[str, Any]:
    """The `dataset.json` of one data set of a world, whether it is made or not; errors as of `recordings_of`."""
    recordings = recordings_of(size, seed, dataset)
    height, width, label_rows = recordings[0].sensor
    splits: dict[str, list[str]] = {}
    for recording in recordings:
        splits.setdefault(recording.split, []).append(recording.name)
    found: dict[str, Any] = {
        "dataset": dataset,
        "data": "sample",
        "world": {"version": VERSION, "seed": seed, "size": size},
        "sensor": {"height": height, "width": width},
        "splits": splits,
    }
    if dataset in ("ddd17", "dsec"):
        found["label_rows"] = label_rows
    if dataset == "ddd17":
        found |= {"frame_rate": FRAME_RATE / layouts.DDD17_STRIDE, "classes": list(layouts.DDD17_CLASSES)}
    return found


def _make(recordings: Sequence[Recording], root: Path, processes: int) -> None:
    """Make the recordings of one data set in its folder, the longest first."""
    planned = sorted(recordings, key=lambda recording: -recording.seconds)
    label = f"making the sample world's {planned[0].dataset}"
    with ExitStack() as stack, progress(label, "recordings") as advance:
        run: Any = map
        if processes > 1:
            spawn = multiprocessing.get_context("spawn")
            run = stack.enter_context(ProcessPoolExecutor(min(processes, len(planned)), spawn)).map
        for done, _ in enumerate(run(partial(_write, root), planned), start=1):
            advance(done, len(planned), "")


def _write(root: Path, recording: Recording) -> None:
    """Make one recording; `ego_speed/<name>.npy` (N, 2) holds time in us and speed in m/s."""
    dataset, street = recording.dataset, Street(recording.seed, recording.seconds, recording.night)
    WRITERS[dataset](street.record(street.camera(*recording.sensor)), root, recording)
    if dataset in CLOCKS:
        times = CLOCKS[dataset] + PERIOD_US * np.arange(1, street.frames)
        (root / "ego_speed").mkdir(exist_ok=True)
        np.save(root / "ego_speed" / f"{recording.name}.npy", np.stack([times, street.ego_speed[1:]], axis=1))
