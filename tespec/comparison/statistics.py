"""Gains over a baseline: differences paired by seed, Student-t intervals and tests, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.95  # of intervals
ALPHA = 1 - LEVEL
ROUNDING = 1e-9  # of the largest difference; a smaller deviation is rounding


class Gain(NamedTuple):
    """Mean of paired differences, its 95 % Student-t interval, and p of the paired t-test (two-sided).

    All but `n` are NaN where they cannot be computed; `note` says why.
    """

    mean: float
    low: float
    high: float
    p: float
    n: int
    note: str = ""


def paired_gain(differences: Sequence[float]) -> Gain:
    """Mean, interval and p of differences of independent pairs.

    Args:
        differences: one for each pair, NaN where a score was not finite.
    """
    # Not scipy.stats, which takes a second to import.
    from scipy.special import stdtr, stdtrit

    n = len(differences)
    if not n:
        return Gain(math.nan, math.nan, math.nan, math.nan, 0, "no common seed")
    if not all(math.isfinite(each) for each in differences):
        return Gain(math.nan, math.nan, math.nan, math.nan, n, "a score is not finite")
    mean = math.fsum(differences) / n
    if n == 1:
        return Gain(mean, math.nan, math.nan, math.nan, n, "a single seed")
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (n - 1))
    if deviation <= ROUNDING * max(map(abs, differences)):
        return Gain(mean, math.nan, math.nan, math.nan, n, "all seeds differ by the same")
    error = deviation / math.sqrt(n)
    margin = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    return Gain(mean, mean - margin, mean + margin, 2 * float(stdtr(n - 1, -abs(mean) / error)), n)


def holm(ps: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's step-down rule, in the order given; NaN stays and does not count as a test."""
    tested = sorted((index for index, p in enumerate(ps) if not math.isnan(p)), key=lambda index: ps[index])
    adjusted, largest = [math.nan] * len(ps), 0.0
    for step, index in enumerate(tested):
        largest = max(largest, min(1.0, ps[index] * (len(tested) - step)))
        adjusted[index] = largest
    return adjusted
