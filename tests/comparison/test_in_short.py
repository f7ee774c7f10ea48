"""Tables in short: a row stands for settings that are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tespec.comparison.basis import bases
from tespec.comparison.curves import learning_curves
from tespec.comparison.in_short import budgets_table, health_table, remembering
from tespec.comparison.records import Record
from tespec.core.config import as_facts, pretraining_settings
from tespec.report.breakdown import headings

Make = Callable[..., Record]


def pretrained(make: Make, seed: int, loss: float, *changes: str) -> Record:
    metrics = {"loss_masked_carried": loss, "last_stage_rank": 10.0 + loss}
    config = as_facts(pretraining_settings("tespec", "sample", changes))
    return make("tespec", kind="pretraining", task="1mpx", seed=seed, metrics=metrics, config=config)


def test_pretrainings_of_different_settings_have_rows_of_their_own(record: Make) -> None:
    records = [
        *(pretrained(record, seed, 0.5 + seed) for seed in range(2)),
        pretrained(record, 0, 0.1, "objective.mask.ratio=0.75"),
        pretrained(record, 0, 4.0, "objective.patch_norm=false"),
        pretrained(record, 0, 0.9, "objective.target.kind=histograms"),
    ]
    rows = [[cell.text for cell in row.cells] for row in health_table(records).rows]
    assert [(row[0], row[1], row[4], row[6]) for row in rows] == [
        ("TESPEC", "histograms", "10.9", "0.9000"),
        ("TESPEC", "intensity, Eq. 7", "10.5", "1.0000"),
        ("TESPEC (objective.mask.ratio = 0.75)", "intensity, Eq. 7", "10.1", "0.1000"),
        ("TESPEC (objective.patch_norm = False)", "intensity, Eq. 7", "14.0", "4.0000"),
    ]


def test_a_seed_that_was_pretrained_twice_is_one_seed(record: Make) -> None:
    before, after = pretrained(record, 0, 0.5), pretrained(record, 0, 0.7)
    before["written"], after["written"] = "2026-11-22T00:00:00+00:00", "2026-11-23T00:00:00+00:00"
    after["data_fingerprint"] = "of another version of the world"
    ((row,),) = (group.rows for group in health_table([after, before]).groups)
    assert [row.cells[place].text for place in (3, 4, 6)] == ["0 of 1", "10.7", "0.7000"]


def test_what_memory_is_worth_is_compared_on_the_same_data(record: Make) -> None:
    points = [{"seconds": 0.5, "moving": 1.0, "moving_knowing_nothing": 2.0, "moving_count": 9.0}]
    kinds = "intensity", "high_pass", "histograms"
    old = [pretrained(record, 0, 0.5, f"objective.target.kind={kind}") for kind in kinds]
    new = [pretrained(record, 0, 0.7, f"objective.target.kind={kind}") for kind in kinds[:2]]
    for each in (*old, *new):
        each["curves"] = {"since_zeroed": points}
        each["written"] = f"2026-11-2{2 + (each in new)}T00:00:00+00:00"
    for each in new:
        each["data_fingerprint"] = "of another version of the world"
        each["name"] += "-new"
    assert {each["name"] for each in remembering([*old, *new])} == {each["name"] for each in old}
    assert {each["name"] for each in remembering([*old[:2], *new])} == {each["name"] for each in new}


def trained(make: Make, steps: int, name: str = "scratch", split: str = "val", **changes: Any) -> Record:
    own = {"batch_size": 4, "segments": 4, "labels_per_chunk": 2, "window_ms": None, "protocol": {}}
    optimisation = {"steps": steps, "peak_lr": 1e-3, "warmup_steps": steps // 20}
    return make(name, config={"arch": "recurrent", "optimisation": optimisation} | own | changes, split=split)


def test_steps_are_taken_at_the_settings_of_a_curve_alone(record: Make) -> None:
    tried = [*(trained(record, steps) for steps in (400, 800)), trained(record, 400, batch_size=8)]
    compared = [trained(record, 800, "tespec", "test"), trained(record, 99, "labels", label_share=0.2)]
    rows = budgets_table(learning_curves(tried), compared).rows
    assert sorted((row.cells[1].text, row.cells[-1].text) for row in rows) == [
        ("recurrent (batch_size = 4)", "800"),
        ("recurrent (batch_size = 8)", "-"),
    ]


def test_charts_of_a_split_say_which(record: Make) -> None:
    found = bases(
        [record(), record(split="val"), record(split="val", config={"arch": "recurrent", "optimisation": {}})]
    )
    assert headings(found) == [
        "DDD17 on the sample world",
        "DDD17 on the sample world, validation split (1)",
        "DDD17 on the sample world, validation split (2)",
    ]
