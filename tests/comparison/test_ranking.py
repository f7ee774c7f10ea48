"""Agreement of two rankings: tau, p, ceiling and interval; what cannot be computed."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tespec.comparison import ranking
from tespec.comparison.ranking import compare_rankings


def study(effects, seed):
    """Runs of a baseline and of methods with these true means, and with noise at each level."""
    rng = np.random.default_rng(seed)
    keys = [*product([-1], [math.nan], range(5)), *product(range(len(effects)), range(2), range(5))]
    runs = pd.DataFrame(keys, columns=["method", "pretraining", "seed"])
    noises = rng.normal(size=len(runs))
    for columns in (["method", "pretraining"], ["method", "seed"]):
        level = runs.groupby(columns, dropna=False).ngroup()
        noises += rng.normal(size=level.max() + 1)[level]
    true = np.array([*effects, 0.0])[runs["method"]]
    return runs.assign(value=50 + true + noises)


def test_a_ranking_of_complete_tables_is_computed_from_mean_squares():
    effects = np.array([0.0, 1.0, 2.0, 3.5, 4.0, 6.0])
    first = study(effects, 0)
    second = study(effects[::-1] / 2, 1).replace({"pretraining": {0: 2, 1: 3}})
    result = compare_rankings(first, second, -1)
    means, reliability = [], []
    for runs in (first, second):
        y = runs["value"].to_numpy()[5:].reshape(6, 2, 5)
        by_seed, by_start, mean = y.mean(1), y.mean(2), y.mean((1, 2))
        interaction = by_seed - mean[:, None] - by_seed.mean(0) + mean.mean()
        rest = y - by_start[:, :, None] - by_seed[:, None] + mean[:, None, None]
        noise = (interaction**2).sum() / 20 / 5
        between = 5 * ((by_start - mean[:, None]) ** 2).sum() / 6
        noise += max(0.0, between - (rest**2).sum() / 24) / 10
        reliability.append(1 - noise / mean.var(ddof=1))
        means.append(mean)
    assert result.reliability == pytest.approx(reliability)
    assert (result.tau, result.p) == pytest.approx(tuple(stats.kendalltau(*means)))
    draws = np.random.default_rng(0).standard_normal((3, 2, 100_000))
    true, error = draws[0], np.sqrt(1 / np.array(reliability) - 1)
    measured = [true + size * each for size, each in zip(error, draws[1:], strict=True)]
    concordant = np.prod([np.sign(each[0] - each[1]) for each in measured], axis=0)
    assert result.ceiling == pytest.approx(concordant.mean(), abs=0.01)
    assert -1 <= result.low < result.tau < result.high < 0.2
    assert (result.methods, result.note) == (6, "")


def test_equal_pretrainings_are_no_noise_and_order_and_names_change_nothing():
    first, second = study(range(5), 0), study(range(5), 1)
    result = compare_rankings(first, second, -1)
    assert result.note == "the same pre-trainings"
    other = second.replace({"pretraining": {0: 2, 1: 3}})
    independent = compare_rankings(first, other, -1)
    assert min(np.subtract(result.reliability, independent.reliability)) > 0.02
    assert independent[:2] == result[:2]
    assert independent.ceiling < result.ceiling

    def renamed(runs):
        return runs.assign(
            method=[("name", method) for method in runs["method"]],
            pretraining=[None if pd.isna(p) else ("file", p) for p in runs["pretraining"]],
            value=runs["value"] / 100,
        ).sample(frac=1, random_state=0)

    again = compare_rankings(renamed(first), renamed(second), ("name", -1))
    assert again[:5] == pytest.approx(result[:5])
    assert again[5:] == (5, pytest.approx(result.reliability), result.note)


# Intervals of an independent program of the same model, with another grid and other draws.
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7], (0.643, 1)),
        ([0, 4, 8, 12, 16, 20], [20, 16, 12, 8, 4, 0], (-1, -1)),
        ([0, 3, 6, 9, 12, 15, 18, 21], [3, 0, 9, 6, 15, 12, 21, 18], (0.643, 0.786)),
        ([0, 0.5, 1, 1.5], [0, 0.5, 1, 1.5], (-1, 1)),
        ([0, 1, 9, 10, 2, 7], [5, 0, 4, 9, 1, 8], (0.2, 0.867)),
    ],
)
def test_intervals_are_those_of_an_independent_program(first, second, expected):
    means = np.array([first, second], float)
    low, high = ranking._interval(means - means.mean(axis=1, keepdims=True))
    step = 2 / math.comb(len(first), 2)
    assert (low, high) == pytest.approx(expected, abs=1.5 * step)


@pytest.mark.parametrize(
    ("change", "known", "note"),
    [
        (lambda runs: runs[runs["method"] < 2], 0, "fewer than 3 methods in both evaluations"),
        (lambda runs: runs[runs["seed"] == 0], 2, "a single seed"),
        (lambda runs: runs.assign(value=1.0), 0, "the estimated variance is not positive"),
        (
            lambda runs: runs.assign(value=runs["method"] + 0.1 * runs["seed"]),
            2,
            "the estimated variance is not positive",
        ),
    ],
)
def test_what_cannot_be_computed_is_nan_and_says_why(change, known, note):
    first = study(range(5), 0)
    second = study(range(5), 1).replace({"pretraining": {0: 2, 1: 3}})
    result = compare_rankings(first, change(second), -1)
    numbers = [*result[:5], *result.reliability]
    assert np.isfinite(numbers).sum() == known
    assert result.note == note


def test_methods_without_finite_scores_in_both_are_not_ranked():
    first, second = study(range(6), 0), study(range(6), 1)
    diverged = first.assign(value=first["value"].where(first.index != 7))  # of method 0
    result = compare_rankings(diverged, second[second["method"] != 5], -1)
    both = [runs[~runs["method"].isin([0, 5])] for runs in (first, second)]
    assert result == compare_rankings(*both, -1)
    assert result.methods == 4
    # The baseline is not ranked, so its scores do not count.
    assert result == compare_rankings(both[0][both[0]["method"] >= 0], both[1], -1)
