"""Makes a world once, in parallel, and keeps it: the same bytes whatever the number of processes."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tespec.datasets.sample.camera import make_camera
from tespec.datasets.sample.sizes import VERSION, Plan, Recipe, plans, recipe
from tespec.datasets.sample.street import FRAME_RATE, Street, record
from tespec.datasets.sample.writers.ddd17 import CLASSES, IMAGE_STRIDE, write_ddd17
from tespec.datasets.sample.writers.prophesee import write_prophesee
from tespec.errors import UserError
from tespec.paths import cache_root

Progress = Callable[[int, int], None]


def make_world(
    size: str = "small",
    seed: int = 0,
    root: Path | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """The folder of a sample world; the first call makes it, later ones find it.

    Several processes may ask for the same world at once: one makes it, the others wait. With more than one process the
    caller's main module is imported by each of them, so a script needs the usual `if __name__ == "__main__"`.

    Args:
        size: "tiny" or "small".
        seed: any non-negative integer; streets of different seeds differ.
        root: folder in which worlds are kept; None: the harness's cache.
        processes: how many make recordings at once; None: one per processor.
        progress: called with the recordings that are done and all there are.

    Returns:
        Folder with `ddd17/` and `one_mpx/`, each with a `dataset.json`.

    Raises:
        UserError: unknown size or negative seed.
    """
    recipe(size)
    if seed < 0:
        raise UserError(f"seed {seed} of the sample world", "is negative", "give 0 or more")
    folder = world_folder(size, seed, root)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _make(unfinished, size, seed, processes or os.cpu_count() or 1, progress)
            unfinished.replace(folder)
    return folder


def world_folder(size: str = "small", seed: int = 0, root: Path | None = None) -> Path:
    """Where the world of these arguments lies once it is made; see `make_world`."""
    return (cache_root() if root is None else root) / f"sample-v{VERSION}-{seed}-{size}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        # The system frees the lock when the file is closed, also when the process is killed.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, size: str, seed: int, processes: int, progress: Progress | None) -> None:
    planned = plans(size, seed)
    world = {"version": VERSION, "seed": seed, "size": size}
    for dataset, description in _descriptions(recipe(size), planned, world).items():
        (folder / dataset).mkdir(parents=True)
        (folder / dataset / "dataset.json").write_text(json.dumps(description, indent=1) + "\n")
    for done, _ in enumerate(_run(planned, folder, min(processes, len(planned))), start=1):
        if progress is not None:
            progress(done, len(planned))


def _run(planned: list[Plan], folder: Path, processes: int) -> Iterator[None]:
    if processes == 1:
        for plan in planned:
            make_recording(plan, folder)
            yield
        return
    _compile_kernels()
    longest_first = sorted(planned, key=lambda plan: -plan.seconds * plan.sensor.height)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    try:
        for future in as_completed([pool.submit(make_recording, plan, folder) for plan in longest_first]):
            future.result()
            yield
    finally:
        pool.shutdown(cancel_futures=True)


def _compile_kernels() -> None:
    """Fill numba's cache on disk, so that the processes read it instead of compiling the same code each."""
    for _ in record(Street(0, 0.02), make_camera(8, 8)):
        pass


def make_recording(plan: Plan, folder: Path) -> None:
    """Make one recording of a world in its folder."""
    street = Street(plan.seed, plan.seconds, plan.night)
    sensor = plan.sensor
    film = record(street, make_camera(sensor.height, sensor.width, sensor.label_rows))
    if plan.dataset == "ddd17":
        write_ddd17(film, folder / "ddd17" / plan.name, sensor.label_rows)
    else:
        path = folder / "one_mpx" / plan.split / f"{plan.name}_td.dat"
        write_prophesee(film, path, sensor.height, sensor.width)


def _descriptions(chosen: Recipe, planned: list[Plan], world: dict[str, Any]) -> dict[str, dict[str, Any]]:
    described: dict[str, dict[str, Any]] = {}
    for dataset, sensor in (("ddd17", chosen.ddd17_sensor), ("one_mpx", chosen.one_mpx_sensor)):
        splits: dict[str, list[str]] = {}
        for plan in planned:
            if plan.dataset == dataset:
                splits.setdefault(plan.split, []).append(plan.name)
        size = {"height": sensor.height, "width": sensor.width}
        described[dataset] = {"dataset": dataset, "data": "sample", "world": world, "sensor": size, "splits": splits}
    described["ddd17"] |= {
        "label_rows": chosen.ddd17_sensor.label_rows,
        "frame_rate": FRAME_RATE / IMAGE_STRIDE,
        "classes": list(CLASSES),
    }
    return described
