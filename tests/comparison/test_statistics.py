import math
import random

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from tespec.comparison.statistics import Spread, holm, paired_gain, spread_of


def test_a_gain_computed_by_hand():
    # Mean 2, standard deviation 1, standard error 1/sqrt(3); t is 4.302653 for 97.5 % at two
    # degrees of freedom.
    gain = paired_gain([1.0, 2.0, 3.0])
    assert (gain.mean, gain.n, gain.note) == (2.0, 3, "")
    assert (gain.low, gain.high) == pytest.approx(
        (2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-6
    )
    # The two-sided p at two degrees of freedom is 1 - t / sqrt(t^2 + 2).
    t = 2 * 3**0.5
    assert gain.p == pytest.approx(1 - t / (t * t + 2) ** 0.5, abs=1e-12)


@pytest.mark.parametrize(
    ("differences", "mean", "note"),
    [
        ([], math.nan, "no common seed"),
        ([1.5], 1.5, "a single seed"),
        ([1.0, math.nan], math.nan, "a score is missing or not finite"),
        ([0.5, 0.5, 0.5], 0.5, "all seeds have the same difference"),
        ([0.0, 0.0], 0.0, "all seeds have the same difference"),
    ],
)
def test_what_cannot_be_tested_is_blank_and_says_so(differences, mean, note):
    gain = paired_gain(differences)
    assert gain.mean == pytest.approx(mean, nan_ok=True)
    assert all(math.isnan(each) for each in (gain.low, gain.high, gain.p))
    assert gain.note == note


def test_a_gain_over_several_pretrainings_computed_by_hand():
    """Two cells of two seeds (rows) and two pre-trainings (columns); the third has only one."""
    cells = [
        pd.DataFrame(scores)
        for scores in ([[1.0, 5.0], [2.0, 8.0]], [[4.0, 4.0], [6.0, 6.0]], [[1.0], [2.0]])
    ]
    # Column means 1.5 and 6.5 have variance 12.5. Four residuals of 0.5 give a noise of 1 / 1 dof /
    # 2 seeds = 0.5.
    spread = spread_of(cells)
    assert spread == pytest.approx(Spread(observed=12.5 / 2, noise=0.5 / 2, dof=2, noise_dof=2))
    # Over seeds: mean 4, variance 2 / 2 seeds = 1 at one degree of freedom. Between pre-trainings:
    # half of 6 is 3.
    gain = paired_gain([3.0, 5.0], spread, weight=0.5)
    dof = 4**2 / (1**2 / 1 + 3.125**2 / 2 + 0.125**2 / 2)
    low, high = scipy.stats.t.interval(0.95, dof, 4, 2)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((4, low, high))
    assert gain.p == pytest.approx(2 * scipy.stats.t.sf(4 / 2, dof))
    # A variance below its noise adds nothing; without cells to pool, there is no spread.
    assert paired_gain([3.0, 5.0], Spread(0.1, 0.2, 2, 2), weight=0.5) == paired_gain([3.0, 5.0])
    assert spread_of(cells[2:]) is None


def test_a_table_without_effects_has_a_false_positive_in_at_most_one_of_twenty() -> None:
    """Simulate 2,000 tables of ten methods and one baseline; five seeds shift all methods alike."""
    draw, tables, wrong = random.Random(0), 2000, 0
    for _ in range(tables):
        seeds = [draw.gauss(0, 2) for _ in range(5)]
        baseline, *methods = [[seed + draw.gauss(0, 1) for seed in seeds] for _ in range(11)]
        gains = [
            paired_gain([a - b for a, b in zip(each, baseline, strict=True)]) for each in methods
        ]
        wrong += holm(pd.Series([gain.p for gain in gains])).min() < 0.05
    assert 0.01 < wrong / tables <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "between", "baseline", "pretrainings", "over_pretrained"),
    [
        (10, 0.0, 1.0, 2, False),
        (10, 0.5, 0.1, 2, False),
        (10, 0.5, 3.0, 2, False),
        (10, 3.0, 1.0, 3, False),
        (10, 1.0, 0.0, 2, True),
        (1, 0.5, 1.0, 2, False),
        (4, 0.2, 1.0, 2, False),
    ],
)
def test_intervals_of_several_pretrainings_cover_the_gain(
    methods, between, baseline, pretrainings, over_pretrained
):
    """Five seeds shift all methods; `between` and `baseline` are standard deviations."""
    rng, tables, covered = np.random.default_rng(0), 1000, 0
    for _ in range(tables):
        shift = rng.normal(0, 2, (5, 1))
        starts = rng.normal(0, between, (methods, 1, pretrainings))
        cells = [pd.DataFrame(shift + of + rng.normal(0, 1, (5, pretrainings))) for of in starts]
        scratch = pd.DataFrame(shift + rng.normal(0, baseline, (5, 1)))
        base, share = (
            (cells[1], 2 / pretrainings) if over_pretrained else (scratch, 1 / pretrainings)
        )
        gain = paired_gain(
            (cells[0].mean(axis=1) - base.mean(axis=1)).tolist(), spread_of(cells), share
        )
        covered += gain.low <= 0 <= gain.high
        assert gain.high - gain.low < 100
    assert 0.93 < covered / tables < 0.985


def test_holm_steps_down_over_what_was_tested():
    adjusted = holm(pd.Series([0.01, math.nan, 0.04, 0.03, 0.9])).tolist()
    assert adjusted == pytest.approx([0.04, math.nan, 0.09, 0.09, 0.9], nan_ok=True)
    assert holm(pd.Series([0.6, 0.6])).tolist() == [1.0, 1.0]
    assert holm(pd.Series([], dtype=float)).empty
