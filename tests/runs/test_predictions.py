"""Saved predictions score as the network did; those of others are checked file by file."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image
from short_runs import cell_spec, setup_in

from tespec.cli.main import main
from tespec.comparison.cell import recipe_of
from tespec.comparison.records import read_records
from tespec.core.config import as_facts
from tespec.core.errors import UserError
from tespec.datasets import Ddd17
from tespec.runs.finetune import finetune, prepare_run
from tespec.runs.predictions import save_predictions
from tespec.weights.files import write_weights

CPU = torch.device("cpu")


def network_of(world, folder, name, arch, changes=()):
    """Weights of an untrained network as a run writes them, and the scores of its evaluation."""
    spec = cell_spec(world, folder, name, arch, changes=changes, profile="smoke", seed=3)
    run, task, model = prepare_run("evaluation", spec)
    if name == "gen1":  # so that an untrained network finds boxes, which depend on its input
        head = model.head
        for conv in (
            *head.multi_level_conv_cls,
            *head.multi_level_conv_obj,
            *head.multi_level_conv_reg,
        ):
            torch.nn.init.zeros_(conv.bias)
            torch.nn.init.normal_(conv.weight)
    recipe = as_facts(run.settings) | {
        "histograms": asdict(task.histogram_spec),
        "run": recipe_of(run.cell, run.seed) | {"data_fingerprint": run.data_fingerprint},
    }
    write_weights(folder / "model.safetensors", model.state_dict(), recipe)
    scorer = task.evaluate(model, CPU)
    recordings = {key: scores.metrics() for key, scores in scorer.by("recording").items()}
    return folder / "model.safetensors", run, scorer.overall().metrics(), recordings


def score(folder, task, data, results, *more):
    """Exit code of the command, and its records."""
    words = ["run", "--score", folder, "--task", task, "--data", data, "--results"]
    words += [results / "results", "--runs", results / "runs", "--device", "cpu", *more]
    code = main([str(word) for word in words])
    return code, read_records(results / "results")[0] if code == 0 else []


CASES = [("ddd17", "recurrent", ["test_time_augmentation=flip"]), ("gen1", "feedforward", [])]
CASES += [("mvsec", "feedforward", ["label_fraction=0.5"])]
SLOW = [("ddd17", "feedforward", []), ("gen1", "recurrent", ["head.min_diagonal=20.0"])]
SLOW += [("mvsec", "recurrent", ["sampling=random"])]


@pytest.mark.parametrize(
    ("name", "arch", "changes"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_saved_predictions_have_the_scores_of_the_evaluation_to_the_last_digit(
    tiny_world, tmp_path, name, arch, changes
):
    weights, run, metrics, recordings = network_of(tiny_world, tmp_path, name, arch, changes)
    data = tiny_world / name
    saved = save_predictions(weights, data, tmp_path / "first" / "out", setup_in(tmp_path))
    assert saved == metrics
    moved = shutil.move(tmp_path / "first" / "out", tmp_path / "sent")
    assert not list((tmp_path / "first").iterdir())  # nothing temporary remains
    code, (record,) = score(moved, name, data, tmp_path / "other")
    assert code == 0
    assert record.metrics == metrics
    assert record.recordings == recordings
    assert len({*metrics.values()}) > 1
    cell = asdict(run.cell) | {"kind": "predictions", "backbone": "", "start": ""}
    assert asdict(record.cell) == cell
    assert (record.seed, record.data_fingerprint) == (3, run.data_fingerprint)
    assert record.weights.sha256 == record.start_sha256 != ""
