"""Wall-clock times of ways to do the same thing, taken in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

FEWEST = 3  # runs, however long they take

Way = Callable[[], Any]


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(way: Way, device: torch.device) -> float:
    """Seconds of one run, with everything that the device still has to do for it."""
    synchronise(device)
    began = time.perf_counter()
    way()
    synchronise(device)
    return time.perf_counter() - began


def alternate(ways: Sequence[Way], device: torch.device, runs: int, budget: float) -> list[list[float]]:
    """Seconds of each way, run in turn, so that a slower spell of the machine meets all of them.

    Args:
        ways: already warm.
        device: waited for.
        runs: of each way.
        budget: seconds after which no further round begins; `FEWEST` rounds are run in any case.
    """
    taken: list[list[float]] = [[] for _ in ways]
    began = time.perf_counter()
    for done in range(runs):
        if done >= FEWEST and time.perf_counter() - began > budget:
            break
        for times, way in zip(taken, ways, strict=True):
            times.append(seconds_of(way, device))
    return taken


def spread(seconds: Sequence[float]) -> float:
    """Distance between the quartiles as a share of the median."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle
