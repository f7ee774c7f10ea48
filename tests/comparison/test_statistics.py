from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tespec.comparison.basis import average
from tespec.comparison.statistics import Estimate, Scores, best, fit, holm, student_interval

NUMBERS = st.lists(st.floats(-100, 100), min_size=2, max_size=12)
PS = st.lists(st.floats(0, 1), max_size=6)


def draw(cells: int, seeds: int, key: int, missing: float = 0.0) -> Scores:
    """Scores of made-up cells; each is left out with probability `missing`."""
    rng = np.random.default_rng(key)
    values = rng.normal(40, 3, (cells, 1)) + rng.normal(0, 2, (1, seeds)) + rng.normal(0, 1, (cells, seeds))
    there = rng.random((cells, seeds)) >= missing
    return {
        f"c{cell}": {seed: float(values[cell, seed]) for seed in range(seeds) if there[cell, seed]}
        for cell in range(cells)
    }


def brute_force(scores: Scores, weights: dict[str, float]) -> tuple[float, float, int] | None:
    """Effect, residual deviation times the root of the design's factor, and freedom, by numpy's least squares."""
    cells = [cell for cell in scores if scores[cell]]
    seeds = sorted({seed for cell in cells for seed in scores[cell]})
    rows = [(cell, seed) for cell in cells for seed in scores[cell]]
    matrix = np.array([[cell == c for c in cells] + [seed == s for s in seeds] for cell, seed in rows], dtype=float)
    values = np.array([scores[cell][seed] for cell, seed in rows])
    found, _, rank, _ = np.linalg.lstsq(matrix, values, rcond=None)
    vector = np.array([weights.get(cell, 0.0) for cell in cells] + [0.0] * len(seeds))
    # Estimable where adding the contrast as a row does not raise the rank.
    if np.linalg.matrix_rank(np.vstack([matrix, vector])) > rank:
        return None
    freedom = len(rows) - int(rank)
    variance = float(((values - matrix @ found) ** 2).sum()) / freedom
    factor = float(vector @ np.linalg.pinv(matrix.T @ matrix) @ vector)
    return float(vector @ found), math.sqrt(variance * factor), freedom


@given(NUMBERS)
def test_student_intervals_are_scipys(values: list[float]) -> None:
    found = student_interval(values)
    assert found is not None
    error = stats.sem(values)
    if error > 1e-9:
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), error)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)


def test_one_value_has_no_interval() -> None:
    assert student_interval([1.0]) is None
    assert student_interval([]) is None


@given(NUMBERS)
def test_intervals_hold_the_mean(values: list[float]) -> None:
    interval, found = student_interval(values), average(values)
    assert interval is not None
    assert interval.low - 1e-9 <= float(np.mean(values)) <= interval.high + 1e-9
    assert found is not None
    assert found.interval == interval


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_two_cells_are_compared_as_by_scipys_paired_test(seeds: int) -> None:
    scores = draw(2, seeds, key=seeds)
    ours, theirs = (list(values.values()) for values in scores.values())
    found = fit(scores).estimate({"c0": 1, "c1": -1})
    assert found is not None
    above = stats.ttest_rel(ours, theirs, alternative="greater")
    assert (found.p_above(), found.p_below()) == pytest.approx((above.pvalue, 1 - above.pvalue))
    interval = found.interval()
    assert interval is not None
    reference = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high))


def test_the_variance_is_that_of_all_cells_or_their_own_where_it_is_larger() -> None:
    scores = draw(6, 3, key=0)
    weights = {"c0": 1.0, "c1": -1.0}
    found, alone = fit(scores).estimate(weights), fit({cell: scores[cell] for cell in weights}).estimate(weights)
    assert found is not None
    assert alone is not None
    assert (found.freedom, alone.freedom) == (5 * 2, 2)
    assert found.effect == pytest.approx(alone.effect)
    assert found.error == pytest.approx(max(fit(scores).deviation * math.sqrt(2 / 3), alone.error))
    # The others do nothing but follow the seeds.
    middle = {seed: (scores["c0"][seed] + scores["c1"][seed]) / 2 for seed in range(3)}
    quiet = {cell: values if cell in weights else middle for cell, values in scores.items()}
    guarded = fit(quiet).estimate(weights)
    assert guarded is not None
    assert guarded.error == pytest.approx(alone.error)
    assert fit(quiet).deviation * math.sqrt(2 / 3) < 0.5 * alone.error


def test_cells_of_another_kind_say_nothing_of_how_much_those_compared_vary() -> None:
    scores = draw(6, 5, key=1)
    kinds = {f"c{cell}": "quiet" if cell < 3 else "noisy" for cell in range(6)}
    noisy = {cell: {seed: 40 + 12 * (value - 40) for seed, value in each.items()} for cell, each in scores.items()}
    scores = {cell: noisy[cell] if kinds[cell] == "noisy" else each for cell, each in scores.items()}
    for pair, kind in ((("c0", "c1"), "quiet"), (("c3", "c4"), "noisy")):
        weights = dict(zip(pair, (1.0, -1.0), strict=True))
        found = fit(scores, kinds).estimate(weights)
        alone = fit({cell: each for cell, each in scores.items() if kinds[cell] == kind}).estimate(weights)
        assert found == alone
        assert found is not None
        assert found.freedom == 2 * 4
    across = {"c0": 1.0, "c3": -1.0}
    assert fit(scores, kinds).estimate(across) == fit(scores).estimate(across)
    # Among all, the quiet ones have the variance of the noisy ones, and these less than their own.
    quiet, loud = fit(scores).estimate({"c0": 1.0, "c1": -1.0}), fit(scores, kinds).estimate({"c0": 1.0, "c1": -1.0})
    assert quiet is not None
    assert loud is not None
    assert quiet.error > 2 * loud.error


def test_the_best_rows_of_a_kind_do_not_depend_on_how_others_vary() -> None:
    quiet = [{0: 40.0, 1: 40.2, 2: 40.1}, {0: 42.0, 1: 42.3, 2: 42.1}]
    noisy = [{0: 30.0, 1: 48.0, 2: 41.0}, {0: 45.0, 1: 31.0, 2: 40.0}]
    assert best([*quiet, *noisy], "higher") == frozenset()
    assert best([*quiet, *noisy], "higher", ["quiet", "quiet", "noisy", "noisy"]) == {1, 2, 3}


@pytest.mark.parametrize("key", range(40))
def test_unbalanced_designs_are_those_of_brute_force(key: int) -> None:
    scores = draw(5, 4, key, missing=0.45)
    there = [cell for cell in scores if scores[cell]]
    weights = dict(zip(there, (1.0, -1.0, 1.0, -1.0), strict=False)) if len(there) > 3 else {there[0]: 1, there[1]: -1}
    found = fit(scores)
    if not found.freedom:
        return
    estimate, expected = found.estimate(weights), brute_force(scores, weights)
    assert (estimate is None) == (expected is None)
    if estimate is not None and expected is not None:
        effect, error, freedom = expected
        assert (estimate.effect, estimate.freedom) == (pytest.approx(effect), freedom)
        own = {cell: scores[cell] for cell in weights}
        larger = max(found.deviation, fit(own).deviation) / found.deviation
        assert estimate.error == pytest.approx(error * larger)


def test_cells_that_nothing_joins_cannot_be_compared() -> None:
    apart = {"a": {0: 1.0, 1: 2.0}, "b": {2: 5.0, 3: 7.0}}
    assert fit(apart).estimate({"a": 1, "b": -1}) is None
    joined = fit({**apart, "c": {1: 3.0, 2: 4.0}}).estimate({"a": 1, "b": -1})
    assert joined is not None
    # a - c by seed 1, c - b by seed 2.
    assert joined.effect == pytest.approx((2.0 - 3.0) + (4.0 - 5.0))
    assert fit(apart).estimate({"a": 1, "nobody": -1}) is None


@given(st.integers(0, 10_000), st.floats(-1e3, 1e3), st.floats(0.01, 100), st.permutations(range(4)))
@settings(deadline=None, max_examples=50)
def test_what_all_cells_share_changes_nothing(key: int, shift: float, scale: float, order: list[int]) -> None:
    scores = draw(4, 3, key)
    weights = {"c0": 1.0, "c1": -1.0, "c2": 1.0, "c3": -1.0}
    plain = fit(scores).estimate(weights)
    # A seed that lifts all cells, cells and seeds in another order under other numbers, another unit.
    changed = {
        f"c{cell}": {9 - seed: scale * (value + shift * seed) for seed, value in scores[f"c{cell}"].items()}
        for cell in order
    }
    other = fit(changed).estimate(weights)
    assert plain is not None
    assert other is not None
    assert (other.effect, other.error) == pytest.approx((scale * plain.effect, scale * plain.error), rel=1e-4, abs=1e-6)
    assert other.p_above() == pytest.approx(plain.p_above(), rel=1e-4, abs=1e-6)


def test_without_variance_nothing_is_said() -> None:
    for scores in (
        {"a": {0: 1.0}, "b": {0: 2.0}},
        {"a": {0: 1.0, 1: 1.1}, "b": {0: 2.0, 1: 2.1}},
        {"a": {0: 1e300, 1: 1e300}, "b": {0: -1e300, 1: -1e300}},
    ):
        found = fit(scores)
        estimate = found.estimate({"a": 1, "b": -1})
        assert found.freedom == 0
        assert estimate is not None
        assert estimate.effect == pytest.approx(found.mean("a") - found.mean("b"))
        assert (estimate.interval(), estimate.detectable()) == (None, None)
        assert (estimate.p_above(), estimate.p_below()) == (1.0, 1.0)
    assert fit({}).estimate({"a": 1, "b": -1}) is None


def test_scores_may_be_as_large_as_floats_are() -> None:
    found = fit({"a": {0: 1e308, 1: 1.1e308, 2: 1e308}, "b": {0: 1e307, 1: 1e307, 2: 1e307}}).estimate(
        {"a": 1, "b": -1}
    )
    assert found is not None
    assert math.isfinite(found.error)
    assert 0 < found.p_above() < 0.01
    apart = fit({"a": {0: 1.7e308, 1: 1.6e308}, "b": {0: -1.7e308, 1: -1.7e308}}).estimate({"a": 1, "b": -1})
    assert apart is not None
    assert apart.p_above() < apart.p_below()


@pytest.mark.parametrize("freedom", [2, 4, 30])
@pytest.mark.parametrize("level", [0.05, 0.05 / 44])
def test_a_detectable_effect_is_found_with_its_power(freedom: int, level: float) -> None:
    effect = Estimate(0.0, 1.7, freedom).detectable(0.8, level)
    assert effect is not None
    critical = stats.t.ppf(1 - level, freedom)
    assert stats.nct.sf(critical, freedom, effect / 1.7) == pytest.approx(0.8, abs=1e-5)


@given(PS)
def test_holm_is_the_closed_test_by_bonferroni(ps: list[float]) -> None:
    # A hypothesis is as sure as the least sure of all intersections it is in.
    members = range(len(ps))
    subsets = [each for count in members for each in itertools.combinations(members, count + 1)]
    expected = [
        max(min(1.0, len(each) * min(ps[one] for one in each)) for each in subsets if index in each)
        for index in members
    ]
    assert holm(ps) == pytest.approx(expected)


@given(PS)
def test_holm_keeps_the_order_and_never_lowers_a_p(ps: list[float]) -> None:
    adjusted = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, adjusted, strict=True))
    assert all(adjusted[a] <= adjusted[b] for a in range(len(ps)) for b in range(len(ps)) if ps[a] < ps[b])


def test_the_best_are_all_that_the_best_is_not_told_from() -> None:
    rows = [{0: 50.0, 1: 50.4, 2: 49.8}, {0: 50.1, 1: 50.2, 2: 49.7}, {}, {0: 30.0, 1: 30.5, 2: 29.9}, {0: 30.1}]
    assert best(rows, "higher") == {0, 1}
    assert best(rows, "lower") == {3, 4}
    assert best([{0: 1.0}, {0: 2.0}], "higher") == frozenset()
    assert best(rows[:2], "higher") == frozenset()
    assert best([], "higher") == best([rows[0]], "higher") == best([rows[0], {}], "higher") == frozenset()


def test_the_true_best_is_among_the_best() -> None:
    # 8 rows of equal truth: each is a best one, and the first may be ruled out in 5 % of cases.
    rng = np.random.default_rng(5)
    cases = 1000
    ruled_out = 0
    for values in rng.normal(size=(cases, 8, 3)):
        found = best([dict(enumerate(row)) for row in values.tolist()], "higher")
        ruled_out += bool(found) and 0 not in found
    assert ruled_out <= stats.binom.ppf(0.9999, cases, 0.05)
