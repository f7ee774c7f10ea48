"""Earlier names of settings: read in weights, else refused with the present name."""

import pytest

import tespec
from tespec.cli.main import main
from tespec.core import config
from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.plan.jobs import expand, read_plan
from tespec.registry import register_methods
from tespec.weights.files import read_recipe, write_weights


def test_weights_with_an_earlier_recipe_are_loaded(tmp_path):
    backbone = EventSwin("swin_micro", recurrent=False, bins=1, img_size=(32, 32))
    recipe = {"bins": 1, "in_channels": 2, "sensor": [32, 32], "recurrent": False}
    path = tmp_path / "old.safetensors"
    write_weights(path, backbone.state_dict(), recipe | {"width": "micro", "sampling": "streams"})
    assert read_recipe(path) == recipe | {"backbone": "swin_micro", "sampling": "stream"}
    assert isinstance(tespec.load(path), EventSwin)


@pytest.mark.parametrize(
    ("change", "present"),
    [
        ("label_share=0.1", "unknown setting 'label_share'; it is called 'label_fraction' now"),
        ("augmentation.zoom_in_share=0.5", "it is called 'zoom_in_fraction' now"),
        ("sampling=clips", "sampling: 'clips' is not allowed; it is called 'random' now"),
        ("sampling=streams", "sampling: 'streams' is not allowed; it is called 'stream' now"),
    ],
)
def test_a_change_by_an_earlier_name_is_refused_with_the_present_one(change, present):
    with pytest.raises(UserError, match=present):
        finetuning_settings("ddd17", "recurrent", "sample", [change])


@pytest.mark.parametrize(
    ("text", "present"),
    [
        ("base: tiny", "it is called 'smoke' now"),
        ("base: sample\nfinetuning: {label_share: 0.1}", "it is called 'label_fraction' now"),
        ("base: sample\nfinetuning: {sampling: clips}", "it is called 'random' now"),
        ("base: sample\nbackbones: {swin: tiny}", "it is called 'swin_tiny' now"),
    ],
)
def test_a_profile_with_an_earlier_name_is_refused_with_the_present_one(
    tmp_path, monkeypatch, text, present
):
    monkeypatch.setattr(config, "_added", {})
    (tmp_path / "mine.yaml").write_text(text)
    config.add_file("profiles", tmp_path / "mine.yaml")
    with pytest.raises(UserError, match=present):
        finetuning_settings("ddd17", "recurrent", "mine")


CELLS = "cells: [{methods: [scratch], tasks: [ddd17], "


@pytest.mark.parametrize(
    ("text", "present"),
    [
        (CELLS + "label_share: [0.1]}]", "it is called 'label_fraction' now"),
        (CELLS + "width: tiny}]", "it is called 'backbone' now"),
        (CELLS + "backbone: tiny}]", "it is called 'swin_tiny' now"),
        (CELLS + "}]\nprofile: tiny", "it is called 'smoke' now"),
    ],
)
def test_a_plan_with_an_earlier_name_is_refused_with_the_present_one(tmp_path, text, present):
    register_methods()
    (tmp_path / "mine.yaml").write_text(f"data: sample\n{text}")
    with pytest.raises(UserError, match=present):
        expand(read_plan(str(tmp_path / "mine.yaml")))


@pytest.mark.parametrize("verb", ["run --task ddd17", "pretrain"])
def test_an_option_with_an_earlier_name_is_refused_with_the_present_one(verb, capsys):
    assert main([*verb.split(), "--method", "moby", "--profile", "tiny"]) == 2
    message = "tiny: no such file in configs/profiles; it is called 'smoke' now"
    assert message in capsys.readouterr().err
