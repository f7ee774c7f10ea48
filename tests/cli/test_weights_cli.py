from __future__ import annotations

import subprocess
import sys

import tespec.core.compat

import pytest
import timm
import torch
from safetensors.torch import load_file

import tespec
from tespec.cli import weights as weights_cli
from tespec.cli.command import run
from tespec.core.paths import REPOSITORY
from tespec.models import EventResNet, EventSwin
from tespec.weights.files import read_weights, sha256_of, write_weights

RECIPE = {"width": "micro", "recurrent": True, "bins": 10, "sensor": [90, 150], "method": "tespec", "data": "sample"}


@pytest.fixture
def own(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "own.safetensors"
    write_weights(path, EventSwin("micro", img_size=(96, 160)).state_dict(), RECIPE)
    return path


@pytest.fixture
def call(capsys):
    """Call the command line; gives (exit code, stdout, stderr)."""

    def call(*arguments):
        try:
            code = run(lambda: weights_cli.main([str(argument) for argument in arguments]))
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_inspect_says_what_it_is_and_what_it_fills(own, call):
    code, out, err = call("inspect", own)
    assert (code, err) == (0, "")
    assert sha256_of(own) in out
    assert "micro, recurrent         yes: 125 of 125 tensors\n" in out
    assert "micro, feed-forward      yes: 117 of 117 tensors\n" in out
    assert "lstms.3                     2 tensors" in out
    assert "method tespec" in out


def test_inspect_names_what_is_missing(tmp_path, call):
    state = EventSwin("micro", img_size=(96, 160)).state_dict()
    del state["swin.layers.1.downsample.norm.bias"]
    path = tmp_path / "half.safetensors"
    write_weights(path, state, RECIPE)
    code, out, _ = call("inspect", path)
    assert code == 0
    assert "no: 124 of 125 tensors; swin.layers.1.downsample.norm.bias is missing" in out
    code, out, err = call("convert", path, tmp_path / "out.safetensors")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "swin.layers.1.downsample.norm.bias is missing" in err
    assert not (tmp_path / "out.safetensors").exists()


def test_to_timm_and_back(own, tmp_path, call):
    plain, back = tmp_path / "plain.safetensors", tmp_path / "back.safetensors"
    code, out, _ = call("convert", own, plain, "--to", "timm")
    assert code == 0
    assert "left out, as timm has no place for them: 8 tensors" in out
    state = load_file(plain)
    assert "layers.3.downsample.norm.bias" in state
    assert call("convert", plain, back, "--sensor", "150x90")[0] == 0
    tensors, recipe = read_weights(back)
    assert (recipe["recurrent"], recipe["sensor"], recipe["width"]) == (False, [90, 150], "micro")
    assert recipe["source"] == {"file": plain.name, "format": "swin-timm", "sha256": sha256_of(plain)}
    before, _ = read_weights(own)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    assert not tespec.load(back).recurrent


def test_timm_takes_the_plain_file_of_a_swin_t(tmp_path, call):
    path, plain = tmp_path / "tiny.pth", tmp_path / "plain.safetensors"
    state = timm.create_model("swin_tiny_patch4_window7_224").state_dict()
    torch.save(state, path)
    assert call("convert", path, plain, "--to", "timm")[0] == 0
    model = timm.create_model("swin_tiny_patch4_window7_224", in_chans=20, num_classes=0)
    model.norm = torch.nn.Identity()
    model.load_state_dict(load_file(plain))


def test_weights_that_lost_their_convlstms_are_not_made_feedforward(tmp_path, call):
    path = tmp_path / "lost.safetensors"
    write_weights(path, EventSwin("micro", recurrent=False, img_size=(96, 160)).state_dict(), RECIPE)
    code, _, err = call("convert", path, tmp_path / "out.safetensors")
    assert code == 2
    assert "lstms.0.gates.weight is missing" in err


def test_a_resnet_is_converted_with_twenty_channels(tmp_path, call):
    path, out = tmp_path / "ecdp.pth", tmp_path / "out.safetensors"
    torch.save({"checkpoint": timm.create_model("resnet50", in_chans=2).state_dict()}, path)
    assert call("convert", path, out)[0] == 0
    tensors, recipe = read_weights(out)
    assert tensors["resnet.conv1.weight"].shape == (64, 20, 7, 7)
    assert (recipe["width"], recipe["bins"], recipe["in_channels"]) == ("resnet50", 10, 20)
    assert isinstance(tespec.load(out), EventResNet)
    assert call("convert", path, tmp_path / "plain.safetensors", "--to", "timm")[0] == 0
    timm.create_model("resnet50", in_chans=20, num_classes=0).load_state_dict(load_file(tmp_path / "plain.safetensors"))


def test_nothing_is_overwritten_unasked(own, tmp_path, call):
    taken = tmp_path / "taken.safetensors"
    taken.write_text("mine")
    for arguments in (("convert", own, taken), ("convert", own, own)):
        code, out, err = call(*arguments)
        assert (code, out) == (2, "")
        assert "exists already; name another place, or give --overwrite" in err
    assert taken.read_text() == "mine"
    assert call("convert", own, taken, "--overwrite")[0] == 0
    assert tespec.load(taken).arch == "micro"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "gone.pth"), "gone.pth: no such weights file"),
        (("convert", "FILE", "out.pth"), "is not named .safetensors"),
        (("inspect", "FILE", "--sensor", "90"), "give WIDTHxHEIGHT in px"),
        (("inspect", "FILE", "--bins", "0"), "argument --bins"),
        (("look", "FILE"), "unknown value 'look'"),
        (("inspect", "FILE", "--licence", "MIT"), "unknown argument '--licence'"),
    ],
)
def test_mistakes_are_answered_in_one_line(own, tmp_path, monkeypatch, call, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*(own if argument == "FILE" else argument for argument in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["own.safetensors"]


def test_the_command_line_is_read_without_torch():
    code = "import sys; import tespec.cli.weights as w; w.parse(['inspect', 'a']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
