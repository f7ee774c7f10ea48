from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tespec.comparison.ablation_runs import changed, measured_rows, measured_table
from tespec.comparison.ablations import ablations, read_ablation
from tespec.comparison.records import Record
from tespec.comparison.render_text import render_text
from tespec.core.config import as_facts, pretraining_settings

Make = Callable[..., Record]
DEFAULT = as_facts(pretraining_settings("tespec", "sample"))


def fine_tuned(make: Make, recipe: dict[str, Any], miou: float, **changes: Any) -> Record:
    """A record whose weights were made by a recipe."""
    weights = {"source": "backbone.safetensors", "sha256": str(miou), "start_sha256": str(miou), "recipe": recipe}
    return make("tespec", miou=miou, **({"task": "dsec", "weights": weights} | changes))


def row_recipe(table: str, name: str, default: dict[str, Any] = DEFAULT) -> dict[str, Any]:
    (row,) = (row for row in read_ablation(table).rows if row.name == name)
    return changed(row, default)


@pytest.mark.parametrize("profile", ["paper", "sample"])
@pytest.mark.parametrize("name", ablations())
def test_a_rows_settings_are_those_that_are_run(name: str, profile: str) -> None:
    default = as_facts(pretraining_settings("tespec", profile))
    for row in read_ablation(name).rows:
        assert changed(row, default) == as_facts(pretraining_settings("tespec", profile, row.changes(default)))


def test_records_find_their_rows_by_the_weights_they_started_from(record: Make) -> None:
    records = [
        fine_tuned(record, row_recipe("target", "Eq. 6"), 41.0),
        fine_tuned(record, DEFAULT, 43.0),
        fine_tuned(record, DEFAULT, 44.0, seed=1),
        record("tespec", miou=99.0, task="dsec"),
        record("scratch", miou=98.0, task="dsec"),
    ]
    (found,) = measured_rows(read_ablation("target"), records)
    assert {name: [each["metrics"]["miou"] for each in rows] for name, rows in found.rows.items()} == {
        "Eq. 6": [41.0],
        "Eq. 7": [43.0, 44.0],
    }
    shown = render_text(measured_table(read_ablation("target"), found))
    assert "43.500 ± 0.707*" in shown
    assert "Fewer seeds: Eq. 6." in shown


def labels(record: Make, table: str, default: dict[str, Any]) -> list[str]:
    ablation = read_ablation(table)
    records = [
        fine_tuned(record, changed(row, default), 40.0 + number, task=ablation.task)
        for number, row in enumerate(ablation.rows)
    ]
    (found,) = measured_rows(ablation, records)
    return [row.cells[0].text for row in measured_table(ablation, found).rows]


def test_a_row_says_the_value_that_was_used(record: Make) -> None:
    assert labels(record, "norm_events", DEFAULT) == [
        "500 (measured with 300)",
        "5,000 (default, measured with 3,000)",
        "50,000 (measured with 30,000)",
        "200,000 (measured with 120,000)",
    ]
    assert labels(record, "steps", DEFAULT)[:3] == [
        "200k (measured with 300)",
        "300k (measured with 450)",
        "400k (default, measured with 600)",
    ]
    assert labels(record, "masking", DEFAULT) == ["0%", "25%", "50% (default)", "75%"]
    assert labels(record, "objective", DEFAULT) == ["CPC", "ECDDP", "MAE (default)"]
    half = as_facts(pretraining_settings("tespec", "sample", ["objective.mask.ratio=0.4"]))
    assert labels(record, "masking", half)[2] == "50% (default, measured with 0.4)"


def test_with_the_papers_settings_a_row_is_named_as_in_the_paper(record: Make) -> None:
    papers = as_facts(pretraining_settings("tespec", "paper"))
    for name, ablation in ablations().items():
        assert labels(record, name, papers) == [
            row.name + (" (default)" if row.default else "") for row in ablation.rows
        ]


def test_another_length_of_training_is_another_default(record: Make) -> None:
    short = as_facts(pretraining_settings("tespec", "sample", ["optimisation.steps=70"]))
    records = [
        fine_tuned(record, row_recipe("target", "Eq. 6", short), 41.0),
        fine_tuned(record, short, 43.0),
        fine_tuned(record, row_recipe("target", "Histograms"), 99.0),
    ]
    (found,) = measured_rows(read_ablation("target"), records)
    assert {name: rows[0]["metrics"]["miou"] for name, rows in found.rows.items()} == {"Eq. 6": 41.0, "Eq. 7": 43.0}


def test_one_row_alone_is_no_ablation(record: Make) -> None:
    assert measured_rows(read_ablation("target"), [fine_tuned(record, DEFAULT, 43.0)]) == []


def test_data_profiles_and_architectures_stay_apart(record: Make) -> None:
    eq6 = row_recipe("target", "Eq. 6")
    records = [
        fine_tuned(record, eq6, 41.0),
        fine_tuned(record, DEFAULT, 43.0, data_fingerprint="another"),
        fine_tuned(record, DEFAULT, 44.0, arch="feedforward", config={"arch": "feedforward"}),
    ]
    assert measured_rows(read_ablation("target"), records) == []
