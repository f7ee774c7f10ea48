"""Measure the hot paths side by side with a plain re-implementation of how they are usually written.

    python benchmarks/speed.py [--runs 9] [--json FILE]

Each pair is first checked to give the same result. Figures are medians of alternating runs on one thread; they compare
within one call on one machine, and say nothing about another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cli import Parser, run

SENSOR = (360, 640)
BINS = 10
WINDOW_US = 50_000


@dataclass(frozen=True)
class Result:
    """Median seconds of the harness's way and of the plain way, and the work done in one run."""

    name: str
    seconds: float
    plain_seconds: float
    work: float
    unit: str

    @property
    def ratio(self) -> float:
        """How many times faster the harness's way is."""
        return self.plain_seconds / self.seconds


def measure(
    name: str, ours: Callable[[], Any], plain: Callable[[], Any], same: Callable[[Any, Any], bool], work: float,
    unit: str, runs: int,
) -> Result:  # fmt: skip
    """Check that both ways agree, then time them in turn; the check warms both up."""
    if not same(ours(), plain()):
        raise RuntimeError(f"{name}: the two ways differ")
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for times, way in zip(seconds, (ours, plain), strict=True):
            began = time.perf_counter()
            way()
            times.append(time.perf_counter() - began)
    return Result(name, statistics.median(seconds[0]), statistics.median(seconds[1]), work, unit)


def histogram_of_events(runs: int) -> Result:
    """One window of 450,000 events, against accumulation by `put_` as in RVT's loader."""
    import torch

    from tespec.events.histogram import event_histogram

    generator, count = np.random.default_rng(0), 450_000
    height, width = SENSOR
    x = generator.normal(width / 2, width / 5, count).clip(0, width - 1).astype(np.uint16)
    y = generator.normal(height / 2, height / 6, count).clip(0, height - 1).astype(np.uint16)
    t = np.sort(generator.integers(0, WINDOW_US, count))
    p = generator.integers(0, 2, count).astype(np.uint8)

    def ours() -> Any:
        return event_histogram(x, y, t, p, t_start=0, t_end=WINDOW_US, bins=BINS, height=height, width=width)

    def plain() -> Any:
        columns, rows, times, polarity = (torch.from_numpy(values.astype(np.int64)) for values in (x, y, t, p))
        counts = torch.zeros(2 * BINS * height * width, dtype=torch.int16)
        cell = ((polarity * BINS + times * BINS // WINDOW_US) * height + rows) * width + columns
        counts.put_(cell, torch.ones_like(cell, dtype=torch.int16), accumulate=True)
        return counts.clamp_(max=10).to(torch.uint8).view(2 * BINS, height, width)

    return measure("histogram", ours, plain, lambda a, b: np.array_equal(a, b.numpy()), count / 1e6, "M events", runs)


def intensity_of_a_step(runs: int) -> Result:
    """The target of a pre-training step, against one pass over the image per bin."""
    import torch

    from tespec.events.intensity import estimate_intensity

    lanes, segments = 2, 15
    shape = (lanes, segments, 2 * BINS, *SENSOR)
    histograms = torch.poisson(torch.full(shape, 0.05), generator=torch.Generator().manual_seed(0)).to(torch.uint8)

    def plain() -> Any:
        image, video = torch.zeros(lanes, *SENSOR), []
        for segment in range(segments):
            for k in range(BINS):
                negative = histograms[:, segment, k].float()
                positive = histograms[:, segment, BINS + k].float()
                events = (negative + positive).sum((1, 2), keepdim=True)
                image = torch.exp(-5.0 * 0.005 * events / 5000.0) * image + positive - negative
            video.append(image)
        return torch.stack(video, dim=1)

    return measure(
        "intensity target", lambda: estimate_intensity(histograms)[0], plain,
        lambda a, b: torch.allclose(a, b, atol=1e-4), lanes * segments, "frames", runs,
    )  # fmt: skip


def recurrent_training_step(runs: int) -> Result:
    """Forward and backward of the micro backbone over a sequence, stage by stage against frame by frame."""
    import torch

    from tespec.models import EventSwin

    lanes, segments = 4, 6
    torch.manual_seed(0)
    backbone = EventSwin(arch="micro", img_size=(96, 160))
    histograms = torch.randint(0, 3, (lanes, segments, 2 * BINS, 96, 160), dtype=torch.uint8)

    def step(features: list[Any]) -> Any:
        backbone.zero_grad()
        sum(feature.square().mean() for feature in features).backward()
        return features[-1].detach()

    def ours() -> Any:
        return step(backbone(histograms)[0])

    def plain() -> Any:
        state, frames = None, []
        for segment in range(segments):
            features, state = backbone.step(histograms[:, segment], state)
            frames.append(features)
        return step([torch.stack(each, dim=1) for each in zip(*frames, strict=True)])

    return measure(
        "recurrent training step", ours, plain, lambda a, b: torch.allclose(a, b, atol=1e-5), lanes * segments,
        "frames", runs,
    )  # fmt: skip


def main() -> None:
    """Measure everything and print a table."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="timed runs of each way (default 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures and the machine")
    options = parser.parse_args()
    import torch

    from tespec.comparison.environment import environment

    torch.set_num_threads(1)
    results = []
    print(f"{'':24}{'harness':>12}{'plain':>12}{'ratio':>8}   rate")
    for stage in (histogram_of_events, intensity_of_a_step, recurrent_training_step):
        result = stage(options.runs)
        results.append(result)
        rate = f"{result.work / result.seconds:.4g} {result.unit}/s"
        milliseconds = f"{1e3 * result.seconds:9.2f} ms{1e3 * result.plain_seconds:9.2f} ms"
        print(f"{result.name:24}{milliseconds}{result.ratio:8.1f}   {rate}", flush=True)
    if options.json:
        ledger = {"environment": environment("cpu, 1 thread"), "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(ledger, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(run(main))
