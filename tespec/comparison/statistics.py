"""Gains over a baseline: differences paired by seed, Student-t intervals and tests, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

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
    unknown = Gain(math.nan, math.nan, math.nan, math.nan, n)
    if not n:
        return unknown._replace(note="no common seed")
    if not all(math.isfinite(each) for each in differences):
        return unknown._replace(note="a score is not finite")
    mean = math.fsum(differences) / n
    if n == 1:
        return unknown._replace(mean=mean, note="a single seed")
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (n - 1))
    if deviation <= ROUNDING * max(map(abs, differences)):
        return unknown._replace(mean=mean, note="all seeds differ by the same")
    error = deviation / math.sqrt(n)
    margin = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    return Gain(mean, mean - margin, mean + margin, 2 * float(stdtr(n - 1, -abs(mean) / error)), n)


def holm(ps: pd.Series[float]) -> pd.Series[float]:
    """P-values adjusted by Holm's step-down rule, in the order given; NaN stays and does not count as a test."""
    tested = ps.dropna().sort_values(kind="stable")
    return (tested * np.arange(len(tested), 0, -1)).cummax().clip(upper=1.0).reindex(ps.index)
