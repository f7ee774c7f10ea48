"""The strip of pictures that a finished run leaves."""

from pathlib import Path

import pytest
import torch
from networks import written
from PIL import Image

from tespec.cli.run import draw_strip_of
from tespec.inference import strip
from tespec.runs.setup import Setup

CPU = torch.device("cpu")


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
@pytest.mark.parametrize("name", ["ddd17", "gen1", "mvsec"])
def test_labelled_moments_from_first_to_last_are_drawn(tiny_world, tmp_path, monkeypatch, name, arch):
    path, _, _ = written(tiny_world, tmp_path, name, arch)
    monkeypatch.setattr(strip, "SECONDS", 1.0)
    drawn, kept = [], []
    monkeypatch.setattr(strip, "above", lambda moment, score: kept.append(moment) or moment)
    monkeypatch.setattr(strip, "draw_figure", lambda moments, classes, file: drawn.extend(moments))
    strip.draw_strip(path, tiny_world / name, CPU, tmp_path / "strip.png")
    assert len(drawn) == len(kept) == strip.ROWS
    assert all(moment.truth is not None for moment in drawn)
    seconds = [moment.seconds for moment in drawn]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= 1.0


def test_a_strip_is_a_picture(tiny_world, tmp_path, monkeypatch):
    path, _, _ = written(tiny_world, tmp_path, "ddd17", "feedforward")
    monkeypatch.setattr(strip, "SECONDS", 0.5)
    strip.draw_strip(path, tiny_world / "ddd17", CPU, tmp_path / "pictures" / "run.png")
    with Image.open(tmp_path / "pictures" / "run.png") as picture:
        assert picture.width > 900


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory\nTried to allocate"), MemoryError()])
def test_a_picture_is_no_reason_to_lose_the_next_seed(tmp_path, monkeypatch, capsys, error):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(strip, "draw_strip", fail)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "model.safetensors").touch()
    setup = Setup(tmp_path / "results", tmp_path / "runs", "cpu", 0, False, False, "")
    draw_strip_of({"name": "a"}, setup, Path("data"))
    assert capsys.readouterr().err.startswith("no picture: ")
