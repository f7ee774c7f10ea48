"""Floor and upper reference: made like a run, kept apart from every method."""

from __future__ import annotations

from dataclasses import replace

import pytest
from short_runs import setup_in

from tespec.comparison.records import read_records
from tespec.comparison.side_by_side import published_table
from tespec.core.errors import UserError
from tespec.runs.data import Data, settings_of
from tespec.runs.references import Prior, prior_of, reference
from tespec.tasks import build_task

STEPS = ["optimisation.steps=2", "optimisation.warmup_steps=1", "batch_size=2"]


def made(world, folder, name, task):
    data = Data(world / task, "sample")
    return reference(name, settings_of(data, task, "feedforward", None, STEPS), data, 0, setup_in(folder))


@pytest.mark.parametrize(("task", "metric"), [("ddd17", "miou"), ("gen1", "map"), ("mvsec", "abs")])
def test_the_floor_is_counted_on_the_training_labels(tiny_world, tmp_path, task, metric):
    record = made(tiny_world, tmp_path, "prior", task)
    assert record.kind == "reference"
    assert record.metrics[metric] > 0
    assert record.protocol["input"].startswith("nothing")
    assert made(tiny_world, tmp_path, "prior", task) == record


def test_the_floor_of_depth_is_right_where_training_and_test_are_the_same(tiny_world):
    data = Data(tiny_world / "mvsec", "sample")
    task = build_task(settings_of(data, "mvsec", "feedforward"), data.root)
    task.train = task.train[:1]
    task.train = [task.train[0].part(int(task.train[0].labelled[-1]), int(task.train[0].labelled[-1]) + 1)]
    answer = prior_of(task)
    truth = task.train[0].labels[0]
    near = (truth > 2) & (truth < 80)
    assert near.any()
    assert (answer.numpy()[near] == truth[near]).all()


def test_references_stand_in_a_table_only_beside_methods(tiny_world, tmp_path):
    seen = made(tiny_world, tmp_path, "frame", "ddd17")
    floor = made(tiny_world, tmp_path, "prior", "ddd17")
    records, problems = read_records(tmp_path / "results" / "runs")
    assert (len(records), problems) == (2, [])
    assert seen.curve
    assert seen.id != floor.id
    table = published_table("segmentation", records)
    assert not any(column.facts.get("source") == "measured" for column in table.columns)
    method = {"kind": "evaluation", "method_name": "scratch", "method": {"title": "a", "backbone": "Swin-T/7"}}
    config = {key: value for key, value in seen.config.items() if key != "input"}
    protocol = {key: value for key, value in seen.protocol.items() if key != "input"}
    beside = published_table("segmentation", [*records, seen | method | {"config": config, "protocol": protocol}])
    assert [row.cells[0].text for row in beside.groups[-1].rows] == ["Floor: no input", "Ceiling: true frame"]
    assert all(any(cell.runs for cell in row.cells) for row in beside.groups[-1].rows)


def test_an_unknown_reference_or_kind_of_task_is_refused(tiny_world, tmp_path):
    with pytest.raises(UserError, match="reference oracle: no such reference; choose from frame, prior"):
        made(tiny_world, tmp_path, "oracle", "ddd17")
    data = Data(tiny_world / "ddd17", "sample")
    task = build_task(settings_of(data, "ddd17", "feedforward"), data.root)
    task.settings = replace(task.settings, kind="flow")
    with pytest.raises(UserError, match="reference prior, ddd17: is not known for flow"):
        prior_of(task)
    assert Prior().facts()["backbone"] == "-"
