import json
import os
import shutil
import signal
import time
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from short_runs import cell_spec, setup_in, short_pretrainings, stopped_after

from tespec.comparison.records import read_records
from tespec.core.config import pretraining_settings
from tespec.core.errors import Preempted, UserError
from tespec.core.files import sha256_of
from tespec.runs.data import Data
from tespec.runs.finetune import finetune
from tespec.runs.pretrain import pretrain
from tespec.tasks.segmentation import SegmentationModel, SegmentationTask
from tespec.training.checkpoint import save_checkpoint
from tespec.training.trainer import Trainer

FEW = ["optimisation.steps=4", "optimisation.warmup_steps=1", "batch_size=2", "segments=4"]


def run(world, folder, **changes):
    return finetune(cell_spec(world, folder, changes=FEW, **changes))


@pytest.fixture(scope="module")
def straight(tiny_world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    return folder, run(tiny_world, folder)


def test_the_record_says_what_was_done(straight):
    folder, record = straight
    assert read_records(folder / "results") == ([record], [])
    assert (record.cell.data, record.weights.source) == ("sample", "random initialisation")
    assert set(record.groups) <= {"moving", "standing"}
    assert set(record.metrics) == set(record.scores) == {"miou", "mean_class_acc", "pixel_acc"}
    assert (record.scores["miou"].better, record.scores["miou"].unit) == ("higher", "%")
    assert set(record.classes) == set(record.config["classes"])
    assert set(record.cell.overrides) == {name.partition("=")[0] for name in FEW}
    assert record.protocol["test"].startswith("dir2 (")
    assert all(
        record.protocol[name]
        for name in ("train", "layout", "events", "protocol", "scores", "histograms")
    )


def test_the_same_command_goes_on_where_it_stopped(straight, tiny_world, tmp_path, capsys):
    with stopped_after(1, trained=1000.0), pytest.raises(KeyboardInterrupt):
        run(tiny_world, tmp_path, track="files")
    (first,) = (tmp_path / "runs").glob("*/step-000000001.pt")
    third, eighth, ninth = (first.with_name(f"step-00000000{step}.pt") for step in (3, 8, 9))
    for earlier in (eighth, ninth):  # of an earlier start
        earlier.write_bytes(b"half")
    with stopped_after(3), pytest.raises(KeyboardInterrupt, match=f"saved as {third};"):
        run(tiny_world, tmp_path, track="files")
    assert f"{ninth}: incomplete checkpoint, skipped\n" in capsys.readouterr().err
    resumed = run(tiny_world, tmp_path, track="files")
    assert "resuming at step 3 (--overwrite starts again)" in capsys.readouterr().err
    for part in ("name", "metrics", "recordings", "classes", "curve"):
        assert getattr(resumed, part) == getattr(straight[1], part), part
    assert all(1000 <= resumed.time[name] < 2000 for name in ("train", "total"))
    tracking = tmp_path / "runs" / resumed.name / "tracking"
    *points, result = [
        json.loads(line) for line in (tracking / "scalars.json").read_text().splitlines()
    ]
    losses = [{"step": point["step"], "loss": point["train/loss"]} for point in points]
    assert losses == [{name: point[name] for name in ("step", "loss")} for point in resumed.curve]
    assert result == {f"result/{name}": value for name, value in resumed.metrics.items()} | {
        "step": 4
    }
    assert "peak_lr" in (tracking / "config.py").read_text()


def test_an_unfinished_run_of_another_version_is_named_and_stays(
    straight, tiny_world, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tespec.runs.identity.RESULTS_VERSION", 1)
    with stopped_after(1), pytest.raises(KeyboardInterrupt):
        run(tiny_world, tmp_path)
    monkeypatch.undo()
    (unfinished,) = (tmp_path / "runs").glob("evaluation-*")
    record = run(tiny_world, tmp_path)
    what = f"does not continue {unfinished}, an unfinished run of results version 1\n"
    assert f"{record.name}: {what}" in capsys.readouterr().err
    assert record.metrics == straight[1].metrics
    assert (unfinished / "step-000000001.pt").exists()


def test_parts_of_a_training_in_other_environments_are_listed(straight, tiny_world, tmp_path):
    for step, deterministic in ((1, False), (2, True), (4, False)):
        with stopped_after(step), pytest.raises(KeyboardInterrupt):
            run(tiny_world, tmp_path, deterministic=deterministic)
    record = run(tiny_world, tmp_path, deterministic=True)  # only evaluates
    environment = record.environment.model_dump()
    assert environment["deterministic"] is True
    assert environment["parts"] == [
        {"steps": [0, 1], "deterministic": False},
        {"steps": [1, 2], "deterministic": True},
        {"steps": [2, 4], "deterministic": False},
    ]
    assert "parts" not in straight[1].environment.model_dump()


def test_checkpoints_that_a_killed_run_left_after_its_record_are_removed(
    straight, tiny_world, tmp_path, capsys
):
    shutil.copytree(straight[0], tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "runs" / straight[1].name
    for step in (3, 4):
        save_checkpoint(folder, step, {"run": folder.name})
    assert run(tiny_world, tmp_path) == straight[1]
    assert "already complete" in capsys.readouterr().err
    assert not list(folder.glob("step-*"))


def test_a_tracker_is_refused_at_once_where_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("tespec.runs.setup.find_spec", lambda package: None)
    with pytest.raises(
        UserError, match="--track wandb: the package wandb is not installed; pip install wandb"
    ):
        setup_in(tmp_path, track="wandb").prepare()


def test_a_checkpoint_that_does_not_fit_is_refused_and_overwriting_starts_again(
    straight, tiny_world, tmp_path, capsys
):
    record = straight[1]
    other = tmp_path / "runs" / record.name
    save_checkpoint(other, 3, {"run": record.name, "trainer": {"step": 3}})
    misfit = rf"{other}: its checkpoint does not fit this version"
    refused = rf"^{misfit} \(.*; remove its step-\*\.pt to start the run again$"
    with pytest.raises(UserError, match=refused):  # "." matches no end of a line
        run(tiny_world, tmp_path)
    again = run(tiny_world, tmp_path, overwrite=True)
    assert "resuming" not in capsys.readouterr().err
    assert (again.metrics, again.curve) == (record.metrics, record.curve)
    ours, theirs = (
        load_file(each / "runs" / record.name / "model.safetensors")
        for each in (tmp_path, straight[0])
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_evaluation_that_fails_keeps_the_training(
    straight, tiny_world, tmp_path, monkeypatch, capsys
):
    failures = [
        (signal.SIGTERM, Preempted, "stopped by SIGTERM; run the same command to evaluate again"),
        (torch.OutOfMemoryError("tried to allocate"), UserError, "--recompute"),
    ]

    def fail(*arguments):
        if isinstance(failure, int):
            os.kill(os.getpid(), failure)
            time.sleep(10)
        raise failure

    for failure, raised, reason in failures:  # noqa: B007  # read by `fail`
        with monkeypatch.context() as patch:
            patch.setattr(SegmentationTask, "evaluate", fail)
            with pytest.raises(raised, match=reason):
                run(tiny_world, tmp_path)
        assert (
            "the training is complete and saved; run the same command to evaluate again"
            in capsys.readouterr().err
        )
        assert not list((tmp_path / "results").glob("runs/*"))
        monkeypatch.setattr(Trainer, "train_step", fail)
    resumed = run(tiny_world, tmp_path)
    assert resumed.metrics == straight[1].metrics
    remaining = {path.name for path in (tmp_path / "runs" / resumed.name).iterdir()}
    assert remaining == {"model.safetensors", "data.json"}


def test_a_training_out_of_memory_names_what_saves_memory(tiny_world, tmp_path, monkeypatch):
    monkeypatch.setattr(
        SegmentationModel, "loss", Mock(side_effect=torch.OutOfMemoryError("tried to allocate"))
    )
    with pytest.raises(
        UserError,
        match=r"^GPU: out of memory; use --accumulate 2 or more, --recompute, or a smaller",
    ):
        run(tiny_world, tmp_path)


def pretrained(world, folder, **changes):
    changed = ["optimisation.steps=6", "optimisation.warmup_steps=2", "batch_size=2", "segments=3"]
    settings = pretraining_settings("tespec", "sample", changed)
    with short_pretrainings():
        return pretrain(
            "tespec", settings, Data(world / "1mpx", "sample"), 0, setup_in(folder, **changes)
        )


@pytest.fixture(scope="module")
def pretraining(tiny_world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    return folder, pretrained(tiny_world, folder)


def test_leaves_weights_and_a_record_with_the_features_of_every_stage(pretraining):
    (folder, result), record = pretraining, pretraining[1].record
    assert read_records(folder / "results") == ([record], [])
    assert record.config["deviations"]
    assert record.weights.sha256 == sha256_of(result.weights)
    assert [point["step"] for point in record.curve] == [1, 2, 3, 4, 5, 6]
    assert list(record.groups) == [f"stage {number}" for number in range(1, 5)]
    assert all(
        set(each) == {"std", "rank"} and min(each.values()) > 0 for each in record.groups.values()
    )
    remaining = {path.name for path in result.weights.parent.iterdir()}
    assert remaining == {"backbone.safetensors", "pretraining.safetensors", "data.json"}


def test_workers_and_a_stop_change_nothing(pretraining, tiny_world, tmp_path):
    with stopped_after(4), pytest.raises(KeyboardInterrupt, match="stopped after step 4"):
        pretrained(tiny_world, tmp_path, workers=2)
    assert not list((tmp_path / "results").glob("runs/*"))
    resumed = pretrained(tiny_world, tmp_path).record
    for part in ("name", "weights", "metrics", "groups", "curve"):
        assert getattr(resumed, part) == getattr(pretraining[1].record, part), part


def test_a_result_is_taken_up_unless_its_weights_are_not_its_own(
    pretraining, tiny_world, tmp_path, capsys
):
    folder = shutil.copytree(pretraining[0], tmp_path / "copied")
    assert pretrained(tiny_world, folder).record == pretraining[1].record
    assert "is already complete; --overwrite recomputes it" in capsys.readouterr().err
    (path,) = folder.glob("runs/*/backbone.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert pretrained(tiny_world, folder).weights.read_bytes() == whole
    assert "does not match its recorded hash; recomputing" in capsys.readouterr().err
    shutil.rmtree(folder / "results")
    pretrained(tiny_world, folder)
    assert f"no record of it in {folder}/results; recomputing" in capsys.readouterr().err
