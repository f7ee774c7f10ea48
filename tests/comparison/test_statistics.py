"""Gains: closed form, reference values, what cannot be computed, the committed study; Holm."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tespec.comparison.statistics import gains, holm
from tespec.core.paths import REPOSITORY

NAN = math.nan


def crossed(methods, pretrainings, seeds):
    """Keys of the runs of a baseline without pre-training and of methods `m0`, `m1`, ..."""
    names = [f"m{number}" for number in range(methods)]
    return [
        *product(["b"], [None], range(seeds)),
        *product(names, range(pretrainings), range(seeds)),
    ]


def table(keys, values=None):
    """Runs with these scores; by default, with scores from a formula."""
    runs = pd.DataFrame(keys, columns=["method", "pretraining", "seed"])
    i = np.arange(len(runs))
    return runs.assign(value=50 + (7 * i**2 + 3 * i) % 23 / 4 + i % 5 if values is None else values)


def gain_by_mean_squares(baseline, scores):
    """Gain of the first method of a complete table, from the analysis of variance.

    `baseline` has the shape (seeds,), `scores` (methods, pretrainings, seeds).
    """
    methods, pretrainings, seeds = scores.shape
    by_seed, by_start = scores.mean(1), scores.mean(2)
    means = scores.mean((1, 2))
    interaction = by_seed - means[:, None] - by_seed.mean(0) + means.mean()
    rest = scores - by_start[:, :, None] - by_seed[:, None] + means[:, None, None]
    terms = [((by_seed.mean(0) - baseline).var(ddof=1) / seeds, seeds - 1)]
    dof_rest = methods * (pretrainings - 1) * (seeds - 1)
    mean_rest = (rest**2).sum() / dof_rest if dof_rest else 0.0
    dof_interaction = (methods - 1) * (seeds - 1)
    mean_interaction = (interaction**2).sum() / dof_interaction if dof_interaction else 0.0
    # Without an interaction, its term is estimated by the rest.
    of_rest = 0.0
    if mean_interaction >= mean_rest / pretrainings:
        terms.append(((1 - 1 / methods) * mean_interaction / seeds, dof_interaction))
    else:
        of_rest += (1 - 1 / methods) * mean_rest / pretrainings / seeds
    if pretrainings > 1:
        dof = methods * (pretrainings - 1)
        mean_starts = seeds * ((by_start - means[:, None]) ** 2).sum() / dof
        if mean_starts > mean_rest:
            terms.append((mean_starts / pretrainings / seeds, dof))
            of_rest -= mean_rest / pretrainings / seeds
    terms = [(term, dof) for term, dof in [*terms, (of_rest, dof_rest)] if term]
    variance = sum(term for term, _ in terms)
    dof = variance**2 / sum(term**2 / dof for term, dof in terms)
    dof = max(dof, min(dof for _, dof in terms))
    mean = means[0] - baseline.mean()
    low, high = stats.t.interval(0.95, dof, mean, variance**0.5)
    return mean, low, high, 2 * stats.t.sf(abs(mean) / variance**0.5, dof), dof


@pytest.mark.parametrize(
    ("methods", "pretrainings", "seeds"),
    [(1, 1, 5), (1, 3, 4), (2, 1, 3), (2, 2, 2), (3, 2, 5), (7, 2, 5), (4, 3, 6)],
)
def test_gains_of_a_complete_table_are_those_of_the_analysis_of_variance(
    methods, pretrainings, seeds
):
    rng = np.random.default_rng(0)
    for spread, interaction, _ in product((0.0, 2.0), (0.0, 1.0), range(5)):
        shift = rng.normal(50, 2, seeds)
        baseline = shift + rng.normal(0, 2, seeds)
        scores = shift + rng.normal(0, 1, (methods, pretrainings, seeds))
        scores += rng.normal(0, spread, (methods, pretrainings, 1))
        scores += rng.normal(0, interaction, (methods, 1, seeds))
        values = np.concatenate([baseline, scores.ravel()])
        gain = gains(table(crossed(methods, pretrainings, seeds), values), "b")["m0"]
        assert gain[:5] == pytest.approx(gain_by_mean_squares(baseline, scores), rel=1e-9)
        assert gain.n == seeds
        assert bool(gain.note) == (pretrainings == 1)


CASES = {
    "missing runs": (
        [key for i, key in enumerate(crossed(3, 2, 4)) if i % 7 != 3],
        {
            "m0": (2.8561, -2.7755, 8.4877, 0.221557, 3.55934, 3),
            "m1": (1.19146, -4.44013, 6.82306, 0.574357, 3.55934, 3),
            "m2": (2.00244, -3.62916, 7.63404, 0.364838, 3.55934, 3),
        },
    ),
    "other seeds for the second pre-training": (
        [("b", None, i) for i in range(6)]
        + [(method, i // 3, i) for method in ("m0", "m1") for i in range(6)],
        {
            "m0": (2.29167, -1.94663, 6.52996, 0.181822, 2.93564, 6),
            "m1": (0.25, -3.98829, 4.48829, 0.861635, 2.93564, 6),
        },
    ),
    "a pre-training for each run": (
        [("b", None, i) for i in range(4)]
        + [(method, i, i) for method in ("m0", "m1") for i in range(4)],
        {
            "m0": (1.9375, -2.54727, 6.42227, 0.330246, 5.92211, 4),
            "m1": (2.375, -2.10977, 6.85977, 0.241918, 5.92211, 4),
        },
    ),
    "one pre-training beside two of other methods": (
        [key for key in crossed(3, 2, 4) if key[:2] != ("m1", 1)],
        {
            "m0": (2.15625, -0.523006, 4.83551, 0.101217, 8.42355, 4),
            "m1": (1.3125, -2.36964, 4.99464, 0.438965, 8.65797, 4),
            "m2": (1.125, -1.55426, 3.80426, 0.363862, 8.42355, 4),
        },
    ),
    "one seed of two pre-trainings": (
        [key for key in crossed(3, 2, 4) if key[0] != "m0" or key[2] == 0],
        {
            "m0": (0.4125, -6.47414, 7.29914, 0.893735, 8.09753, 1),
            "m1": (2.1875, -3.22538, 7.60038, 0.366004, 6.45989, 4),
            "m2": (1.53125, -3.88163, 6.94413, 0.51986, 6.45989, 4),
        },
    ),
    "a pre-trained baseline": (
        [*crossed(2, 2, 4)[4:], *product(["b"], range(2), range(4))],
        {
            "m0": (-0.15625, -2.71875, 2.40625, 0.88592, 5.90545, 4),
            "m1": (0.71875, -1.84375, 3.28125, 0.516963, 5.90545, 4),
        },
    ),
    "no common seed, but both share seeds with another method": (
        [key for key in crossed(2, 2, 4) if key[0] == "m1" or (key[2] < 2) == (key[0] == "b")],
        {
            "m0": (1.3125, -8.96088, 11.5859, 0.686872, 2.53384, 0),
            "m1": (2.9375, -8.38072, 14.2557, 0.322177, 1.631, 2),
        },
    ),
    "one method with missing runs": (
        [key for i, key in enumerate(crossed(1, 3, 5)) if i not in (2, 9)],
        {"m0": (1.55714, -3.09688, 6.21116, 0.365072, 3, 4)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gains_of_other_tables_are_those_of_an_independent_program(case):
    keys, expected = CASES[case]
    computed = gains(table(keys), "b")
    assert {method: gain[:6] for method, gain in computed.items()} == {
        method: pytest.approx(values, rel=1e-5) for method, values in expected.items()
    }
    notes = {method for method, gain in computed.items() if gain.note}
    assert notes == {method for method, values in expected.items() if values[-1] == 0}


def test_names_order_and_units_change_nothing():
    runs = table(CASES["missing runs"][0])
    expected = gains(runs, "b")
    shuffled = runs.sample(frac=1, random_state=0)
    renamed = shuffled.assign(
        method=[(name, ("x",)) for name in shuffled["method"]],
        pretraining=[None if pd.isna(p) else (p, "file") for p in shuffled["pretraining"]],
        seed=shuffled["seed"].astype(str),
        # A seed that shifts all runs alike changes no difference.
        value=100 * shuffled["value"] + 1000 * shuffled["seed"],
    )
    for method, gain in gains(renamed, ("b", ("x",))).items():
        scaled = [value / 100 for value in gain[:3]]
        assert (*scaled, *gain[3:6]) == pytest.approx(expected[method[0]][:6], rel=1e-9)


def blank(mean=NAN, n=0, note=""):
    return pytest.approx((mean, NAN, NAN, NAN, NAN), nan_ok=True), n, note


@pytest.mark.parametrize(
    ("keys", "values", "expected"),
    [
        ([("m0", 0, 0), ("m0", 0, 1)], [1.0, 2.0], blank(note="no run of the baseline")),
        ([("b", None, 0), ("m0", 0, 1), ("m0", 0, 2)], [1, 2, 3], blank(note="no common seed")),
        ([("b", None, 0), ("m0", 0, 0)], [1.0, 2.5], blank(1.5, 1, "a single seed")),
        (crossed(3, 2, 1), [1, 2, 3, 4, 5, 6, 7], blank(1.5, 1, "a single seed")),
        (crossed(1, 1, 2), [1, 2, NAN, 3], blank(n=2, note="a score is not finite")),
        (
            crossed(1, 1, 2),
            [1, math.inf, 2, 3],
            blank(note="a score of the baseline is not finite"),
        ),
        (crossed(1, 1, 2), [1, 2, 4, 5], blank(3, 2, "the estimated variance is not positive")),
        (
            crossed(1, 1, 2),
            [0.1, 0.2, 0.4, 0.5],
            blank(0.3, 2, "the estimated variance is not positive"),
        ),
        (crossed(1, 1, 2), [0, 0, 0, 0], blank(0, 2, "the estimated variance is not positive")),
    ],
)
def test_what_cannot_be_computed_is_blank_and_says_why(keys, values, expected):
    gain = gains(table(keys, np.array(values, float)), "b")["m0"]
    assert (gain[:5], gain.n, gain.note) == expected


def test_a_method_that_diverged_is_left_out_of_the_others_variance():
    keys = crossed(3, 2, 4)
    runs = table(keys)
    diverged = runs.assign(
        value=runs["value"].where((runs["method"] != "m1") | (runs.index % 5 > 0))
    )
    rest = gains(runs[runs["method"] != "m1"], "b")
    computed = gains(diverged, "b")
    assert {**computed, "m1": None} == {"m0": rest["m0"], "m1": None, "m2": rest["m2"]}
    assert math.isnan(computed["m1"].mean)


@pytest.mark.parametrize(
    ("keys", "noted"),
    [
        (crossed(2, 1, 4), {"m0", "m1"}),
        ([key for key in crossed(2, 1, 4) if key[0] != "m0" or key[2] == 0], {"m0", "m1"}),
        ([(m, None if m == "m1" else p, s) for m, p, s in crossed(2, 1, 4)], {"m0"}),
        ([(m, 0 if m == "b" else None, s) for m, p, s in crossed(2, 1, 4)], {"m0", "m1"}),
        (crossed(2, 2, 4), set()),
        ([(m, p if p is None else s, s) for m, p, s in crossed(2, 1, 4)], set()),
    ],
)
def test_one_pretraining_is_noted_where_its_variance_is_unknown(keys, noted):
    note = "one pre-training, its variance is not included"
    computed = gains(table(keys), "b")
    assert {method for method, gain in computed.items() if gain.note == note} == noted
    assert {gain.note for gain in computed.values()} <= {"", note}


def test_gains_of_a_study_are_those_of_a_second_implementation():
    """Crossed pre-trainings and seeds in networks of unequal noise; a prototype gave the values."""
    runs = pd.read_csv(REPOSITORY / "tests" / "data" / "gains.csv")
    rows = {
        (*network, method): gain
        for network, of_network in runs.groupby(["arch", "network"])
        for method, gain in gains(of_network, "scratch").items()
    }
    table = pd.DataFrame(rows.values(), index=pd.MultiIndex.from_tuples(rows))
    table["holm"] = holm(table["p"])
    assert len(table) == 15
    half_widths = ((table["high"] - table["low"]) / 2).groupby(level=[0, 1]).agg(["min", "max"])
    assert half_widths.round(3).to_dict("index") == {
        ("feedforward", "resnet_micro"): {"min": 0.443, "max": 0.443},
        ("feedforward", "swin_micro"): {"min": 0.625, "max": 0.625},
        ("recurrent", "swin_micro"): {"min": 2.474, "max": 2.474},
    }
    smallest = table.sort_values("p")[["mean", "low", "high", "holm"]].round(3)[:2]
    assert smallest.T.to_dict("list") == {
        ("recurrent", "swin_micro", "scaleevent"): [2.926, 0.453, 5.4, 0.38],
        ("feedforward", "swin_micro", "mem"): [-0.718, -1.343, -0.093, 0.406],
    }
    assert set(table["note"]) == {""}


def test_holm_steps_down_over_what_was_tested():
    adjusted = holm(pd.Series([0.01, math.nan, 0.04, 0.03, 0.9])).tolist()
    assert adjusted == pytest.approx([0.04, math.nan, 0.09, 0.09, 0.9], nan_ok=True)
    assert holm(pd.Series([0.6, 0.6])).tolist() == [1.0, 1.0]
    assert holm(pd.Series([], dtype=float)).empty
