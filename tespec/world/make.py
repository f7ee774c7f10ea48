"""Makes a world once, in parallel, and keeps it: the same bytes whatever the number of processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time
from tespec.core.paths import cache_root
from tespec.datasets.description import Description, of_facts
from tespec.world.layouts import write_recording
from tespec.world.layouts.ddd17 import CLASSES, IMAGE_STRIDE
from tespec.world.plans import DATASETS, VERSION, Plan, plans, recipe
from tespec.world.scene import make_camera
from tespec.world.street import FRAME_RATE, Street, record

DEFAULT = ("ddd17", "1mpx")  # what the demo needs
Progress = Callable[[int, int], None]


def make_world(
    size: str = "small",
    seed: int = 0,
    root: Path | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    datasets: Sequence[str] = DEFAULT,
) -> Path:
    """The folder of a sample world; what is missing of the datasets asked for is made.

    Several processes may ask for the same world at once: one makes it, the others wait. With more than one process the
    caller's main module is imported by each of them; a script that has not got the usual `if __name__ == "__main__"`
    is told so.

    Args:
        size: "tiny", "small" or "medium".
        seed: any non-negative integer; streets of different seeds differ.
        root: folder in which worlds are kept; None: the harness's cache.
        processes: how many make recordings at once; None: one per processor.
        progress: called with the recordings that are done and all there are to make.
        datasets: of "ddd17", "1mpx", "gen1", "dsec" and "mvsec".

    Returns:
        Folder with a folder for each dataset, each with a `dataset.json`.

    Raises:
        UserError: unknown size or dataset, or negative seed.
    """
    for dataset in datasets:
        recipe(size, dataset)
    if seed < 0:
        raise UserError(f"seed {seed} of the sample world", "is negative", "give 0 or more")
    folder = world_folder(size, seed, root)
    if all((folder / dataset).is_dir() for dataset in datasets):
        return folder
    _refuse_unguarded_main()
    with one_at_a_time(folder):
        missing = [dataset for dataset in DATASETS if dataset in datasets and not (folder / dataset).is_dir()]
        _make(folder, size, seed, missing, processes or os.cpu_count() or 1, progress)
    return folder


def world_folder(size: str = "small", seed: int = 0, root: Path | None = None) -> Path:
    """Where the world of these arguments lies once it is made; see `make_world`."""
    return (cache_root() if root is None else root) / f"sample-v{VERSION}-{seed}-{size}"


def _make(
    folder: Path, size: str, seed: int, datasets: Sequence[str], processes: int, progress: Progress | None
) -> None:
    planned = [plan for dataset in datasets for plan in plans(size, seed, dataset)]
    for dataset in datasets:
        unfinished = _unfinished(folder, dataset)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        description = _description(size, seed, dataset)
        (unfinished / "dataset.json").write_text(json.dumps(description, indent=1) + "\n")
    left = {dataset: sum(plan.dataset == dataset for plan in planned) for dataset in datasets}
    for done, plan in enumerate(_run(planned, folder, min(processes, len(planned))), start=1):
        left[plan.dataset] -= 1
        if not left[plan.dataset]:
            _unfinished(folder, plan.dataset).replace(folder / plan.dataset)
        if progress is not None:
            progress(done, len(planned))


def _unfinished(folder: Path, dataset: str) -> Path:
    return folder / f".{dataset}.unfinished"


def _run(planned: list[Plan], folder: Path, processes: int) -> Iterator[Plan]:
    if processes <= 1:
        for plan in planned:
            make_recording(plan, _unfinished(folder, plan.dataset))
            yield plan
        return
    _compile_kernels()
    longest_first = sorted(planned, key=lambda plan: -plan.seconds * plan.sensor.height)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    try:
        futures = {pool.submit(make_recording, plan, _unfinished(folder, plan.dataset)): plan for plan in longest_first}
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    except BrokenProcessPool as error:
        what = "a process that made it ended before it was done"
        raise UserError("sample world", what, "see what it wrote above, or give processes=1") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _refuse_unguarded_main() -> None:
    """Stop a child process whose main module, being imported, asks for a world: it would wait for its parent."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        script = getattr(sys.modules.get("__mp_main__"), "__file__", None) or sys.argv[0]
        remedy = 'put what it does below `if __name__ == "__main__":`, or give processes=1'
        raise UserError(script, "is imported by each process that makes the sample world", remedy)


def _compile_kernels() -> None:
    """Fill numba's cache on disk, so that the processes read it instead of compiling the same code each."""
    for _ in record(Street(0, 0.02), make_camera(8, 8)):
        pass


def make_recording(plan: Plan, root: Path) -> None:
    """Make one recording of a dataset in its folder."""
    street = Street(plan.seed, plan.seconds, plan.night)
    sensor = plan.sensor
    film = record(street, make_camera(sensor.height, sensor.width, sensor.label_rows))
    write_recording(film, root, plan)


def description(size: str, seed: int, dataset: str) -> Description:
    """What one dataset of a world says about itself, whether it is made or not.

    Raises:
        UserError: there is no such size or dataset.
    """
    return of_facts(_description(size, seed, dataset))


def _description(size: str, seed: int, dataset: str) -> dict[str, Any]:
    content = recipe(size, dataset)
    splits: dict[str, list[str]] = {}
    for plan in plans(size, seed, dataset):
        splits.setdefault(plan.split, []).append(plan.name)
    sensor = content.sensor
    described: dict[str, Any] = {
        "dataset": dataset,
        "data": "sample",
        "world": {"version": VERSION, "seed": seed, "size": size},
        "sensor": {"height": sensor.height, "width": sensor.width},
        "splits": splits,
    }
    if dataset in ("ddd17", "dsec"):
        described["label_rows"] = sensor.label_rows
    if dataset == "ddd17":
        described |= {"frame_rate": FRAME_RATE / IMAGE_STRIDE, "classes": list(CLASSES)}
    return described
