"""What weights were pre-trained on, by their file; and the learning rate that follows from it."""

from pathlib import Path

import pytest
import torch
from published_files import ecddp, moby, saved, tespec_release, timm_new
from safetensors.torch import save_file

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.pretraining.method import find_method
from tespec.registry import register_methods
from tespec.runs.data import Data
from tespec.runs.finetune import CellSpec
from tespec.runs.setup import Setup
from tespec.weights import load
from tespec.weights.files import write_weights
from tespec.weights.load import Origin, inspect, origin_of, rewrite

RECIPE = {"width": "micro", "recurrent": True, "bins": 10, "sensor": [90, 150], "dataset": "1mpx"}
OTHERS, OWN = 3.46e-4, 1e-4  # peak learning rates on 1Mpx by the paper: in general, and after pre-training on 1Mpx


@pytest.fixture(scope="module", autouse=True)
def _methods():
    register_methods()


def own_file(folder, **facts):
    path = folder / "backbone.safetensors"
    write_weights(path, EventSwin(arch="micro", img_size=(96, 160)).state_dict(), RECIPE | facts)
    return path


@pytest.mark.parametrize(
    ("data", "expected"),
    [("1mpx", Origin("1mpx")), ("drive", Origin("drive")), ("sample", Origin("1mpx", sample=True))],
)
def test_weights_of_this_harness_name_their_data_in_the_header(tmp_path, monkeypatch, data, expected):
    path = own_file(tmp_path, data=data)
    monkeypatch.setattr(load, "read_tensors", lambda _: pytest.fail("a tensor was read"))
    assert origin_of(path) == expected


@pytest.mark.parametrize(
    ("content", "data"),
    [(tespec_release(), "1Mpx"), (moby(), "ImageNet-1k"), (ecddp(), "E-TartanAir"), (timm_new(), "")],
    ids=["tespec", "moby", "ecddp", "timm"],
)
def test_a_published_file_has_the_data_of_its_publication_converted_or_not(tmp_path, content, data):
    path, rewritten = saved(tmp_path, content), tmp_path / "converted.safetensors"
    write_weights(rewritten, *rewrite(inspect(path)))
    assert [origin_of(path), origin_of(rewritten)] == [Origin(data)] * 2
    save_file({"something": torch.zeros(2)}, tmp_path / "bare.safetensors")
    assert origin_of(tmp_path / "bare.safetensors") == Origin()


def peak_of(method, checkpoint, *, sample=False, changes=(), task="1mpx"):
    settings = finetuning_settings(task, "recurrent", "paper")
    data = Data(Path(task), "sample" if sample else task)
    spec = CellSpec(method, find_method(method), settings, data, checkpoint, 0, Setup(), tuple(changes))
    return spec.started(planned=True).optimisation.peak_lr


def test_the_weights_and_not_the_method_decide_the_learning_rate(tmp_path):
    assert peak_of("tespec", own_file(tmp_path, data="1mpx")) == OWN
    assert peak_of("tespec", own_file(tmp_path, data="gen1", dataset="gen1")) == OTHERS
    assert peak_of("ecddp", own_file(tmp_path, data="1mpx")) == OWN
    assert peak_of("ecddp", saved(tmp_path, ecddp())) == OTHERS
    assert peak_of("scratch", None) == OTHERS
    release, sample = saved(tmp_path, tespec_release()), own_file(tmp_path, data="sample")
    assert peak_of("tespec", release, task="gen1") == 2e-4
    # The sample world is no twin of the real data.
    assert [peak_of("tespec", release, sample=each) for each in (True, False)] == [OTHERS, OWN]
    assert [peak_of("tespec", sample, sample=each) for each in (True, False)] == [OWN, OTHERS]
    # Weights that are still to be made count by their recipe.
    made = [peak_of(name, None, sample=True) for name in ("tespec", "ecddp", "moby")]
    assert [*made, peak_of("tespec", None, sample=True, changes=("dataset=gen1",))] == [OWN, OWN, OTHERS, OTHERS]


def test_an_unreadable_file_does_not_change_the_learning_rate_in_silence(tmp_path, monkeypatch, capsys):
    """A method that reads a format of its own is told; any other is refused."""
    damaged = saved(tmp_path, tespec_release())
    damaged.write_bytes(damaged.read_bytes()[:-400])
    for path, message in ((damaged, "not a readable torch file"), (tmp_path / "gone", "no such weights file")):
        with pytest.raises(UserError, match=message):
            peak_of("tespec", path)
    monkeypatch.setattr(find_method("tespec"), "initialise", classmethod(lambda *_: None))
    assert peak_of("tespec", damaged) == OTHERS
    assert "weights.pth: its pre-training is not known, so the peak learning rate" in capsys.readouterr().err
