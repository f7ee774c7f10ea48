"""Scores on the validation split: their own record, of the same training, and nothing of it trained on."""

from __future__ import annotations

import json
import shutil

import pytest
from once_runs import trained_runs
from short_runs import setup_in

from tespec.comparison.records import read_records, write_record
from tespec.core.errors import UserError
from tespec.core.registry import register_methods
from tespec.pretraining.method import find_method
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import CellSpec, finetune, prepare_run
from tespec.runs.probe import probe
from tespec.runs.references import label_prior

FEW = ("optimisation.steps=2", "optimisation.warmup_steps=1", "batch_size=2", "segments=2")


def wanted(world, folder, split="test", task="ddd17", changes=(), **setup):
    register_methods()
    data = Data(world / task, "sample")
    settings = settings_of(data, task, "recurrent", None, [*FEW, *changes])
    return CellSpec("scratch", find_method("scratch"), settings, data, None, 0, setup_in(folder, **setup), split=split)


def numbers(record):
    return {part: getattr(record, part) for part in ("name", "metrics", "groups", "recordings", "classes", "curve")}


@pytest.fixture(scope="module")
def alone(tiny_world, tmp_path_factory):
    """The record of each split, trained for it alone."""
    return {split: finetune(wanted(tiny_world, tmp_path_factory.mktemp(split), split)) for split in ("test", "val")}


def test_records_say_on_what_they_stand(alone, tiny_world):
    splits = json.loads((tiny_world / "ddd17" / "dataset.json").read_text())["splits"]
    for split, record in alone.items():
        assert record.split == split
        assert list(record.recordings) == splits[split]
        assert record.config["splits"] == {name: splits[name] for name in ("train", split)}
        assert set(record.protocol) & {"test", "val"} == {split}
        assert record.protocol["scored"].startswith(f"every {split} label once")
    assert alone["test"].id != alone["val"].id
    assert alone["test"].training == alone["val"].training != ""
    assert alone["test"].metrics != alone["val"].metrics


@pytest.mark.parametrize("order", [("val", "test"), pytest.param(("test", "val"), marks=pytest.mark.slow)])
def test_one_training_serves_both_splits(alone, tiny_world, tmp_path, order, capsys):
    first, second = order
    with trained_runs() as trained:
        finetune(wanted(tiny_world, tmp_path, first))
        assert len(trained) == 1
        other = finetune(wanted(tiny_world, tmp_path, second))
        assert len(trained) == 1
    assert numbers(other) == numbers(alone[second])
    assert f"trained already, for the {first} split" in capsys.readouterr().err
    assert other.environment["trained_by"] == alone[first].name
    assert other.time["total"] >= other.time["train"] > 0
    assert (tmp_path / "runs" / other.name / "model.safetensors").is_file()
    assert finetune(wanted(tiny_world, tmp_path, second)) == other


def test_another_training_serves_no_other_split(alone, tiny_world, tmp_path):
    changes = ["optimisation.peak_lr=1e-4"], ["splits.train=[dir0]"]
    others = [
        prepare_run("evaluation", wanted(tiny_world, tmp_path, "val", changes=each), trains=True) for each in changes
    ]
    others.append(prepare_run("evaluation", wanted(tiny_world, tmp_path, "val", accumulate=2), trains=True))
    assert alone["test"].training not in {other.run.training for other in others}


def test_a_training_is_done_again_where_it_is_overwritten_or_its_weights_are_gone(alone, tiny_world, tmp_path):
    write_record(alone["test"].model_copy(update={"environment": {"modified": True}}), tmp_path / "results")
    with trained_runs() as trained:
        finetune(wanted(tiny_world, tmp_path, "val"))
        assert len(trained) == 1
        (path,) = (tmp_path / "runs").glob("*/model.safetensors")
        (tmp_path / "runs" / alone["test"].name).mkdir()
        path.rename(tmp_path / "runs" / alone["test"].name / path.name)
        (tmp_path / "results" / "runs" / f"{alone['val'].name}.json").unlink()
        again = finetune(wanted(tiny_world, tmp_path, "val"))
        assert again.environment["modified"] is True  # as that of the training
        assert len(trained) == 1
        finetune(wanted(tiny_world, tmp_path, "val", overwrite=True))
        assert len(trained) == 2


def test_probes_and_the_label_prior_are_scored_on_it_too(tiny_world, tmp_path):
    found = [probe(wanted(tiny_world, tmp_path, split)) for split in ("test", "val")]
    data = Data(tiny_world / "ddd17", "sample")
    settings = settings_of(data, "ddd17", "feedforward", None, [*FEW[:3]])
    found += [label_prior(settings, data, 0, setup_in(tmp_path), split) for split in ("test", "val")]
    for of_test, of_val in zip(found[::2], found[1::2], strict=True):
        assert (of_test.split, of_val.split) == ("test", "val")
        assert of_test.metrics != of_val.metrics
    assert not any(record.training for record in found)
    assert len(read_records(tmp_path / "results")[0]) == 4


def test_data_without_a_validation_split_is_refused_in_words(tiny_world, tmp_path):
    root = tmp_path / "ddd17"
    shutil.copytree(tiny_world / "ddd17", root, ignore=shutil.ignore_patterns("dataset.json"))
    register_methods()
    data = Data(root, "ddd17")
    settings = settings_of(data, "ddd17", "recurrent", "sample")
    asked = CellSpec("scratch", find_method("scratch"), settings, data, None, 0, setup_in(tmp_path), split="val")
    with pytest.raises(UserError, match=r"DDD17 has no validation split: .*; take some out of splits.train and name"):
        prepare_run("evaluation", asked)


def test_a_recording_is_of_one_split(tiny_world, tmp_path):
    with pytest.raises(UserError, match="dir1 is a recording of both train and val; leave it in one of"):
        prepare_run("evaluation", wanted(tiny_world, tmp_path, changes=["splits.val=[dir1]"]))
    own = wanted(tiny_world, tmp_path, "val", changes=["splits.train=[dir0]", "splits.val=[dir1]"])
    task = prepare_run("evaluation", own).task
    assert [recording.name for recording in (*task.train, *task.scored)] == ["dir0", "dir1"]
