"""What the trainings of a plan would take of a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tespec.core.registry import register_methods
from tespec.plan.cost import in_words, total_of
from tespec.plan.files import read_plan
from tespec.plan.jobs import EVALUATION, PRETRAINING, PROBE, REFERENCE, Job, Workshop, find_all_data
from tespec.plan.states import Ledger
from tespec.runs.cost import Way, find_gpu, known_evaluation, planned

CELL = Job(EVALUATION, "scratch", "mvsec", "feedforward", 0)
MADE = Job(PRETRAINING, "tespec", "1mpx", "", 0)
GPU = find_gpu("h100")


def ledger_of(plan: str, folder: Path, jobs: list[Job]) -> Ledger:
    register_methods()
    shop = Workshop(read_plan(plan), folder / "results", folder / "runs")
    return Ledger(find_all_data(shop, jobs, None, needed=False), [])


def test_hours_are_summed_and_the_largest_is_named(tmp_path: Path) -> None:
    jobs = [CELL, replace(CELL, seed=1), MADE, Job(PROBE, "scratch", "mvsec", "feedforward", 0)]
    jobs += [Job(REFERENCE, kind, "mvsec", "feedforward", 0) for kind in ("prior", "frame")]
    ledger = ledger_of("tiny", tmp_path, jobs)
    total, cell, made = (total_of(each, ledger, GPU, 0.5) for each in (jobs, [CELL], [MADE]))
    # Three trainings of the same network on the same batches, and neither the probe nor what is counted from labels.
    assert total.trainings == 4
    assert total.hours == pytest.approx(3 * cell.hours + made.hours)
    assert total.memory == max(cell.memory, made.memory)
    assert total.largest in (CELL.name, MADE.name)
    assert in_words(total, GPU, 0.5, 2)[0].startswith(
        "on H100 SXM at 50 % of its peak: under 0.1 GPU hours for 4 trainings, "
    )
    assert in_words(total_of([], ledger, GPU, 0.5), GPU, 0.5, 2) == []


def test_the_size_is_that_of_the_plans_world(tmp_path: Path) -> None:
    ledger = ledger_of("tiny", tmp_path, [CELL])
    settings = replace(ledger.settings(CELL), sensor_px="80x64")
    cost = planned(settings, "mvsec").cost(Way())
    assert total_of([CELL], ledger, GPU, 0.5).memory == cost.memory


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    ledger = ledger_of("tiny", tmp_path, [CELL])
    whole = total_of([CELL], ledger, GPU, 0.5)
    less = total_of([CELL], ledger, replace(GPU, memory=whole.memory - 1), 0.5)
    assert less.switches or less.too_large
    none = total_of([CELL], ledger, replace(GPU, memory=1.0), 0.5)
    assert none.too_large == (CELL.name,)
    assert f"  {CELL.name} does not fit even with --recompute and --accumulate" in in_words(none, GPU, 0.5, 1)


def test_no_data_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TESPEC_DATA", raising=False)
    cell = replace(CELL, task="gen1")
    ledger = ledger_of("tables", tmp_path, [cell])
    assert ledger.shop.data["gen1"].root == Path("data/gen1")
    settings = ledger.settings(cell)
    blueprint, played = planned(settings, "gen1"), known_evaluation(settings, "gen1")
    assert played is not None
    training, evaluation = blueprint.cost(Way()).hours(GPU, 0.5), blueprint.evaluation_hours(played, Way(), GPU, 0.5)
    total = total_of([cell, replace(cell, split="val"), replace(cell, split="val", seed=1)], ledger, GPU, 0.5)
    assert (total.trainings, total.evaluations) == (2, 1)
    assert total.hours == pytest.approx(2 * training + evaluation)
    assert " GPU hours for 2 trainings and 1 evaluation; " in in_words(total, GPU, 0.5, 1)[0]
