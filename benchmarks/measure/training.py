"""The stages of training: batches, optimizer, forecast, and how time and memory grow with the work."""

from __future__ import annotations

import pickle
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count as numbers
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import h5py
import hdf5plugin
import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.events import BINS, BUSY, SENSOR_1MPX, WINDOW_US, make_store
from benchmarks.measure.networks import histograms, objective_batch, objective_network
from benchmarks.measure.rows import Row, synchronise
from tespec.core.config import pretraining_settings
from tespec.core.settings import Downsample, Pretraining
from tespec.datasets.lanes import Lanes
from tespec.datasets.recording import Recording
from tespec.datasets.unlabelled import divide
from tespec.events.spatial import apply_maps
from tespec.events.store import StoreStream, open_store
from tespec.events.windows import window_histograms
from tespec.models import EventSwin
from tespec.models.execution import Execution, execute
from tespec.pretraining.objective import build_objective
from tespec.runs.cost import Way, blueprint_of_pretraining, planned
from tespec.runs.meta import bytes_saved_for_backward
from tespec.training.device import be_deterministic, is_fast
from tespec.training.loading import Batches
from tespec.training.loop import Loop
from tespec.training.optimizer import OPTIMIZERS

SEGMENTS, LANES = 15, 8  # of the paper's pre-training
WINDOWS = 1_200  # of a recording of a minute


def play_steps(count: int) -> tuple[Callable[[], object], int]:
    """What the lanes of one step after the other play, of `count` recordings; and the bytes that a worker is sent."""
    lengths = np.random.default_rng(0).integers(WINDOWS // 2, WINDOWS, count)
    lanes = Lanes(tuple(lengths.tolist()), SEGMENTS, LANES, seed=0)
    step = numbers()

    def play() -> object:
        now = next(step)
        return [lanes.slot(lane, now) for lane in range(LANES)]

    return play, len(pickle.dumps(lanes))


def open_folder(folder: Path, count: int) -> Callable[[], object]:
    """Opens `count` recordings of a fifth of a second that are written below `folder`."""
    first = make_store(folder / "recording0.store", 5_000, 0.2, (24, 32))
    for number in range(1, count):
        shutil.copytree(first, folder / f"recording{number}.store")
    return lambda: divide(folder, 50.0, Downsample(1, "nearest"))


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
        replace(
            row, case="augmented batch", size=f"{frames} frames of {size}, flip and zoom", peers="counted, then mapped"
        ),
        lambda: augmented[0]["histograms"],
        lambda: _counted_then_mapped(augmented),
        torch.equal,
    )
    figures = {"bytes_per_frame": batch.nbytes / frames, "cores_at_goal": GOAL / (measured.rate or 1)}
    yield replace(measured, figures=figures, note=f"{figures['cores_at_goal']:.1f} cores feed {GOAL:,} frames/s")
    packed = build_objective(settings, root).steps(0)
    packed.count_on_device()
    sent = packed[0]
    measured = conditions.compare(
        replace(
            row, case="batch for the device", size=f"{frames} frames of {size}, flip and zoom, counted on the device",
            moved=sum(each.nbytes for each in sent.values()), peers="histograms of the same",
        ),
        lambda: packed[0], lambda: augmented[0],
        lambda ours, peers: torch.equal(packed.arrived(ours)["histograms"], peers["histograms"]),
    )  # fmt: skip
    figures = {"bytes_per_frame": sent["words"].nbytes / frames, "cores_at_goal": GOAL / (measured.rate or 1)}
    yield replace(measured, figures=figures, note=f"{figures['cores_at_goal']:.1f} cores feed {GOAL:,} frames/s")


def _counted_then_mapped(steps: Any) -> Tensor:
    """The histograms of step 0, all events counted before the image is flipped and zoomed."""

    def fill(recording: Recording, out: np.ndarray, first: int, bins: int, rule: str, view: Any) -> None:
        out[...] = apply_maps(recording.histograms(first, len(out), bins, rule), view, 0)

    with patch.object(Recording, "fill", fill):
        histograms: Tensor = steps[0]["histograms"]
    return histograms


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


class Nothing(torch.utils.data.Dataset[Any]):
    """No data: a loop's steps are taken one by one."""


STEP = {"paper": (8, 15, (360, 640)), "sample": (2, 3, (96, 160))}  # lanes, segments and size of the histograms
HOURS = 400_000 / 3600  # of the paper's steps, each of a second


def training_step(conditions: Conditions) -> Iterator[Row]:
    """A whole step of the paper's pre-training on one GPU, optimizer included, its batch on the device."""
    device = conditions.devices[-1]
    profile = conditions.size("paper", "sample")
    lanes, segments, size = STEP[profile]
    torch.manual_seed(0)
    network, settings = objective_network(profile, size)
    # As a run computes on such a device where nothing is said.
    be_deterministic(False, device)
    execute(network, Execution(), is_fast(device, False))
    loop = Loop(network, Nothing(), settings.optimisation, seed=0, device=device)
    loop.model.train()
    batch = objective_batch(network, lanes, segments, size, device)
    with FlopCounterMode(display=False) as flops:
        loop.train_step(batch)
    loop.train_step(batch)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    row = Row(
        "training step", f"{profile} profile", device.type,
        f"{lanes} x {segments} frames of {size[0]}x{size[1]} px, {loop.settings.precision}",
        work=lanes * segments, unit="frames", computed=flops.get_total_flops(),
    )  # fmt: skip
    row = conditions.compare(row, lambda: loop.train_step(batch), budget=60.0)
    figures = {"flops": row.computed, "flops_per_second": row.computed / (row.seconds or 1)}
    if device.type == "cuda":
        figures["peak_bytes"] = float(torch.cuda.max_memory_allocated(device))
        figures["dry_run_bytes"] = float(planned(settings, settings.dataset).cost(Way()).training)
        figures["hours_of_400000_steps"] = HOURS * (row.seconds or 0)
    yield replace(row, figures=figures)


PASSES = 7 * 4  # bytes of a weight: weight and both moments read and written, gradient read


def optimizer(conditions: Conditions) -> Iterator[Row]:
    """The optimizer that the recipes name."""
    profile, size = conditions.size(("paper", (360, 640)), ("sample", (32, 32)))
    for device in conditions.devices:
        torch.manual_seed(0)
        network, settings = objective_network(profile, size)
        shapes = [each.shape for each in network.parameters() if each.requires_grad]
        kind = OPTIMIZERS[settings.optimisation.optimizer]
        ways: list[Any] = []
        for fused in (True, False):
            torch.manual_seed(0)
            weights = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            ways.append((weights, kind(weights, lr=1e-4, fused=fused, foreach=None if fused else True)))
        count = sum(shape.numel() for shape in shapes)

        def step(way: int, ways: list[Any] = ways) -> torch.Tensor:
            weights, chosen = ways[way]
            chosen.step()
            return torch.cat([weight.detach().flatten()[:16] for weight in weights])

        row = Row(
            "optimizer", "Adam", device.type, f"{count:,} weights in {len(shapes)} tensors", "foreach Adam",
            work=count, unit="weights", moved=PASSES * count,
        )  # fmt: skip
        yield conditions.compare(
            row, lambda: step(0), lambda: step(1), lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        )
    yield from conditions.without_gpu("optimizer", "Adam")


RATE, SECONDS, SENSOR = 1_000_000, 4.0, (360, 640)
TIMED_STEPS = 8  # after one to warm up


def forecasts(conditions: Conditions) -> Iterator[Row]:
    """A pre-training of the sample profile, its batches built by the training process."""
    rate = conditions.size(RATE, 20_000)
    with TemporaryDirectory() as folder:
        root = make_store(Path(folder) / "recording", rate, SECONDS, SENSOR)
        settings = pretraining_settings("tespec", "sample", conditions.size((), ("segments=2", "batch_size=1")))
        frames = settings.batch_size * settings.segments
        for device in conditions.devices:
            task = build_objective(settings, root)
            steps = task.steps(0)
            told = blueprint_of_pretraining(task).cost(Way(half=device.type == "cuda", fused=False))
            loop = Loop(task.network(), steps, settings.optimisation, seed=0, device=device)
            loop.model.train()
            taken = []
            batch = {name: value.to(device) for name, value in steps[0].items()}
            weights = sum(each.nbytes for each in loop.model.parameters())
            saved = bytes_saved_for_backward(lambda: loop.train_step(batch)) - weights  # noqa: B023  # called at once
            for step in range(1, 1 + conditions.size(TIMED_STEPS, 1)):
                began = time.perf_counter()
                loop.train_step({name: value.to(device) for name, value in steps[step].items()})
                synchronise(device)
                taken.append(time.perf_counter() - began)
            seconds = statistics.median(taken)
            figures = {"tflop_per_second": told.flops / seconds / 1e12, "kept_error": told.kept / saved - 1}
            if device.type == "cuda":
                figures["peak_error"] = told.training / torch.cuda.max_memory_allocated(device) - 1
            yield Row(
                "forecast", "sample profile", device.type, f"steps of {frames} segments, counted on meta",
                seconds=seconds, runs=len(taken), work=frames, unit="frames", figures=figures,
            )  # fmt: skip
    yield from conditions.without_gpu("forecast", "sample profile")


BUDGET = 2.0  # s of the timed runs of one point
LAST = 3  # points of a series that its exponent is taken from: the small ones are all fixed cost
SIZES = ((96, 160), (192, 320), (384, 640))
LENGTHS = (1, 2, 4, 8, 16)
BATCHES = (1, 2, 4, 8)
RATES = (100_000, 1_000_000, 10_000_000, 100_000_000)
FEW_WINDOWS = 4
RECORDINGS = (10, 100, 1_000, 10_000, 100_000)
FOLDERS = (300, 1_000, 3_000)  # more than are kept open at once


class Point(NamedTuple):
    """One size of a series.

    Attributes:
        shown: in words.
        work: that it is measured against.
        unit: of the work.
        run: the work.
        memory: bytes it takes.
    """

    shown: str
    work: float
    unit: str
    run: Callable[[], object]
    memory: float


def growth(conditions: Conditions) -> Iterator[Row]:
    """A row for each size of each series, and one with the exponents of its time and memory."""
    for name, points in (
        ("resolution", _steps([(1, 2, size) for size in conditions.size(SIZES, SIZES[:1])])),
        ("sequence length", _steps([(1, length, SIZES[0]) for length in conditions.size(LENGTHS, LENGTHS[:2])])),
        ("batch", _steps([(lanes, 2, SIZES[0]) for lanes in conditions.size(BATCHES, BATCHES[:2])])),
        ("event rate", _rates(conditions)),
        ("recordings, a step", _recordings(conditions.size(RECORDINGS, RECORDINGS[:2]))),
        ("recordings, opening", _folders(conditions.size(FOLDERS, FOLDERS[:1]))),
    ):
        yield from _series(conditions, name, points)


def _series(conditions: Conditions, name: str, points: Iterator[Point]) -> Iterator[Row]:
    measured = []
    for point in points:
        row = Row(
            "growth", f"{name}: {point.shown}", "cpu", work=point.work, unit=point.unit,
            figures={"memory_bytes": point.memory},
        )  # fmt: skip
        measured.append(conditions.compare(row, point.run, budget=BUDGET))
        yield measured[-1]
    if len(measured) > 1:
        work = [row.work for row in measured]
        seconds = exponent(work, [row.seconds or 0.0 for row in measured])
        memory = exponent(work, [row.figures["memory_bytes"] for row in measured])
        note = "time and memory grow with the work to the power of these"
        yield Row("growth", name, "cpu", figures={"exponent": seconds, "memory_exponent": memory}, note=note)


def exponent(work: Sequence[float], cost: Sequence[float]) -> float:
    """Slope of the last points of cost over work, both logarithmic; 1 is growth with the work."""
    pairs = list(zip(work, cost, strict=True))[-LAST:]
    if pairs[0][0] == pairs[-1][0] or min(each for _, each in pairs) <= 0:
        return 0.0
    x, y = (np.log([pair[side] for pair in pairs]) for side in (0, 1))
    return float(np.polyfit(x, y, 1)[0])


def _steps(shapes: Sequence[tuple[int, int, tuple[int, int]]]) -> Iterator[Point]:
    """Forward and backward passes of the sample profile's backbone; memory is what is kept for the backward pass."""
    for lanes, segments, (height, width) in shapes:
        torch.manual_seed(0)
        backbone = EventSwin(arch="micro", img_size=(height, width))
        counts = histograms(lanes, segments, 2 * BINS, height, width)

        def step(backbone: EventSwin = backbone, counts: torch.Tensor = counts) -> None:
            backbone.zero_grad()
            sum((each.square().mean() for each in backbone(counts)[0]), torch.zeros(())).backward()

        shown = f"{lanes} x {segments} frames of {height}x{width} px"
        pixels = lanes * segments * height * width
        yield Point(shown, pixels, "px", step, bytes_saved_for_backward(step))


def _rates(conditions: Conditions) -> Iterator[Point]:
    """Histograms of 50 ms from the packed store; memory is what lies on disk and is mapped."""
    for rate in conditions.size(RATES, (20_000, 40_000)):
        seconds = FEW_WINDOWS * WINDOW_US / 1e6
        with TemporaryDirectory() as folder:
            sensor = conditions.size(SENSOR_1MPX, (24, 32))
            stream = open_store(make_store(Path(folder) / "recording", rate, seconds, sensor))
            borders = [WINDOW_US * each for each in range(FEW_WINDOWS + 1)]
            stored = sum(file.stat().st_size for file in (Path(folder) / "recording").iterdir())

            def cut(stream: StoreStream = stream, borders: list[int] = borders) -> object:
                return window_histograms(stream, borders, BINS)

            yield Point(f"{rate / 1e6:g} M events/s", stream.count, "events", cut, stored)


def _recordings(counts: Sequence[int]) -> Iterator[Point]:
    """Who plays what, of an index of recordings without files; the work of a step does not depend on their number."""
    for count in counts:
        play, memory = play_steps(count)
        yield Point(f"{count:,}", count, "recordings", play, memory)


def _folders(counts: Sequence[int]) -> Iterator[Point]:
    """Finding, opening and dividing small packed recordings on disk."""
    for count in counts:
        with TemporaryDirectory() as folder:
            run = open_folder(Path(folder), count)
            stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            yield Point(f"{count:,}", count, "recordings", run, stored)
