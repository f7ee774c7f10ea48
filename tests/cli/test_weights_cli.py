import tespec.core.compat

import pytest
import timm
import torch
from safetensors.torch import load_file

import tespec
from tespec.core.files import sha256_of
from tespec.models import EventResNet, EventSwin
from tespec.weights.files import read_tensors, write_weights

RECIPE = {
    "backbone": "swin_micro",
    "recurrent": True,
    "bins": 10,
    "sensor": [90, 150],
    "method": "tespec",
    "data": "sample",
}


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.safetensors"
    write_weights(path, EventSwin("swin_micro", img_size=(96, 160)).state_dict(), RECIPE)
    return path


def test_inspect_shows_the_format_the_parts_and_which_networks_it_fills(own, tmp_path, call):
    code, out, err = call("weights", "inspect", own)
    assert (code, err) == (0, "")
    for part in (
        "lstms.3                     2 tensors",
        "swin_micro, recurrent    yes: 125 of 125 tensors of the backbone\n",
        "swin_micro, feed-forward yes: 117 of 117 tensors of the backbone\n",
        sha256_of(own),
        "method tespec",
    ):
        assert part in out
    shown = tmp_path / "shown.safetensors"
    tensors = read_tensors(own)[0] | {"c\x1b[2J": torch.zeros(1)}
    write_weights(shown, tensors, RECIPE | {"method": "a\x1b[2J\nb"})
    out = call("weights", "inspect", shown)[1]
    assert "recipe   method a\\x1b[2J b, " in out
    assert "    c\\x1b[2J " in out
    assert "; c\\x1b[2J has no counterpart" in out
    assert "\x1b" not in out
    write_weights(shown, tensors, RECIPE | {"backbone": "mine"})
    code, out, err = call("weights", "inspect", shown)
    assert (code, out, "unknown value 'mine'" in err) == (2, "", True)
    half, gone, tensors = (
        tmp_path / "half.safetensors",
        "swin.layers.1.downsample.norm.bias",
        read_tensors(own)[0],
    )
    del tensors[gone]
    write_weights(half, tensors, RECIPE)
    assert (
        f"no: 124 of 125 tensors of the backbone; {gone} is missing"
        in call("weights", "inspect", half)[1]
    )
    code, out, err = call("weights", "convert", half, tmp_path / "out.safetensors")
    assert (code, out, err.count("\n"), f"{gone} is missing" in err) == (2, "", 1, True)
    assert not (tmp_path / "out.safetensors").exists()


def test_to_timm_and_back(own, tmp_path, call):
    plain, back = tmp_path / "plain.safetensors", tmp_path / "back.safetensors"
    code, out, _ = call("weights", "convert", own, plain, "--to", "timm")
    assert (code, "not written, as timm has no ConvLSTMs or necks: 8 tensors" in out) == (0, True)
    assert call("weights", "convert", plain, back, "--sensor", "150x90")[0] == 0
    tensors, recipe = read_tensors(back)
    assert (recipe["recurrent"], recipe["sensor"], recipe["backbone"]) == (
        False,
        [90, 150],
        "swin_micro",
    )
    assert recipe["source"] == {
        "file": plain.name,
        "format": "swin-timm",
        "sha256": sha256_of(plain),
    }
    before, _ = read_tensors(own)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    assert not tespec.load(back).recurrent


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("swin_tiny_patch4_window7_224", 3),
        pytest.param("resnet50", 2, marks=pytest.mark.slow),
    ],
)
def test_a_network_of_timm_comes_with_twenty_channels_and_goes_back_to_timm(
    tmp_path, call, name, channels
):
    path, out, plain = (
        tmp_path / name for name in ("given.pth", "out.safetensors", "plain.safetensors")
    )
    torch.save({"checkpoint": timm.create_model(name, in_chans=channels).state_dict()}, path)
    assert call("weights", "convert", path, out)[0] == 0
    assert isinstance(tespec.load(out), EventResNet if name == "resnet50" else EventSwin)
    assert call("weights", "convert", path, plain, "--to", "timm")[0] == 0
    model = timm.create_model(name, in_chans=20, num_classes=0)
    model.norm = torch.nn.Identity()
    model.load_state_dict(load_file(plain))


def test_nothing_is_overwritten_unasked(own, tmp_path, call):
    taken = tmp_path / "taken.safetensors"
    taken.write_text("mine")
    for place in (taken, own):
        code, out, err = call("weights", "convert", own, place)
        assert (code, out, "already exists; choose another path, or give --overwrite" in err) == (
            2,
            "",
            True,
        )
    assert taken.read_text() == "mine"
    assert call("weights", "convert", own, taken, "--overwrite")[0] == 0
    assert tespec.load(taken).name == "swin_micro"
