from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tespec.comparison.basis import average
from tespec.comparison.statistics import (
    Interval,
    bootstrap_interval,
    paired_effect,
    student_interval,
)

NUMBERS = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


@given(NUMBERS)
def test_student_intervals_are_scipys(values: list[float]) -> None:
    found = student_interval(values)
    assert found is not None
    error = stats.sem(values)
    if error > 1e-9:
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), error)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)


def test_bootstrap_intervals_are_scipys() -> None:
    values = list(np.random.default_rng(3).normal(1.0, 2.0, 25))
    found = bootstrap_interval(values)
    reference = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=1).confidence_interval
    assert found is not None
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.05)
    assert bootstrap_interval(values) == found


@pytest.mark.parametrize("interval", [student_interval, bootstrap_interval])
def test_one_value_has_no_interval(interval) -> None:
    assert interval([1.0]) is None
    assert interval([]) is None


def test_pairs_take_away_what_seeds_share() -> None:
    base = {0: 10.0, 1: 50.0, 2: 90.0}
    ours = {seed: value + 2.0 + 0.01 * seed for seed, value in base.items()}
    found = paired_effect(ours, base, {}, {})
    assert found is not None
    assert found.value == pytest.approx(2.01)
    assert (found.seeds, found.recordings, found.over_recordings) == (3, 0, None)


def test_only_seeds_and_recordings_of_both_count() -> None:
    recordings = {"a": 1.0, "b": 2.0, "c": 3.0}
    found = paired_effect(
        {0: 5.0, 1: 6.0, 7: 0.0},
        {0: 4.0, 1: 4.0, 8: 9.0},
        {0: recordings, 1: {"a": 2.0, "b": 2.0}, 7: {}},
        {0: {"a": 0.0, "b": 0.0, "c": 0.0}, 1: {"a": 0.0, "b": 0.0, "c": 0.0}, 8: {}},
    )
    assert found is not None
    assert (found.value, found.seeds, found.recordings) == (1.5, 2, 2)
    assert found.over_recordings is not None
    assert found.over_recordings.low >= 1.5
    assert found.over_recordings.high <= 2.0


def test_one_seed_has_an_interval_over_recordings_alone() -> None:
    ours, theirs = ({str(index): value for index in range(20)} for value in (9.0, 1.0))
    found = paired_effect({0: 9.0}, {0: 1.0}, {0: ours}, {0: theirs})
    assert found is not None
    assert (found.over_seeds, found.over_recordings) == (None, Interval(8.0, 8.0))


def test_no_shared_seed_is_no_comparison() -> None:
    assert paired_effect({0: 1.0}, {1: 1.0}, {}, {}) is None


@given(NUMBERS)
def test_intervals_hold_the_mean(values: list[float]) -> None:
    mean = float(np.mean(values))
    for interval in (student_interval(values), bootstrap_interval(values, resamples=500)):
        assert interval is not None
        assert interval.low - 1e-9 <= mean <= interval.high + 1e-9
    found = average(values)
    assert found is not None
    assert found.interval == student_interval(values)
