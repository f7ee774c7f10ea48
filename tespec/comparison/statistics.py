"""Gains over a baseline: differences paired by seed, Student's t, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

LEVEL = 0.95  # confidence level of intervals
ALPHA = 1 - LEVEL
ROUNDING = 1e-9  # relative to the largest difference; a smaller deviation is a rounding error
NO_PRETRAINING = -1  # in place of a pre-training seed


class Gain(NamedTuple):
    """Mean of paired differences, its 95 % Student-t interval and the two-sided p-value.

    Values that cannot be computed are NaN; `note` gives the reason.
    """

    mean: float
    low: float
    high: float
    p: float
    n: int
    note: str = ""


UNKNOWN = Gain(math.nan, math.nan, math.nan, math.nan, 0)


class Spread(NamedTuple):
    """Variance between pre-trainings, pooled over methods, with degrees of freedom."""

    observed: float  # variance of mean scores over pre-trainings
    noise: float  # part of it that is explained by fine-tuning
    dof: int
    noise_dof: int


def scores_by_pretraining(runs: pd.DataFrame) -> pd.DataFrame:
    """Arrange the scores of a cell by fine-tuning seed (rows) and pre-training seed (columns).

    Args:
        runs: rows of the frame of `tespec.results` that belong to the cell.

    Returns:
        The scores. Combinations that were not run and scores that are not finite are NaN. Without
        pre-trainings, or if each fine-tuning seed has a different one, the only column is
        `NO_PRETRAINING`.
    """
    starts = runs["pretraining_seed"].astype("float64").fillna(NO_PRETRAINING)
    groups = runs["value"].groupby([runs["seed"], starts])
    # Values that are not finite make a mean NaN, instead of being skipped.
    scores = groups.mean().where(groups.count() == groups.size())
    seeds = scores.index.get_level_values("seed")
    pretrainings = scores.index.get_level_values("pretraining_seed")
    if len(scores) > 1 and seeds.is_unique and pretrainings.is_unique:
        return scores.droplevel("pretraining_seed").to_frame(NO_PRETRAINING)
    return scores.unstack()


def spread_of(cells: Iterable[pd.DataFrame]) -> Spread | None:
    """Estimate the variance between pre-trainings, assumed equal in all cells.

    Pre-trainings and fine-tuning seeds are crossed random effects.

    Args:
        cells: scores as by `scores_by_pretraining`.

    Returns:
        The variance; None if no complete cell has two or more of both.
    """
    parts = []
    for cell in cells:
        scores = cell.to_numpy()  # (seeds, pre-trainings)
        seeds, pretrainings = scores.shape
        if min(seeds, pretrainings) > 1 and np.isfinite(scores).all():
            means = scores.mean(axis=0)
            rest = scores - means - scores.mean(axis=1, keepdims=True) + scores.mean()
            dof = pretrainings - 1
            noise = (rest**2).sum() / (seeds - 1) / seeds
            parts.append((dof * means.var(ddof=1), noise, dof, dof * (seeds - 1)))
    if not parts:
        return None
    observed, noise, dof, noise_dof = map(sum, zip(*parts, strict=True))
    return Spread(observed / dof, noise / dof, dof, noise_dof)


def gain_over(scores: pd.DataFrame, baseline: pd.DataFrame, spread: Spread | None) -> Gain:
    """Compute the gain of one cell over another on their common seeds.

    Args:
        scores: of the cell, as by `scores_by_pretraining`.
        baseline: scores of the other cell.
        spread: variance between pre-trainings.
    """
    scores, baseline = scores.align(baseline, join="inner", axis=0)
    differences = scores.mean(axis=1, skipna=False) - baseline.mean(axis=1, skipna=False)
    counts = [cell.shape[1] for cell in (scores, baseline) if cell.shape[1] > 1]
    gain = paired_gain(differences.tolist(), spread, sum(1 / count for count in counts))
    if not counts:
        return gain
    return gain._replace(note=", ".join(filter(None, [f"{max(counts)} pre-trainings", gain.note])))


def paired_gain(
    differences: Sequence[float], spread: Spread | None = None, weight: float = 0.0
) -> Gain:
    """Compute mean, interval and p-value of differences of independent pairs.

    Args:
        differences: one per fine-tuning seed, averaged over pre-trainings; NaN if a score is
            missing or not finite.
        spread: variance between pre-trainings, added to that over fine-tuning seeds.
        weight: of `spread`: 1 / number of pre-trainings, summed over the methods that have
            multiple.

    >>> gain = paired_gain([1.0, 2.0, 3.0])
    >>> f"{gain.mean:.1f} [{gain.low:.2f}, {gain.high:.2f}]"
    '2.0 [-0.48, 4.48]'
    """
    # Not scipy.stats, which takes a second to import.
    from scipy.special import stdtr, stdtrit

    n = len(differences)
    unknown = UNKNOWN._replace(n=n)
    if not n:
        return unknown._replace(note="no common seed")
    if not all(map(math.isfinite, differences)):
        return unknown._replace(note="a score is missing or not finite")
    mean = math.fsum(differences) / n
    if n == 1:
        return unknown._replace(mean=mean, note="a single seed")
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (n - 1))
    if deviation <= ROUNDING * max(map(abs, differences)):
        return unknown._replace(mean=mean, note="all seeds have the same difference")
    error = deviation / math.sqrt(n)
    dof = float(n - 1)
    if spread and weight and spread.observed > spread.noise:
        # Satterthwaite's degrees of freedom of a sum of variances.
        parts = (
            (error**2, dof),
            (weight * spread.observed, spread.dof),
            (-weight * spread.noise, spread.noise_dof),
        )
        variance = math.fsum(part for part, _ in parts)
        total_dof = variance**2 / math.fsum(part**2 / part_dof for part, part_dof in parts)
        error = math.sqrt(variance)
        # A small difference of two large variances would leave almost no degrees of freedom.
        dof = max(total_dof, min(dof, spread.dof))
    margin = float(stdtrit(dof, (1 + LEVEL) / 2)) * error
    return Gain(mean, mean - margin, mean + margin, 2 * float(stdtr(dof, -abs(mean) / error)), n)


def holm(ps: pd.Series[float]) -> pd.Series[float]:
    """Adjust p-values with Holm's step-down method, in their order; NaN does not count as a test.

    >>> holm(pd.Series([0.01, 0.04, float("nan")])).tolist()
    [0.02, 0.04, nan]
    """
    tested = ps.dropna().sort_values(kind="stable")
    return (tested * np.arange(len(tested), 0, -1)).cummax().clip(upper=1.0).reindex(ps.index)
