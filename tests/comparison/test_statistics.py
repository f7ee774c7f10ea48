from __future__ import annotations

import math
import random

import pandas as pd
import pytest

from tespec.comparison.statistics import holm, paired_gain


def test_a_gain_computed_by_hand() -> None:
    # Mean 2, deviation 1, error 1/sqrt(3); t is 4.302653 for 97.5 % at two degrees of freedom.
    gain = paired_gain([1.0, 2.0, 3.0])
    assert (gain.mean, gain.n, gain.note) == (2.0, 3, "")
    assert (gain.low, gain.high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-6)
    # At two degrees of freedom p = 1 - t / sqrt(t^2 + 2), two-sided.
    t = 2 * 3**0.5
    assert gain.p == pytest.approx(1 - t / (t * t + 2) ** 0.5, abs=1e-12)


@pytest.mark.parametrize(
    ("differences", "mean", "note"),
    [
        ([], math.nan, "no common seed"),
        ([1.5], 1.5, "a single seed"),
        ([1.0, math.nan], math.nan, "a score is not finite"),
        ([0.5, 0.5, 0.5], 0.5, "all seeds differ by the same"),
        ([0.0, 0.0], 0.0, "all seeds differ by the same"),
    ],
)
def test_what_cannot_be_tested_is_blank_and_says_so(differences: list[float], mean: float, note: str) -> None:
    gain = paired_gain(differences)
    assert gain.mean == pytest.approx(mean, nan_ok=True)
    assert all(math.isnan(each) for each in (gain.low, gain.high, gain.p))
    assert gain.note == note


def test_holm_steps_down_over_what_was_tested() -> None:
    adjusted = holm(pd.Series([0.01, math.nan, 0.04, 0.03, 0.9])).tolist()
    assert adjusted == pytest.approx([0.04, math.nan, 0.09, 0.09, 0.9], nan_ok=True)
    assert holm(pd.Series([0.6, 0.6])).tolist() == [1.0, 1.0]
    assert holm(pd.Series([], dtype=float)).empty


def test_a_table_without_effects_has_a_false_positive_in_at_most_one_of_twenty() -> None:
    """2,000 tables of ten methods against one baseline, five seeds that shift all methods alike."""
    draw, tables, wrong = random.Random(0), 2000, 0
    for _ in range(tables):
        seeds = [draw.gauss(0, 2) for _ in range(5)]
        baseline, *methods = [[seed + draw.gauss(0, 1) for seed in seeds] for _ in range(11)]
        gains = [paired_gain([a - b for a, b in zip(each, baseline, strict=True)]) for each in methods]
        wrong += holm(pd.Series([gain.p for gain in gains])).min() < 0.05
    assert 0.01 < wrong / tables <= 0.06
