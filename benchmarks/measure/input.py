"""Batches of pre-training from the store: what a batch costs a core, and whether a training step waits for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import torch
from torch import Tensor

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.row import Row
from benchmarks.measure.scene import BUSY, SENSOR_1MPX, make_store
from benchmarks.measure.timing import synchronise
from tespec.core.config import pretraining_settings
from tespec.core.settings import Pretraining
from tespec.datasets.lanes import Lanes
from tespec.pretraining.objective import build_objective
from tespec.training.loading import Batches
from tespec.training.loop import Loop

GOAL = 1_100  # frames/s of pre-training on one GPU, of the project's goal of 12 hours
WORKERS = {"cpu": 1, "cuda": 8}
BATCH = {"cpu": (1, 2), "cuda": (8, 15)}  # lanes and segments of the steps that are waited for
STEPS = {"cpu": 3, "cuda": 20}  # after the first one, which waits for the workers to start


def batches(conditions: Conditions) -> Iterator[Row]:
    """Batch building on a core beside RVT's reading, then the share of waiting in training."""
    rate, seconds = conditions.size((BUSY, 2.0), (20_000, 2.0))
    with TemporaryDirectory() as folder:
        root = make_store(Path(folder) / "recording", rate, seconds, conditions.size(SENSOR_1MPX, (64, 64)))
        yield from _building(conditions, root, Path(folder) / "dense.h5")
        for device in conditions.devices:
            yield _waiting(conditions, root, device)
    yield from conditions.without_gpu("input", "waiting")


def _settings(conditions: Conditions, lanes: int, segments: int) -> Pretraining:
    profile = conditions.size("paper", "sample")
    changes = [f"batch_size={lanes}", f"segments={segments}"]
    return pretraining_settings("tespec", profile, changes)


def _building(conditions: Conditions, root: Path, archive: Path) -> Iterator[Row]:
    """As many frames as a lane plays in a step: without augmentation beside stored histograms, and with it."""
    settings = _settings(conditions, 1, conditions.size(8, 2))
    plain = replace(settings, augmentation=replace(settings.augmentation, flip=0.0, zoom=0.0))
    steps = build_objective(plain, root).steps(0)
    batch = steps[0]["histograms"]
    if batch.dtype is not torch.uint8:
        raise RuntimeError(f"histograms leave the loader as {batch.dtype}")
    first = _first_window(plain, steps)
    _store_dense(archive, batch[0].numpy(), first)
    frames, size = plain.segments, f"{batch.shape[-2]}x{batch.shape[-1]} px"
    row = Row(
        "input", "batch", "cpu", f"{frames} frames of {size} from the store, without augmentation",
        "RVT: stored histograms (Blosc, zstd)", work=frames, unit="frames", moved=batch.nbytes,
    )  # fmt: skip
    yield conditions.compare(
        row, lambda: steps[0]["histograms"], lambda: _read_dense(archive, first, frames),
        lambda ours, peers: torch.equal(ours[0], peers),
    )  # fmt: skip
    augmented = build_objective(settings, root).steps(0)
    measured = conditions.compare(
        replace(row, case="augmented batch", size=f"{frames} frames of {size}, flip and zoom", peers=""),
        lambda: augmented[0],
    )
    figures = {"bytes_per_frame": batch.nbytes / frames, "cores_at_goal": GOAL / (measured.rate or 1)}
    yield replace(measured, figures=figures, note=f"{figures['cores_at_goal']:.1f} cores feed {GOAL:,} frames/s")


def _first_window(settings: Pretraining, steps: Any) -> int:
    """The window that the only lane begins with at step 0."""
    lanes: Lanes = steps._lanes
    return lanes.slot(0, 0).first


def _store_dense(path: Path, frames: np.ndarray, first: int) -> None:
    filters = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "data", (first + len(frames), *frames.shape[1:]), "u1", chunks=(1, *frames.shape[1:]), **filters
        )
        data[first:] = frames


def _read_dense(path: Path, first: int, count: int) -> Tensor:
    """As RVT's loader does: the file opened for each access, one compressed chunk a frame."""
    with h5py.File(path) as file:
        return torch.stack([torch.from_numpy(file["data"][first + each]) for each in range(count)])


def _waiting(conditions: Conditions, root: Path, device: torch.device) -> Row:
    """Real steps of the profile, with worker processes; on a CPU on few frames, which changes both times alike."""
    lanes, segments = conditions.size(BATCH[device.type], (1, 2))
    workers = WORKERS[device.type]
    settings = _settings(conditions, lanes, segments)
    objective = build_objective(settings, root)
    loop = Loop(objective.network(), objective.steps(0), settings.optimisation, seed=0, device=device)
    loop.model.train()
    waits, steps = [], []
    count = conditions.size(STEPS[device.type], 1)
    loader = iter(Batches(objective.steps(0), 0, count + 1, workers, pin=device.type == "cuda"))
    for step in range(count + 1):
        began = time.perf_counter()
        batch = next(loader)
        arrived = time.perf_counter()
        loop.train_step({key: value.to(device, non_blocking=True) for key, value in batch.items()})
        synchronise(device)
        if step:
            waits.append(arrived - began)
            steps.append(time.perf_counter() - began)
    frames = lanes * segments
    return Row(
        "input", "waiting", device.type, f"{count} steps of {lanes} x {segments} frames, {settings.profile} profile, "
        f"{workers} workers", seconds=statistics.median(steps), runs=count, work=frames, unit="frames",
        figures={"wait_share": max(wait / step for wait, step in zip(waits, steps, strict=True))},
    )  # fmt: skip
