"""How sure a number is: intervals of means, and contrasts of cells with the variance of all cells of a task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
RESAMPLES = 10_000
ROUNDING = 1e-9  # of the largest score; residuals below it are no variance

# Scores of one task by cell and seed.
Scores = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Interval:
    """Where a number lies with a stated probability."""

    low: float
    high: float


def student_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Student-t interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    # Scientific Python's special functions take longer to import than a table takes to print.
    from scipy.special import stdtrit

    margin = float(stdtrit(len(values) - 1, (1 + level) / 2)) * stdev(values) / math.sqrt(len(values))
    return Interval(mean(values) - margin, mean(values) + margin)


@dataclass(frozen=True)
class Estimate:
    """A weighted sum of cells, and how sure it is.

    Attributes:
        effect: the sum.
        error: its standard error; infinite where nothing says how large it is.
        freedom: degrees of freedom of the error; 0 where it is infinite.
    """

    effect: float
    error: float
    freedom: float

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Student-t interval; None without degrees of freedom."""
        if not self.freedom:
            return None
        from scipy.special import stdtrit

        margin = float(stdtrit(self.freedom, (1 + level) / 2)) * self.error
        return Interval(self.effect - margin, self.effect + margin)

    def p_above(self) -> float:
        """One-sided p of the null hypothesis that the true effect is 0 or less; 1 without degrees of freedom."""
        return self._tail(-self.effect)

    def p_below(self) -> float:
        """One-sided p of the null hypothesis that the true effect is 0 or more; 1 without degrees of freedom."""
        return self._tail(self.effect)

    def _tail(self, effect: float) -> float:
        if not self.freedom:
            return 1.0
        from scipy.special import stdtr

        return float(stdtr(self.freedom, effect / self.error))

    def detectable(self, power: float = POWER, level: float = ALPHA) -> float | None:
        """The true effect that a one-sided test at `level` finds with probability `power`; None if there is no test."""
        if not self.freedom:
            return None
        from scipy.special import nctdtrinc, stdtrit

        critical = float(stdtrit(self.freedom, 1 - level))
        return float(nctdtrinc(self.freedom, 1 - power, critical)) * self.error


@dataclass(frozen=True, eq=False)
class Design:
    """Which cells were run with which seeds, solved once for the model score = cell + seed.

    Attributes:
        columns: number of each cell's coefficient.
        solution: coefficients, those of the cells and then of the seeds, from scores: (coefficients, scores).
        spread: their covariance in units of the residual variance.
        seen: projects on what the scores can tell of the coefficients.
        freedom: degrees of freedom of the residuals.
    """

    columns: Mapping[str, int]
    matrix: NDArray[np.float64]
    solution: NDArray[np.float64]
    spread: NDArray[np.float64]
    seen: NDArray[np.float64]
    freedom: int


@lru_cache(maxsize=64)
def _design(members: tuple[tuple[str, int], ...]) -> Design:
    import numpy as np

    columns = {cell: index for index, cell in enumerate(dict.fromkeys(cell for cell, _ in members))}
    seeds = {seed: len(columns) + index for index, seed in enumerate(sorted({seed for _, seed in members}))}
    matrix = np.zeros((len(members), len(columns) + len(seeds)))
    for row, (cell, seed) in enumerate(members):
        matrix[row, [columns[cell], seeds[seed]]] = 1.0
    solution = np.linalg.pinv(matrix)
    freedom = len(members) - int(np.linalg.matrix_rank(matrix))
    return Design(columns, matrix, solution, solution @ solution.T, solution @ matrix, freedom)


@dataclass(frozen=True, eq=False)
class Fit:
    """The least-squares fit of score = cell + seed.

    Attributes:
        scores: what was fitted.
        design: which cells were run with which seeds.
        coefficients: of cells and seeds.
        deviation: standard deviation of the residuals, pooled over all cells.
        freedom: degrees of freedom of the deviation; 0 where nothing varies.
    """

    scores: Scores
    design: Design
    coefficients: NDArray[np.float64]
    deviation: float
    freedom: int

    def mean(self, cell: str) -> float:
        """Mean of a cell over its own seeds."""
        return mean(self.scores[cell].values())

    def estimate(self, weights: Mapping[str, float]) -> Estimate | None:
        """A weighted sum of cells whose weights add up to 0; None where the scores cannot tell it from the seeds."""
        import numpy as np

        if not set(weights) <= set(self.design.columns):
            return None
        vector = np.zeros(len(self.coefficients))
        for cell, weight in weights.items():
            vector[self.design.columns[cell]] = weight
        if not np.allclose(vector @ self.design.seen, vector, atol=1e-6):
            return None
        error = self.deviation * math.sqrt(vector @ self.design.spread @ vector) if self.freedom else math.inf
        return Estimate(float(vector @ self.coefficients), error, self.freedom)


def fit(scores: Scores) -> Fit:
    """Least squares of score = cell + seed over all cells of a task; a cell without scores takes no part.

    A seed's effect is what it does to all cells alike, so that cells which share seeds are compared seed by seed. What is
    left is taken to vary alike in all cells.
    """
    import numpy as np

    members = tuple((cell, seed) for cell in scores for seed in sorted(scores[cell]))
    design = _design(members)
    values = np.array([scores[cell][seed] for cell, seed in members], dtype=np.float64)
    # In units of the largest, whose square may be more than a float holds.
    unit = float(np.abs(values).max(initial=0.0)) or 1.0
    coefficients = design.solution @ (values / unit)
    residuals = values / unit - design.matrix @ coefficients
    varies = design.freedom > 0 and float(np.abs(residuals).max()) > ROUNDING
    deviation = unit * math.sqrt(float(residuals @ residuals) / design.freedom) if varies else 0.0
    return Fit(scores, design, unit * coefficients, deviation, design.freedom if varies else 0)


def holm(ps: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's step-down rule, in the order given: below alpha, the family-wise error is too."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for step, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        largest = max(largest, min(1.0, ps[index] * (len(ps) - step)))
        adjusted[index] = largest
    return adjusted


def best(scores: Sequence[Mapping[int, float]], better: str) -> frozenset[int]:
    """Indices of the rows that may be the best one: the true best is among them with 95 %.

    A row is ruled out where another is better by a one-sided test, Bonferroni-corrected for the number of the others
    (Hsu, Ann. Statist. 12, 1984); the variance is that of all rows.

    Args:
        scores: by seed, for each row; a row without scores is not among the best.
        better: "higher" or "lower".

    Returns:
        Empty where no row is ruled out.
    """
    rows = {str(index): values for index, values in enumerate(scores) if values}
    if len(rows) < 2:
        return frozenset()
    found = fit(rows)
    sign = 1.0 if better == "higher" else -1.0

    def ruled_out(row: str) -> bool:
        gains = (found.estimate({other: sign, row: -sign}) for other in rows if other != row)
        return any(gain is not None and gain.p_above() * (len(rows) - 1) < ALPHA for gain in gains)

    kept = frozenset(int(row) for row in rows if not ruled_out(row))
    return kept if len(kept) < len(rows) else frozenset()


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
    import numpy as np

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
