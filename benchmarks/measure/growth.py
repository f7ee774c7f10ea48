"""How time and memory grow with the size of the work; nothing may grow faster than its work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.histogram import BINS, WINDOW_US
from benchmarks.measure.networks import histograms
from benchmarks.measure.recordings import open_folder, play_steps
from benchmarks.measure.row import Row
from benchmarks.measure.scene import SENSOR_1MPX, make_store
from tespec.events.store import StoreStream, open_store
from tespec.events.windows import window_histograms
from tespec.models import EventSwin
from tespec.runs.cost import bytes_saved_for_backward

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
