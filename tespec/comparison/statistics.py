"""Gains over a baseline, from a mixed model of all runs of one network; Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ALPHA = 0.05  # intervals are at level 1 - ALPHA
ROUNDING = 1e-9  # relative to the scores; a smaller standard error is a rounding error
RANK_TOLERANCE = 1e-6  # smaller singular values of columns of zeros and ones are rounding errors

# Random effects of the model, in the order in which they are fitted.
PRETRAINING, BASELINE_SEED, METHOD_SEED, _ = range(4)  # the last one is the run


class Gain(NamedTuple):
    """Mean gain, its 95 % interval, two-sided p-value and degrees of freedom.

    `n` is the number of fine-tuning seeds that method and baseline share, and `variance` that of
    the mean. Values that cannot be computed are NaN; `note` gives the reason.
    """

    mean: float = nan
    low: float = nan
    high: float = nan
    p: float = nan
    dof: float = nan
    n: int = 0
    note: str = ""
    variance: float = nan


class MixedModel:
    """Mixed model of the scores y of one network, with variances estimated from sums of squares.

        y = method + seed + A (pre-training) + I (method x seed) + E (run)
        y = method + seed + A (pre-training) + O (baseline x seed) + E (run)     of the baseline

    Method and fine-tuning seed are fixed effects, A, I, O and E random. O is apart from I because
    the noise of a baseline may be larger or smaller: its variance may be below 0. If each run of a
    method has its own pre-training, A is a part of I (or O) and not separated.

    Effects are fitted in the order A, O, I, E. Effect k adds the sum of squares Q_k = y' P_k y to
    the least-squares fit. Its expectation is E[Q] = T s2 with T_kj = tr(P_k Z_j Z_j'), where s2 are
    the variances, and Z_j has a column of zeros and ones for each level of effect j (Henderson's
    method 3). An estimate of A or I below 0 counts as 0. In a complete table, Q_k / dof_k are the
    mean squares of the analysis of variance.

    Args:
        runs: as for `gains`, with finite scores.
        baseline: the method with O instead of I.
    """

    def __init__(self, runs: pd.DataFrame, baseline: Hashable) -> None:
        self.methods = list(dict.fromkeys(runs["method"]))
        self.scores = runs["value"].to_numpy(float)
        is_baseline = np.array([method == baseline for method in runs["method"]])
        has_pretraining = runs["pretraining"].notna().to_numpy()
        methods = _indicators(runs["method"])
        seeds = _indicators(runs["seed"])
        starts = _indicators(zip(runs["method"], runs["pretraining"], strict=True))
        cells = _indicators(zip(runs["method"], runs["seed"], strict=True))

        # Methods with several runs, each from its own pre-training and with its own seed.
        is_shared = (starts @ starts.sum(axis=0) > 1) | (cells @ cells.sum(axis=0) > 1)
        is_inseparable = (methods.T @ is_shared == 0) & (methods.sum(axis=0) > 1)
        is_separate = has_pretraining & (methods @ is_inseparable == 0)
        self.fixed = np.hstack([methods, seeds])
        self.random = [
            starts * is_separate[:, None],
            cells * is_baseline[:, None],
            cells * ~is_baseline[:, None],
            np.eye(len(runs)),
        ]
        self.inverse = np.linalg.pinv(self.fixed)

        self.q = np.zeros(4)
        self.t = np.zeros((4, 4))
        self.dof = np.zeros(4, int)
        basis = _basis(self.fixed)
        for k, columns in enumerate(self.random):
            added = _basis(columns - basis @ (basis.T @ columns))
            basis = np.hstack([basis, added])
            self.q[k] = ((self.scores @ added) ** 2).sum()
            self.t[k] = [((added.T @ other) ** 2).sum() for other in self.random]
            self.dof[k] = added.shape[1]
        self.used = np.flatnonzero(self.dof)
        while True:
            variances = np.linalg.solve(self.t[np.ix_(self.used, self.used)], self.q[self.used])
            variances[self.used == BASELINE_SEED] = 0
            if variances.min(initial=0) >= 0:
                break
            self.used = np.delete(self.used, variances.argmin())

    def contrast(self, weights: NDArray[np.float64], *, pretraining: bool = True) -> Gain:
        """Estimate a contrast of the methods.

        Args:
            weights: of `methods`; their sum is 0.
            pretraining: False to leave out A: the contrast of these pre-trainings.

        Returns:
            The weighted sum as a gain; what the runs do not determine is NaN, and `n` is 0.
        """
        # Not scipy.stats, which takes a second to import.
        from scipy.special import stdtr, stdtrit

        target = np.zeros(self.fixed.shape[1])
        target[: len(weights)] = weights
        of_runs = target @ self.inverse
        if not np.allclose(of_runs @ self.fixed, target, atol=RANK_TOLERANCE):
            return Gain(note="no common seed")
        mean = float(of_runs @ self.scores)
        coefficients = np.array([((of_runs @ columns) ** 2).sum() for columns in self.random])
        coefficients[PRETRAINING] *= pretraining
        of_baseline = coefficients[BASELINE_SEED] > RANK_TOLERANCE
        if not self.dof[BASELINE_SEED if of_baseline else METHOD_SEED]:
            return Gain(mean, note="a single seed")
        # The variance is the sum of coefficients * s2 = g * Q, with T' g = coefficients.
        used = self.used
        terms = np.linalg.solve(self.t[np.ix_(used, used)].T, coefficients[used]) * self.q[used]
        variance = float(terms.sum())
        if variance <= (ROUNDING * np.abs(self.scores).max()) ** 2:
            return Gain(mean, note="the estimated variance is not positive")
        satterthwaite = variance**2 / (terms**2 / self.dof[used]).sum()
        dof = max(float(satterthwaite), float(self.dof[used].min()))
        # The coefficient of A is 1 for a difference from a method with one pre-training.
        is_left_out = coefficients[PRETRAINING] > 0.5 and not self.dof[PRETRAINING]
        note = "one pre-training, its variance is not included" if is_left_out else ""
        error = math.sqrt(variance)
        margin = float(stdtrit(dof, 1 - ALPHA / 2)) * error
        p = 2 * float(stdtr(dof, -abs(mean) / error))
        return Gain(mean, mean - margin, mean + margin, p, dof, note=note, variance=variance)


def gains(runs: pd.DataFrame, baseline: Hashable) -> dict[Hashable, Gain]:
    """Compare the methods of one network and evaluation with a baseline.

    A gain is the difference of two methods in the least-squares fit of method and fine-tuning
    seed; in a complete table, the difference of their means. Its interval and p are Student's t
    with the variance and degrees of freedom of `MixedModel`.

    Args:
        runs: one row per run, with the columns method (anything hashable), pretraining (anything
            that identifies a pre-training of the method; None or NaN without), seed (of
            fine-tuning) and value (above is better).
        baseline: one of the methods.

    Returns:
        The gain of every other method, in order of appearance.

    >>> scores = {"scratch": [4.0, 5.0, 6.0], "mae": [5.0, 7.0, 9.0]}
    >>> runs = pd.DataFrame(scores).rename_axis("seed").melt(var_name="method", ignore_index=False)
    >>> gain = gains(runs.reset_index().assign(pretraining=None), "scratch")["mae"]
    >>> f"{gain.mean:.1f} [{gain.low:.2f}, {gain.high:.2f}]"
    '2.0 [-0.48, 4.48]'
    """
    seeds: dict[Hashable, set[Hashable]] = {}
    for method, seed in zip(runs["method"], runs["seed"], strict=True):
        seeds.setdefault(method, set()).add(seed)
    is_finite = np.isfinite(runs["value"].to_numpy(float))
    diverged = set(runs["method"][~is_finite])
    others = [method for method in seeds if method != baseline]
    if baseline in diverged:
        return dict.fromkeys(others, Gain(note="a score of the baseline is not finite"))
    if baseline not in seeds:
        return dict.fromkeys(others, Gain(note="no run of the baseline"))
    model = MixedModel(runs[[method not in diverged for method in runs["method"]]], baseline)
    result = {}
    for method in others:
        n = len(seeds[method] & seeds[baseline])
        if method in diverged:
            result[method] = Gain(n=n, note="a score is not finite")
            continue
        weights = [float(name == method) - float(name == baseline) for name in model.methods]
        gain = model.contrast(np.array(weights))
        is_indirect = n == 0 and math.isfinite(gain.variance)
        notes = ["indirect, no common seed" if is_indirect else "", gain.note]
        result[method] = gain._replace(n=n, note="; ".join(filter(None, notes)))
    return result


def holm(ps: pd.Series[float]) -> pd.Series[float]:
    """Adjust p-values with Holm's step-down method, in their order; NaN does not count as a test.

    >>> holm(pd.Series([0.01, 0.04, float("nan")])).tolist()
    [0.02, 0.04, nan]
    """
    tested = ps.dropna().sort_values(kind="stable")
    return (tested * np.arange(len(tested), 0, -1)).cummax().clip(upper=1.0).reindex(ps.index)


def _indicators(keys: Iterable[Hashable]) -> NDArray[np.float64]:
    """Make a column of zeros and ones for each distinct key, in order of appearance."""
    columns: dict[Hashable, int] = {}
    of_rows = [columns.setdefault(key, len(columns)) for key in keys]  # pd.factorize: no tuples
    return np.eye(len(columns))[of_rows]


def _basis(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute an orthonormal basis of the space of the columns."""
    left, singular, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, singular > RANK_TOLERANCE]
