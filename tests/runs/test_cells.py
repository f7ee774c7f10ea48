"""Cells, probes and label priors: initial weights, evaluated split, and refused runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from short_runs import cell_spec

from tespec.comparison.records import read_records
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.runs import references
from tespec.runs.data import Data
from tespec.runs.finetune import finetune, outcome_of, prepare_run
from tespec.runs.references import label_prior, prior_of, probe
from tespec.tasks import build_task
from tespec.weights.files import write_weights

FEW = ("optimisation.steps=2", "optimisation.warmup_steps=1", "batch_size=2", "segments=2")


def spec_of(world, folder, split="test", changes=(), **more):
    return cell_spec(world, folder, changes=[*FEW, *changes], split=split, **more)


def prior(world, folder, task="ddd17", **more):
    return label_prior(cell_spec(world, folder, task, "feedforward", "prior", **more))


def test_each_split_is_a_run_of_its_own(tiny_world, tmp_path):
    splits = json.loads((tiny_world / "ddd17" / "dataset.json").read_text())["splits"]
    test, val = (finetune(spec_of(tiny_world, tmp_path, split)) for split in ("test", "val"))
    for split, record in (("test", test), ("val", val)):
        assert (record.split, list(record.recordings)) == (split, splits[split])
        assert record.config["splits"] == {name: splits[name] for name in ("train", split)}
        assert set(record.protocol) & {"test", "val"} == {split}
        assert record.protocol["scored"].startswith(f"every {split} label once")
    assert test.metrics != val.metrics
    assert test.curve == val.curve


def test_a_probe_and_the_label_prior_are_scored_on_a_split_and_taken_up_again(tiny_world, tmp_path):
    probes = [probe(spec_of(tiny_world, tmp_path, split)) for split in ("test", "val")]
    priors = [prior(tiny_world, tmp_path, split=split) for split in ("test", "val")]
    for of_test, of_val in (probes, priors):
        assert (of_test.split, of_val.split) == ("test", "val")
        assert of_test.metrics != of_val.metrics
    assert {"linear_miou", "knn_miou", "linear_pixel_acc"} < set(probes[0].metrics)
    assert (priors[0].kind, priors[0].facts["backbone"], priors[0].curve) == ("reference", "-", [])
    assert len(read_records(tmp_path / "results")[0]) == 4
    assert probe(spec_of(tiny_world, tmp_path)) == probes[0]  # also in when it was written
    assert probe(spec_of(tiny_world, tmp_path, overwrite=True)).metrics == probes[0].metrics


def test_the_prior_is_right_where_training_and_test_are_the_same(tiny_world, tmp_path):
    task = build_task(cell_spec(tiny_world, tmp_path, "mvsec", "feedforward").settings, tiny_world / "mvsec")
    last = int(task.train[0].labelled[-1])
    task.train = [task.train[0].part(last, last + 1)]
    truth = task.train[0].labels[0]
    near = (truth > 2) & (truth < 80)
    assert near.any()
    assert (prior_of(task).numpy()[near] == truth[near]).all()
    task.settings = replace(task.settings, kind="flow")
    with pytest.raises(UserError, match="reference prior, mvsec: is not defined for flow"):
        prior_of(task)


def test_a_number_that_is_not_finite_is_recorded_as_missing(tiny_world, tmp_path, monkeypatch):
    nan = {"metrics": {"miou": np.float32("nan")}}
    monkeypatch.setattr(references, "outcome_of", lambda *given, **said: outcome_of(*given, **said) | nan)
    assert prior(tiny_world, tmp_path).metrics == {"miou": None}


def test_a_run_takes_the_rate_that_its_weights_ask_for_and_says_so(tiny_world, tmp_path, capsys):
    path = tmp_path / "weights.safetensors"
    recipe = {"width": "micro", "recurrent": True, "bins": 10, "sensor": [90, 150], "dataset": "1mpx", "data": "sample"}
    write_weights(path, EventSwin(arch="micro", img_size=(96, 160)).state_dict(), recipe)
    lower = ["peak_lr_after.1Mpx=0.00025"]
    run, _, _ = prepare_run(
        "evaluation", cell_spec(tiny_world, tmp_path, "1mpx", "feedforward", "ecddp", changes=lower, checkpoint=path)
    )
    assert run.settings.optimisation.peak_lr == run.config["optimisation"]["peak_lr"] == 0.00025
    said = "peak learning rate 0.00025 after pre-training on 1mpx of the sample world (peak_lr_after: 1Mpx: 0.00025)\n"
    assert capsys.readouterr().err == said


def test_a_pretrained_method_never_starts_at_random(tiny_world, tmp_path, monkeypatch):
    spec = cell_spec(tiny_world, tmp_path, method="tespec", data=Data(tiny_world / "ddd17", "ddd17"), profile="sample")
    with pytest.raises(UserError, match="--method tespec: needs pre-trained weights; give --checkpoint FILE"):
        finetune(spec)
    monkeypatch.setattr(spec.method, "recipe", None)
    with pytest.raises(UserError, match="--method tespec: is pre-trained on 1Mpx; give --checkpoint FILE"):
        finetune(spec)
