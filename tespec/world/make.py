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
from tespec.world.contents import DATASETS, VERSION, Take, content_of, takes
from tespec.world.layouts import write_recording
from tespec.world.layouts.ddd17 import CLASSES, IMAGE_STRIDE
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
        content_of(size, dataset)
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
    planned = [take for dataset in datasets for take in takes(size, seed, dataset)]
    for dataset in datasets:
        unfinished = _unfinished(folder, dataset)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        description = _description(size, seed, dataset)
        (unfinished / "dataset.json").write_text(json.dumps(description, indent=1) + "\n")
    left = {dataset: sum(take.dataset == dataset for take in planned) for dataset in datasets}
    for done, take in enumerate(_run(planned, folder, min(processes, len(planned))), start=1):
        left[take.dataset] -= 1
        if not left[take.dataset]:
            _unfinished(folder, take.dataset).replace(folder / take.dataset)
        if progress is not None:
            progress(done, len(planned))


def _unfinished(folder: Path, dataset: str) -> Path:
    return folder / f".{dataset}.unfinished"


def _run(planned: list[Take], folder: Path, processes: int) -> Iterator[Take]:
    if processes <= 1:
        for take in planned:
            make_recording(take, _unfinished(folder, take.dataset))
            yield take
        return
    _compile_kernels()
    longest_first = sorted(planned, key=lambda take: -take.seconds * take.sensor.height)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    try:
        futures = {pool.submit(make_recording, take, _unfinished(folder, take.dataset)): take for take in longest_first}
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


def make_recording(take: Take, root: Path) -> None:
    """Make one recording of a dataset in its folder."""
    street = Street(take.seed, take.seconds, take.night)
    sensor = take.sensor
    film = record(street, make_camera(sensor.height, sensor.width, sensor.label_rows))
    write_recording(film, root, take)


def description(size: str, seed: int, dataset: str) -> Description:
    """What one dataset of a world says about itself, whether it is made or not.

    Raises:
        UserError: there is no such size or dataset.
    """
    return of_facts(_description(size, seed, dataset))


def _description(size: str, seed: int, dataset: str) -> dict[str, Any]:
    content = content_of(size, dataset)
    splits: dict[str, list[str]] = {}
    for take in takes(size, seed, dataset):
        splits.setdefault(take.split, []).append(take.name)
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
