"""The label prior: made like a run, without a network."""

from __future__ import annotations

from dataclasses import replace

import pytest
from short_runs import setup_in

from tespec.comparison.frame import results
from tespec.comparison.records import read_records
from tespec.core.errors import UserError
from tespec.runs.data import Data, settings_of
from tespec.runs.references import label_prior, prior_of
from tespec.tasks import build_task
from tespec.tasks.segmentation import SegmentationTask


@pytest.mark.parametrize(("task", "metric"), [("ddd17", "miou"), ("gen1", "map"), ("mvsec", "abs")])
def test_it_is_counted_on_the_training_labels(tiny_world, tmp_path, task, metric):
    data, setup = Data(tiny_world / task, "sample"), setup_in(tmp_path)
    record = label_prior(settings_of(data, task, "feedforward"), data, 0, setup)
    assert (record.kind, record.method, record.facts["backbone"], record.curve) == ("reference", "prior", "-", [])
    assert next(iter(record.scores)) == metric
    assert record.protocol["input"].startswith("none")
    assert label_prior(settings_of(data, task, "feedforward"), data, 0, setup) == record
    assert read_records(tmp_path / "results") == ([record], [])


def test_it_is_right_where_training_and_test_are_the_same(tiny_world):
    data = Data(tiny_world / "mvsec", "sample")
    task = build_task(settings_of(data, "mvsec", "feedforward"), data.root)
    task.train = task.train[:1]
    task.train = [task.train[0].part(int(task.train[0].labelled[-1]), int(task.train[0].labelled[-1]) + 1)]
    answer = prior_of(task)
    truth = task.train[0].labels[0]
    near = (truth > 2) & (truth < 80)
    assert near.any()
    assert (answer.numpy()[near] == truth[near]).all()


def test_a_number_that_is_not_finite_is_recorded_as_missing(tiny_world, tmp_path, monkeypatch):
    evaluate = SegmentationTask.evaluate

    def evaluate_to_nan(*arguments):
        found = evaluate(*arguments)
        return replace(found, metrics=found.metrics | {"miou": float("nan")})

    monkeypatch.setattr(SegmentationTask, "evaluate", evaluate_to_nan)
    data = Data(tiny_world / "ddd17", "sample")
    record = label_prior(settings_of(data, "ddd17", "feedforward"), data, 0, setup_in(tmp_path))
    assert record.metrics["miou"] is None
    frame = results(tmp_path / "results")
    overall = frame[frame.frames == "all"].set_index("metric").value
    assert overall.isna().to_dict() == {name: name == "miou" for name in record.metrics}


def test_an_unknown_kind_of_task_is_refused(tiny_world):
    data = Data(tiny_world / "ddd17", "sample")
    task = build_task(settings_of(data, "ddd17", "feedforward"), data.root)
    task.settings = replace(task.settings, kind="flow")
    with pytest.raises(UserError, match="reference prior, ddd17: is not known for flow"):
        prior_of(task)
