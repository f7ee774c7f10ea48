"""How sure a number is: Student-t intervals over seeds, bootstrap intervals over recordings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """Where a mean lies with a probability of 95 %."""

    low: float
    high: float


@dataclass(frozen=True)
class Effect:
    """A paired difference.

    Attributes:
        value: mean difference over seeds of the overall numbers; positive where the first is larger.
        seeds: how many both have.
        recordings: how many both have in all of those seeds.
        over_seeds: Student-t interval of the difference, None for fewer than two seeds.
        over_recordings: bootstrap interval of the mean difference of a recording, None for fewer than two.
    """

    value: float
    seeds: int
    recordings: int
    over_seeds: Interval | None
    over_recordings: Interval | None


def student_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Student-t interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    # Scientific Python's special functions take longer to import than a table takes to print.
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, (1 + level) / 2))
    margin = quantile * stdev(values) / math.sqrt(len(values))
    return Interval(mean(values) - margin, mean(values) + margin)


def welch_interval(parts: Sequence[tuple[float, Sequence[float]]], level: float = LEVEL) -> Interval | None:
    """Interval of a weighted sum of means of independent samples, by Welch and Satterthwaite.

    Args:
        parts: weight and values of each sample.
        level: probability that the sum lies in it.

    Returns:
        None where a sample has fewer than two values, or none of them varies.
    """
    if any(len(values) < 2 for _, values in parts):
        return None
    from scipy.special import stdtrit

    shares = [weight**2 * stdev(values) ** 2 / len(values) for weight, values in parts]
    if not sum(shares):
        return None
    freedom = sum(shares) ** 2 / sum(
        share**2 / (len(values) - 1) for share, (_, values) in zip(shares, parts, strict=True)
    )
    total = sum(weight * mean(values) for weight, values in parts)
    margin = float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(sum(shares))
    return Interval(total - margin, total + margin)


def bootstrap_interval(
    values: Sequence[float], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Percentile bootstrap interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    means = np.asarray(values, dtype=np.float64)[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def paired_effect(
    ours: Mapping[int, float],
    theirs: Mapping[int, float],
    our_recordings: Mapping[int, Mapping[str, float]],
    their_recordings: Mapping[int, Mapping[str, float]],
) -> Effect | None:
    """The difference of two methods, paired by seed and by recording; None where they share no seed.

    The unit of the bootstrap is the recording, since frames of one recording resemble each other: differences of a
    recording are averaged over seeds first.

    Args:
        ours: overall number of the first by seed.
        theirs: that of the second.
        our_recordings: numbers of each recording of the first, by seed.
        their_recordings: those of the second.
    """
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    numbers = [each.get(seed, {}) for seed in seeds for each in (our_recordings, their_recordings)]
    shared = sorted(set.intersection(*map(set, numbers)))
    by_recording = [
        mean(our_recordings[seed][name] - their_recordings[seed][name] for seed in seeds) for name in shared
    ]
    return Effect(
        mean(differences), len(seeds), len(shared), student_interval(differences), bootstrap_interval(by_recording)
    )
