"""How sure a number is: intervals of means, and contrasts of cells with the variance of all cells that vary alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
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
        matrix: of ones where a score has a coefficient: (scores, coefficients).
        solution: coefficients, those of the cells and then of the seeds, from scores: (coefficients, scores).
        spread: their covariance in units of the residual variance.
        seen: projects on what the scores can tell of the coefficients.
        freedom: degrees of freedom of the residuals.
    """

    matrix: NDArray[np.floating[Any]]
    solution: NDArray[np.floating[Any]]
    spread: NDArray[np.floating[Any]]
    seen: NDArray[np.floating[Any]]
    freedom: int


@lru_cache(maxsize=256)
def _design(members: tuple[tuple[int, int], ...]) -> Design:
    """The design of scores by number of cell and seed."""
    import numpy as np

    cells = 1 + max((cell for cell, _ in members), default=-1)
    seeds = {seed: cells + index for index, seed in enumerate(sorted({seed for _, seed in members}))}
    matrix = np.zeros((len(members), cells + len(seeds)))
    for row, (cell, seed) in enumerate(members):
        matrix[row, [cell, seeds[seed]]] = 1.0
    solution = np.linalg.pinv(matrix)
    freedom = len(members) - int(np.linalg.matrix_rank(matrix))
    return Design(matrix, solution, solution @ solution.T, solution @ matrix, freedom)


@dataclass(frozen=True, eq=False)
class Fit:
    """The least-squares fit of score = cell + seed.

    Attributes:
        scores: what was fitted.
        design: which cells were run with which seeds.
        unit: the largest of the scores; nothing overflows in its units.
        coefficients: of cells and seeds, in this unit.
        deviation: standard deviation of the residuals, pooled over all cells.
        freedom: degrees of freedom of the deviation; 0 where nothing varies.
        kinds: kind of each cell that has one; cells of one kind are taken to vary alike.
    """

    scores: Scores
    design: Design
    unit: float
    coefficients: NDArray[np.floating[Any]]
    deviation: float
    freedom: int
    kinds: Mapping[str, str]

    def mean(self, cell: str) -> float:
        """Mean of a cell over its own seeds."""
        return mean(self.scores[cell].values())

    def estimate(self, weights: Mapping[str, float]) -> Estimate | None:
        """A weighted sum of cells whose weights add up to 0; None where the scores cannot tell it from the seeds.

        Only cells of the kinds that are compared take part: recurrent networks may vary several times as much as
        feed-forward ones. The residual deviation is that of all of these, or that of the weighted cells alone where it
        is larger: where some cells vary more than others, the pooled one would call too much of theirs an effect.
        """
        import numpy as np

        if not weights.keys() <= self.scores.keys():
            return None
        involved = {self.kinds.get(cell) for cell in weights}
        alike = {cell: each for cell, each in self.scores.items() if self.kinds.get(cell) in involved}
        if len(alike) < len(self.scores):
            return fit(alike).estimate(weights)
        vector = np.zeros(len(self.coefficients))
        vector[: len(self.scores)] = [weights.get(cell, 0.0) for cell in self.scores]
        if np.abs(vector @ self.design.seen - vector).max() > 1e-6:
            return None
        error = self._deviation(frozenset(weights)) * math.sqrt(vector @ self.design.spread @ vector)
        effect = self.unit * float(vector @ self.coefficients)
        return Estimate(effect, error if self.freedom else math.inf, self.freedom)

    def _deviation(self, cells: frozenset[str]) -> float:
        if cells == self.scores.keys():
            return self.deviation
        return max(self.deviation, fit({cell: self.scores[cell] for cell in sorted(cells)}).deviation)


def fit(scores: Scores, kinds: Mapping[str, str] | None = None) -> Fit:
    """Least squares of score = cell + seed over all cells of a task; a cell without scores takes no part.

    A seed's effect is what it does to all cells alike, so that cells which share seeds are compared seed by seed.

    Args:
        scores: by cell and seed.
        kinds: kind of each cell, see `Fit`; None where all vary alike.
    """
    import numpy as np

    scores = {cell: of_cell for cell, of_cell in scores.items() if of_cell}
    design = _design(tuple((cell, seed) for cell, of_cell in enumerate(scores.values()) for seed in sorted(of_cell)))
    values = np.array([of_cell[seed] for of_cell in scores.values() for seed in sorted(of_cell)], dtype=np.float64)
    unit = float(np.abs(values).max(initial=0.0)) or 1.0
    coefficients = design.solution @ (values / unit)
    residuals = values / unit - design.matrix @ coefficients
    varies = design.freedom > 0 and float(np.abs(residuals).max()) > ROUNDING
    deviation = unit * math.sqrt(float(residuals @ residuals) / design.freedom) if varies else 0.0
    return Fit(scores, design, unit, coefficients, deviation, design.freedom if varies else 0, kinds or {})


def holm(ps: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's step-down rule, in the order given: below alpha, the family-wise error is too."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for step, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        largest = max(largest, min(1.0, ps[index] * (len(ps) - step)))
        adjusted[index] = largest
    return adjusted


def best(scores: Sequence[Mapping[int, float]], better: str, kinds: Sequence[str] = ()) -> frozenset[int]:
    """Indices of the rows that may be the best one: the true best is among them with 95 %.

    A row is ruled out where another is better by a one-sided test, Bonferroni-corrected for the number of the others
    (Hsu, Ann. Statist. 12, 1984), with the variance that `Fit.estimate` takes.

    Args:
        scores: by seed, for each row; a row without scores is not among the best.
        better: "higher" or "lower".
        kinds: kind of each row; rows of one kind are taken to vary alike.

    Returns:
        Empty where no row is ruled out.
    """
    rows = {str(index): values for index, values in enumerate(scores) if values}
    if len(rows) < 2:
        return frozenset()
    found = fit(rows, {str(index): kind for index, kind in enumerate(kinds)})
    sign = 1.0 if better == "higher" else -1.0

    def ruled_out(row: str) -> bool:
        gains = (found.estimate({other: sign, row: -sign}) for other in rows if other != row)
        return any(gain is not None and gain.p_above() * (len(rows) - 1) < ALPHA for gain in gains)

    kept = frozenset(int(row) for row in rows if not ruled_out(row))
    return kept if len(kept) < len(rows) else frozenset()
