"""Cells, probes and label priors: initial weights, evaluated split, and what they can learn."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import cell_spec

from tespec.comparison.records import read_records
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.runs import references
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import finetune, outcome_of, prepare_run
from tespec.runs.references import label_prior, prior_of, probe
from tespec.runs.train import CurveHook
from tespec.sample import make_world
from tespec.tasks import build_task
from tespec.training.trainer import Trainer
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
        assert (record.cell.split, list(record.recordings)) == (split, splits[split])
        assert record.config["splits"] == {name: splits[name] for name in ("train", split)}
        assert set(record.protocol) & {"test", "val"} == {split}
        assert record.protocol["scored"].startswith(f"every {split} label once")
    assert test.metrics != val.metrics
    assert test.curve == val.curve


@pytest.mark.slow
def test_a_probe_and_the_label_prior_are_scored_on_a_split_and_taken_up_again(tiny_world, tmp_path):
    probes = [probe(spec_of(tiny_world, tmp_path, split)) for split in ("test", "val")]
    priors = [prior(tiny_world, tmp_path, split=split) for split in ("test", "val")]
    for of_test, of_val in (probes, priors):
        assert (of_test.cell.split, of_val.cell.split) == ("test", "val")
        assert of_test.metrics != of_val.metrics
    assert {"linear_miou", "knn_miou", "linear_pixel_acc"} < set(probes[0].metrics)
    assert priors[0].cell.kind == "reference"
    assert (priors[0].facts["backbone"], priors[0].curve) == ("-", [])
    assert len(read_records(tmp_path / "results")[0]) == 4
    assert probe(spec_of(tiny_world, tmp_path)) == probes[0]  # also in when it was written
    assert probe(spec_of(tiny_world, tmp_path, overwrite=True)).metrics == probes[0].metrics


def test_a_prior_of_a_task_of_another_kind_is_refused(tiny_world, tmp_path):
    task = build_task(
        cell_spec(tiny_world, tmp_path, "mvsec", "feedforward").settings, tiny_world / "mvsec"
    )
    task.settings = replace(task.settings, kind="flow")
    with pytest.raises(UserError, match="reference prior, mvsec: is not defined for flow"):
        prior_of(task)


def test_a_number_that_is_not_finite_is_recorded_as_missing(tiny_world, tmp_path, monkeypatch):
    nan = {"metrics": {"miou": np.float32("nan")}}
    monkeypatch.setattr(
        references, "outcome_of", lambda *given, **said: outcome_of(*given, **said) | nan
    )
    assert prior(tiny_world, tmp_path).metrics == {"miou": None}


def test_a_run_takes_the_rate_that_its_weights_ask_for_and_says_so(tiny_world, tmp_path, capsys):
    path = tmp_path / "weights.safetensors"
    recipe = {
        "backbone": "swin_micro",
        "recurrent": True,
        "bins": 10,
        "sensor": [90, 150],
        "dataset": "1mpx",
        "data": "sample",
    }
    write_weights(path, EventSwin(backbone="swin_micro", img_size=(96, 160)).state_dict(), recipe)
    lower = ["peak_lr_after.1Mpx=0.00025"]
    run, _, _ = prepare_run(
        "evaluation",
        cell_spec(
            tiny_world, tmp_path, "1mpx", "feedforward", "ecddp", changes=lower, checkpoint=path
        ),
    )
    assert run.settings.optimisation.peak_lr == run.config["optimisation"]["peak_lr"] == 0.00025
    message = "peak learning rate 0.00025 after pre-training on 1mpx of the sample world"
    assert f"{message} (peak_lr_after: 1Mpx: 0.00025)\n" in capsys.readouterr().err


# Every task overfits one short recording, which shows that data, model, loss and metric fit
# together.
COMMON = ["augmentation.flip=0.0", "sampling=stream", "labels_per_chunk=null", "batch_size=1"]
COMMON += ["optimisation.peak_lr=2.0e-3", "optimisation.warmup_steps=30"]
# Windows of the recording, settings, metric, and the score to exceed.
MASKS = ["head.channels=96", "head.dropout=0.0", "optimisation.steps=600"]
CASES = {
    "ddd17": (3, MASKS, "pixel_acc", 97.0),  # one wrong pixel makes the IoU of an absent class 0
    "dsec": (3, MASKS, "pixel_acc", 97.0),
    "gen1": (20, ["optimisation.steps=250"], "ap50", 90.0),
    "mvsec": (4, ["optimisation.steps=300"], "delta_1", 0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", CASES)
def test_one_short_recording_is_learned_by_heart(tiny_world, tmp_path, task):
    windows, changes, metric, wanted = CASES[task]
    # Masks of the tiny world are too coarse for features at stride 4.
    world = (
        make_world("small", root=tmp_path, processes=2, datasets=(task,))
        if changes is MASKS
        else tiny_world
    )
    data = Data(world / task, "sample")
    settings = settings_of(
        data, task, "recurrent", None, [*COMMON, f"segments={windows}", *changes]
    )
    built = build_task(settings, data.root)
    built.train = built.scored = [replace(built.train[0].part(0, windows), name="one")]
    torch.manual_seed(0)
    model, curve = built.model(), CurveHook(interval=1)
    loop = Trainer(
        model,
        built.steps(0),
        settings.optimisation,
        seed=0,
        device=torch.device("cpu"),
        hooks=[curve],
    )
    loop.run()
    losses = [point["loss"] for point in curve.curve]
    assert losses[0] >= 10 * sum(losses[-10:]) / 10
    assert built.evaluate(model, torch.device("cpu")).overall().metrics()[metric] > wanted
