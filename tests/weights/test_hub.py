from pathlib import Path

import tespec.core.compat  # noqa: F401  # before timm

import pytest
import timm
import torch

from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.weights.export import fetched
from tespec.weights.load import load_backbone

NAME = "swin_tiny_patch4_window7_224.ms_in1k"


def test_a_path_stays_a_path():
    assert fetched(None) is None
    assert fetched(Path("a/b.pth")) == Path("a/b.pth")


def test_a_network_of_the_hub_is_fetched_once_and_loads(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    torch.manual_seed(0)
    network, calls = timm.create_model("swin_tiny_patch4_window7_224", num_classes=0), []

    def create(name, **options):
        calls.append((name, options))
        return network

    monkeypatch.setattr(timm, "create_model", create)
    path = fetched(Path(f"timm:{NAME}"))
    assert fetched(Path(f"timm:{NAME}")) == path
    assert calls == [(NAME, {"pretrained": True, "num_classes": 0})]
    report = load_backbone(EventSwin("tiny", recurrent=False, img_size=(224, 224)), path)
    assert (report.coverage, report.format) == (1, "swin-timm")


def test_what_cannot_be_fetched_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))

    def create(name, **options):
        raise ConnectionError("no network")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(UserError, match=r"cannot be fetched \(ConnectionError\); download the file elsewhere"):
        fetched(Path(f"timm:{NAME}"))
    with pytest.raises(UserError, match="timm knows no such weights"):
        fetched(Path("timm:swin_of_mine"))
    assert not list(tmp_path.rglob("*.safetensors"))
