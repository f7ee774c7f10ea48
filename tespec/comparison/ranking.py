"""Agreement of two evaluations on the ranking of methods, such as full and frozen fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Hashable
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tespec.comparison.statistics import ALPHA, MixedModel

MIN_METHODS = 3
DECIMALS = 9  # means that are equal to this precision are ties
DRAWS = 20_000
# Grid of the prior: variances of the true means in units of the noise, and their correlation.
VARIANCES = np.geomspace(0.05, 150, 13)
CORRELATIONS = np.linspace(-0.99, 0.99, 34)


class Ranking(NamedTuple):
    """Agreement of two rankings; values that cannot be computed are NaN, and `note` says why.

    `tau` is Kendall's tau-b of the means, `p` its two-sided p-value, and `low` to `high` the 95 %
    interval of the tau of the true means. `reliability` of each evaluation is the part of the
    variance of its means that is not noise. `ceiling` is the expected tau of two measurements with
    these reliabilities and equal true means. `methods` is the number of ranked methods.
    """

    tau: float = nan
    p: float = nan
    low: float = nan
    high: float = nan
    ceiling: float = nan
    methods: int = 0
    reliability: tuple[float, float] = (nan, nan)
    note: str = ""


def compare_rankings(first: pd.DataFrame, second: pd.DataFrame, baseline: Hashable) -> Ranking:
    """Compare the rankings of the methods of one network by two evaluations.

    Ranked are the methods with finite scores in both, without the baseline, whose noise differs. If
    both evaluations start from the same pre-trainings, the variance between these is not noise.

    Args:
        first: runs of one evaluation, as for `tespec.comparison.statistics.gains`. Both evaluations
            name a pre-training alike.
        second: runs of the other evaluation.
        baseline: the method that gains are compared with.

    Returns:
        The agreement, with notes.
    """
    # Not at the top: importing it takes a second.
    from scipy.stats import kendalltau

    excluded = {baseline}
    for runs in (first, second):
        excluded |= set(runs["method"][~np.isfinite(runs["value"].to_numpy(float))])
    in_both = set(first["method"]) & set(second["method"]) - excluded
    methods = [method for method in dict.fromkeys(first["method"]) if method in in_both]
    unknown = Ranking(methods=len(methods))
    if len(methods) < MIN_METHODS:
        return unknown._replace(note=f"fewer than {MIN_METHODS} methods in both evaluations")

    ranked = [runs[[method in in_both for method in runs["method"]]] for runs in (first, second)]
    pretrained = [runs.dropna(subset="pretraining") for runs in ranked]
    starts = [{*zip(runs["method"], runs["pretraining"], strict=True)} for runs in pretrained]
    is_same = starts[0] == starts[1] != set()
    contrasts = [_contrasts(runs, methods, pretraining=not is_same) for runs in ranked]
    means = np.stack([table["mean"] for table in contrasts])
    tau, p = kendalltau(*means.round(DECIMALS))
    notes = dict.fromkeys(note for table in contrasts for note in table["note"] if note)
    if is_same:
        notes["the same pre-trainings"] = None
    ranking = unknown._replace(tau=float(tau), p=float(p), note="; ".join(notes))
    # The variance of a difference from the mean of all is 1 - 1 / methods times that of a mean.
    variances = np.array([table["variance"].mean() for table in contrasts])
    noise = variances / (1 - 1 / len(methods))
    spread = means.var(axis=1, ddof=1)
    if not np.isfinite(noise).all() or not spread.all():
        return ranking
    reliability = (1 - noise / spread).clip(0)
    # Expected tau of two normal variables, whose correlation is the root of the product.
    ceiling = 2 / math.pi * math.asin(math.sqrt(reliability.prod()))
    # Sorted, so that the interval does not depend on the order of the runs.
    standardised = means / np.sqrt(noise)[:, None]
    low, high = _interval(standardised[:, np.argsort(means[0])])
    both = (float(reliability[0]), float(reliability[1]))
    return ranking._replace(low=low, high=high, ceiling=ceiling, reliability=both)


def _contrasts(runs: pd.DataFrame, methods: list[Hashable], *, pretraining: bool) -> pd.DataFrame:
    """Estimate the difference of each method from the mean of all: mean, variance, dof and note."""
    model = MixedModel(runs, baseline=None)
    order = [model.methods.index(method) for method in methods]
    weights = np.eye(len(methods))[order] - 1 / len(methods)
    return pd.DataFrame([model.contrast(row, pretraining=pretraining) for row in weights])


def _interval(means: NDArray[np.float64]) -> tuple[float, float]:
    """Compute the interval of the tau of true means with a Bayesian model.

    True means and their noise are bivariate normal; the prior is uniform over the grid.

    Args:
        means: of the methods in both evaluations, (2, methods), around 0, in units of the standard
            deviation of their noise.
    """
    methods = means.shape[1]
    grid = np.meshgrid(VARIANCES, VARIANCES, CORRELATIONS, indexing="ij")
    first, second, correlation = (axis.ravel() for axis in grid)
    covariance = correlation * np.sqrt(first * second)
    true = np.stack([first, covariance, covariance, second], axis=-1).reshape(-1, 2, 2)
    observed = true + np.eye(2)
    fit = np.trace(np.linalg.solve(observed, means @ means.T), axis1=1, axis2=2)
    log_posterior = -0.5 * ((methods - 1) * np.log(np.linalg.det(observed)) + fit)
    posterior = np.exp(log_posterior - log_posterior.max())

    rng = np.random.default_rng(0)
    chosen = rng.choice(len(posterior), DRAWS, p=posterior / posterior.sum())
    true = true[chosen]
    shrinkage = true @ np.linalg.inv(observed[chosen])
    deviation = np.linalg.cholesky(true - shrinkage @ true)
    draws = shrinkage @ means + deviation @ rng.standard_normal((DRAWS, 2, methods))
    pairs = np.triu_indices(methods, 1)
    order = np.sign(draws[..., pairs[0]] - draws[..., pairs[1]])
    taus = order.prod(axis=1).mean(axis=-1)
    low, high = np.quantile(taus, [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)
