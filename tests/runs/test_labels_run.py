"""The control `labels`: a run starts from the backbone of a network that was trained with labels of other streets."""

from __future__ import annotations

import pytest
import torch
from short_runs import setup_in

from tespec.core.errors import UserError
from tespec.core.registry import register_methods
from tespec.inference.load import load_trained
from tespec.pretraining.method import find_method
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import Wanted, finetune, open_run
from tespec.weights.files import read_tensors, write_weights
from tespec.world import make_world

FEW = ("optimisation.steps=2", "optimisation.warmup_steps=1", "batch_size=2", "segments=2")


def wanted(world, folder, method="scratch", arch="recurrent", checkpoint=None):
    register_methods()
    data = Data(world / "ddd17", "sample")
    changes = FEW if arch == "recurrent" else FEW[:3]
    settings = settings_of(data, "ddd17", arch, None, changes)
    return Wanted(method, find_method(method), settings, data, checkpoint, 0, setup_in(folder))


@pytest.fixture(scope="module")
def other_streets(tiny_world):
    return make_world("tiny", 1, tiny_world.parent, processes=1, datasets=("ddd17",))


@pytest.fixture(scope="module")
def trained(other_streets, tmp_path_factory):
    """The file that a run on other streets would leave."""
    path = tmp_path_factory.mktemp("trained") / "model.safetensors"
    open_run("evaluation", wanted(other_streets, path.parent), trains=True).write_network(path)
    return path


def test_the_backbone_is_that_of_the_file_and_the_head_is_fresh(trained, tiny_world, tmp_path):
    opened = open_run("evaluation", wanted(tiny_world, tmp_path, "labels", checkpoint=trained))
    given, _ = read_tensors(trained)
    for name, tensor in opened.model.state_dict().items():
        same = torch.equal(tensor, given[name])
        assert same or not name.startswith("backbone."), name
    facts = opened.run.start
    assert facts["coverage"] == 1
    assert set(facts["unused"]) == {name for name in given if not name.startswith("backbone.")}
    assert facts["recipe"]["seed"] == 0


def test_a_feedforward_network_leaves_the_memory_of_a_recurrent_one(trained, tiny_world, tmp_path):
    opened = open_run("evaluation", wanted(tiny_world, tmp_path, "labels", "feedforward", trained))
    assert any(name.startswith("lstms.") for name in opened.run.start["unused"])


def test_its_record_says_what_it_started_from(trained, tiny_world, tmp_path):
    record = finetune(wanted(tiny_world, tmp_path, "labels", "feedforward", trained))
    assert record["method"]["group"] == "Controls"
    assert record["weights"]["recipe"]["trained_on"] not in ("", record["data_fingerprint"])
    assert record["weights"]["source"] == "model.safetensors"
    # What else is written into the file does not stand in the way of those who read it.
    left = tmp_path / "runs" / record["name"] / "model.safetensors"
    assert load_trained(left).settings.arch == "feedforward"
    assert load_trained(trained).settings.task == "ddd17"


def test_labels_of_its_own_streets_are_refused(trained, other_streets, tmp_path):
    with pytest.raises(UserError, match=r"has learned the labels of the recordings that it would be fine-tuned on; "):
        open_run("evaluation", wanted(other_streets, tmp_path, "labels", checkpoint=trained))


def test_what_is_no_such_network_is_refused(trained, tiny_world, tmp_path):
    with pytest.raises(UserError, match="--method labels: is pre-trained on labels of other streets; give"):
        open_run("evaluation", wanted(tiny_world, tmp_path, "labels"))
    tensors, recipe = read_tensors(trained)
    backbone, headless = tmp_path / "backbone.safetensors", tmp_path / "headless.safetensors"
    write_weights(backbone, {name: each for name, each in tensors.items() if "head" in name}, recipe)
    write_weights(headless, tensors, {"width": "micro"})
    for path in (backbone, headless):
        with pytest.raises(UserError, match="holds no network that a run has trained with labels; give the model"):
            open_run("evaluation", wanted(tiny_world, tmp_path, "labels", checkpoint=path))
    with pytest.raises(UserError):
        open_run("evaluation", wanted(tiny_world, tmp_path, "tespec", checkpoint=trained))
