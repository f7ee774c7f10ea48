"""The strip of pictures that a finished run leaves."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from networks import written
from PIL import Image

from tespec.cli.run import draw_strip_of
from tespec.inference import predict
from tespec.pictures.predictions import Prediction
from tespec.runs.setup import Setup

CPU = torch.device("cpu")


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
@pytest.mark.parametrize("name", ["ddd17", "gen1", "mvsec"])
def test_labelled_moments_from_first_to_last_are_drawn(tiny_world, tmp_path, monkeypatch, name, arch):
    path, _, _ = written(tiny_world, tmp_path, name, arch)
    monkeypatch.setattr(predict, "SECONDS", 1.0)
    drawn, kept = [], []
    monkeypatch.setattr(Prediction, "above", lambda shown, score: kept.append(shown) or shown)
    monkeypatch.setattr(predict, "draw_figure", lambda shown, style, file: drawn.extend(shown))
    predict.draw_strip(path, tiny_world / name, CPU, tmp_path / "strip.png")
    assert len(drawn) == len(kept) == predict.STRIP_ROWS
    assert all(each.truth is not None for each in drawn)
    seconds = [each.seconds for each in drawn]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= 1.0


def test_a_strip_is_a_picture(tiny_world, tmp_path, monkeypatch):
    path, _, _ = written(tiny_world, tmp_path, "ddd17", "feedforward")
    monkeypatch.setattr(predict, "SECONDS", 0.5)
    predict.draw_strip(path, tiny_world / "ddd17", CPU, tmp_path / "pictures" / "run.png")
    with Image.open(tmp_path / "pictures" / "run.png") as picture:
        assert picture.width > 900


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory\nTried to allocate"), MemoryError()])
def test_a_picture_is_no_reason_to_lose_the_next_seed(tmp_path, monkeypatch, capsys, error):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(predict, "draw_strip", fail)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "model.safetensors").touch()
    setup = Setup(tmp_path / "results", tmp_path / "runs", "cpu", 0, False, False, "")
    draw_strip_of(SimpleNamespace(name="a"), setup, Path("data"))
    assert capsys.readouterr().err.startswith("no picture: ")
