"""Gains over a baseline: differences paired by seed, Student-t intervals and tests, Holm correction."""

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
    """Mean of paired differences, its 95 % Student-t interval, and the p-value of the paired t-test (two-sided).

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
    """Variance of mean scores over pre-trainings, pooled over methods, and the part explained by fine-tuning noise."""

    observed: float
    noise: float
    dof: int
    noise_dof: int


def scores_by_pretraining(runs: pd.DataFrame) -> pd.DataFrame:
    """Arrange the scores of a cell by fine-tuning seed (rows) and pre-training seed (columns).

    Combinations that were not run and scores that are not finite are NaN. Without pre-trainings, or
    if each fine-tuning seed has a different one, the only column is `NO_PRETRAINING`.
    """
    starts = runs["pretraining_seed"].astype("float64").fillna(NO_PRETRAINING)
    groups = runs["value"].groupby([runs["seed"], starts])
    # Values that are not finite make a mean NaN, instead of being skipped.
    scores = groups.mean().where(groups.count() == groups.size())
    seeds, pretrainings = (
        scores.index.get_level_values(level) for level in ("seed", "pretraining_seed")
    )
    if len(scores) > 1 and seeds.is_unique and pretrainings.is_unique:
        return scores.droplevel("pretraining_seed").to_frame(NO_PRETRAINING)
    return scores.unstack()


def spread_of(cells: Iterable[pd.DataFrame]) -> Spread | None:
    """Estimate the variance between pre-trainings, assumed equal in all cells (see `scores_by_pretraining`).

    Pre-trainings and fine-tuning seeds are crossed random effects. None if no complete cell has two
    or more of both.
    """
    observed, noise, dof, noise_dof = 0.0, 0.0, 0, 0
    for cell in cells:
        scores = cell.to_numpy()
        seeds, pretrainings = scores.shape
        if min(seeds, pretrainings) > 1 and np.isfinite(scores).all():
            means = scores.mean(axis=0)
            rest = scores - means - scores.mean(axis=1, keepdims=True) + scores.mean()
            observed += (pretrainings - 1) * means.var(ddof=1)
            noise += (rest**2).sum() / (seeds - 1) / seeds
            dof += pretrainings - 1
            noise_dof += (pretrainings - 1) * (seeds - 1)
    return Spread(observed / dof, noise / dof, dof, noise_dof) if dof else None


def gain_over(ours: pd.DataFrame, theirs: pd.DataFrame, spread: Spread | None) -> Gain:
    """Compute the gain of one cell over another (see `scores_by_pretraining`) on their common seeds."""
    ours, theirs = ours.align(theirs, join="inner", axis=0)
    differences = ours.mean(axis=1, skipna=False) - theirs.mean(axis=1, skipna=False)
    several = [cell.shape[1] for cell in (ours, theirs) if cell.shape[1] > 1]
    gain = paired_gain(differences.tolist(), spread, sum(1 / each for each in several))
    if not several:
        return gain
    return gain._replace(note=", ".join(filter(None, [f"{max(several)} pre-trainings", gain.note])))


def paired_gain(
    differences: Sequence[float], spread: Spread | None = None, share: float = 0.0
) -> Gain:
    """Compute mean, interval and p-value of differences of independent pairs.

    Args:
        differences: one per fine-tuning seed, averaged over pre-trainings; NaN if a score is
            missing or not finite.
        spread: variance between pre-trainings, added to that over fine-tuning seeds.
        share: weight of `spread`: 1 / number of pre-trainings, summed over the methods that have
            multiple.
    """
    # Not scipy.stats, which takes a second to import.
    from scipy.special import stdtr, stdtrit

    n = len(differences)
    unknown = UNKNOWN._replace(n=n)
    if not n:
        return unknown._replace(note="no common seed")
    if not all(math.isfinite(each) for each in differences):
        return unknown._replace(note="a score is missing or not finite")
    mean = math.fsum(differences) / n
    if n == 1:
        return unknown._replace(mean=mean, note="a single seed")
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (n - 1))
    if deviation <= ROUNDING * max(map(abs, differences)):
        return unknown._replace(mean=mean, note="all seeds have the same difference")
    error, dof = deviation / math.sqrt(n), float(n - 1)
    if spread and share and spread.observed > spread.noise:
        # Satterthwaite's degrees of freedom of a sum of variances.
        parts = (
            (error**2, dof),
            (share * spread.observed, spread.dof),
            (-share * spread.noise, spread.noise_dof),
        )
        variance = math.fsum(each for each, _ in parts)
        found = variance**2 / math.fsum(each**2 / freedom for each, freedom in parts)
        # A small difference of two large variances would leave almost no degrees of freedom.
        error, dof = math.sqrt(variance), max(found, min(dof, spread.dof))
    margin = float(stdtrit(dof, (1 + LEVEL) / 2)) * error
    return Gain(mean, mean - margin, mean + margin, 2 * float(stdtr(dof, -abs(mean) / error)), n)


def holm(ps: pd.Series[float]) -> pd.Series[float]:
    """Adjust p-values with Holm's step-down method, keeping their order; NaN stays NaN and does not count as a test."""
    tested = ps.dropna().sort_values(kind="stable")
    return (tested * np.arange(len(tested), 0, -1)).cummax().clip(upper=1.0).reindex(ps.index)
