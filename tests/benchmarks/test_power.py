"""Size and power of the rule on few simulated pages; docs/tables.md has those of many."""

from __future__ import annotations

import sys

import pytest
from scipy import stats

from benchmarks import power as door
from benchmarks.measure import power as simulated
from benchmarks.measure.power import CASES, FOUR, HANGING, NOTHING, ONE, Case, power, simulate, size
from tespec.comparison import contrasts
from tespec.comparison.statistics import fit

PAGES = 250
# Of a rule that is wrong on 5 % of pages, more are wrong by chance once in 10,000 simulations.
MOST = float(stats.binom.ppf(0.9999, PAGES, 0.05)) / PAGES


@pytest.mark.parametrize(
    "case",
    [
        Case("", NOTHING),
        Case("", NOTHING, noisy=3.0),
        Case("", HANGING),
        Case("", NOTHING, missing=0.3),
        Case("", NOTHING, noisy=12.0, page="gains"),
    ],
    ids=["nothing", "unequal variances", "hanging by one comparison", "missing runs", "gains, unequal variances"],
)
def test_few_pages_hold_a_false_verdict(case: Case) -> None:
    assert size(case, 3, PAGES) <= MOST


def test_without_a_correction_many_pages_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrasts, "holm", list)
    assert size(CASES[0], 3, PAGES) > 2 * MOST


def test_one_variance_for_both_architectures_would_too(monkeypatch: pytest.MonkeyPatch) -> None:
    unequal = Case("", NOTHING, noisy=12.0, page="gains")
    apart = size(unequal, 5, 2 * PAGES)
    monkeypatch.setattr(simulated, "fit", lambda scores, kinds: fit(scores))
    assert size(unequal, 5, 2 * PAGES) > 1.5 * apart


def test_large_effects_are_found_and_more_seeds_find_smaller_ones() -> None:
    assert power(20.0, 3, 10) == {ONE: 1.0, FOUR: 1.0}
    few, many = power(3.0, 3, 30), power(3.0, 10, 30)
    assert few[FOUR] < many[FOUR]
    assert few[FOUR] < few[ONE]


def test_a_verdict_is_false_where_the_truth_is_another() -> None:
    (page,) = simulate(Case("", HANGING), 3, 1, 0)
    held = {(claim.name, decision.verdict) for claim, decision, false in page if not false}
    assert ("patch_norm", "holds") in held
    assert ("tespec", "undecided") in held
    assert not any(false for _, _, false in page)


def test_the_command_prints_both_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["power.py", "--pages", "1"])
    assert door.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| pages with a false verdict | 3 seeds | 5 seeds | 10 seeds |"
    assert sum(line.startswith("| no effect anywhere") for line in lines) == 2
    assert lines[-1].startswith("| 8 | 100% |")
