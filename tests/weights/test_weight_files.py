"""Files of weights: what is read from them, and what no file may do to its reader."""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import tespec
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.weights.export import inspect
from tespec.weights.files import read_tensors, read_weights, write_weights

RECIPE = {"bins": 1, "in_channels": 2, "sensor": [32, 32], "width": "micro", "recurrent": False}


def weights(path: Path, recipe: str) -> Path:
    torch.manual_seed(0)
    tensors: dict[str, Tensor] = EventSwin("micro", recurrent=False, bins=1, img_size=(32, 32)).state_dict()
    save_file(tensors, path, metadata={"tespec": recipe})
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"bins": 0}, {"bins": 10**9}, {"bins": "1"}, {"in_channels": -1}, {"sensor": 3}, {"sensor": [32]},
        {"sensor": ["a", "b"]}, {"width": 3}, {"recurrent": "no"}, {"recurrent": [1]},
    ],
)  # fmt: skip
def test_a_recipe_of_other_types_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = weights(tmp_path / "a.safetensors", json.dumps(RECIPE | change))
    for read in (tespec.load, inspect, read_weights):
        with pytest.raises(UserError, match=f"the recipe in it, {next(iter(change))}: "):
            read(path)


@pytest.mark.parametrize("setting", ["sensor", "recurrent", "bins"])
def test_a_recipe_without_a_setting_is_refused(tmp_path: Path, setting: str) -> None:
    path = weights(tmp_path / "a.safetensors", json.dumps({key: RECIPE[key] for key in RECIPE if key != setting}))
    with pytest.raises(UserError, match=f"the recipe in it does not name {setting}"):
        tespec.load(path)


@pytest.mark.parametrize("recipe", ["[" * 200_000, "[]", "{", '{"width": "micro"'])
def test_a_recipe_that_is_none_is_refused(tmp_path: Path, recipe: str) -> None:
    with pytest.raises(UserError, match=r"not a readable safetensors file|is no mapping"):
        read_weights(weights(tmp_path / "a.safetensors", recipe))


def test_what_this_harness_writes_is_read(tmp_path: Path) -> None:
    write_weights(tmp_path / "a.safetensors", {"a": torch.ones(3)}, RECIPE)
    assert read_weights(tmp_path / "a.safetensors")[1] == RECIPE


def test_settings_beside_the_weights_are_read_as_plain_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What yacs saves: a dictionary with attributes.
    node = type("CfgNode", (dict,), {"__module__": "yacs.config"})
    settings = node(MODEL=node(TYPE="swin"))
    settings.__dict__["__immutable__"] = True
    module = ModuleType("yacs.config")
    module.CfgNode = node  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "yacs", ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", module)
    content = {
        "model": {"a": torch.ones(3)},
        "config": settings,
        "args": argparse.Namespace(lr=0.1, nested=[argparse.Namespace(a=1)]),
        "max_accuracy": np.float64(81.2),
        "curve": np.arange(3.0),
        "lr_scheduler": OrderedDict(last=np.int64(3)),
    }
    torch.save(content, tmp_path / "a.pth")
    monkeypatch.undo()
    assert b"yacs.config" in (tmp_path / "a.pth").read_bytes()
    tensors, _ = read_tensors(tmp_path / "a.pth")
    assert torch.equal(tensors["a"], torch.ones(3))


class Harmful:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return print, ("run",)


@pytest.mark.parametrize(
    "hide",
    [
        lambda x: x,
        lambda x: [x],
        lambda x: {"a": {"b": [(x,)]}},
        lambda x: argparse.Namespace(inner=[x]),
        lambda x: {x: 1},
    ],
)
def test_a_file_that_could_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hide: Callable[[Harmful], Any]
) -> None:
    path = tmp_path / "harmful.pth"
    torch.save({"model": {"a": torch.zeros(1)}, "extra": hide(Harmful())}, path)
    with pytest.raises(UserError, match=r"holds more than plain tensors \(print\), and loading it could run code"):
        read_weights(path)
    path.write_bytes(pickle.dumps(hide(Harmful()), protocol=2))
    with pytest.raises(UserError):
        read_weights(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
def test_a_torn_file_is_answered_wherever_it_ends(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "torn"
    if kind == "safetensors":
        save_file({"a": torch.zeros(50)}, path)
    else:
        torch.save({"model": {"a": torch.zeros(50)}}, path, _use_new_zipfile_serialization=kind == "zip")
    whole = path.read_bytes()
    path = tmp_path / ("torn.safetensors" if kind == "safetensors" else "torn.pth")
    for length in (5, *range(0, len(whole) - 1, 53)):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="torn"):
            read_tensors(path)


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    write_weights(tmp_path / "a.safetensors", {"a": torch.ones(3), "b": torch.tensor([0.0, float("nan")])}, {})
    with pytest.raises(UserError, match=r"b holds values that are not finite"):
        read_weights(tmp_path / "a.safetensors")


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.safetensors: no such weights file"):
        read_weights(tmp_path / "gone.safetensors")
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    with pytest.raises(UserError, match="holds no tensors"):
        read_weights(tmp_path / "empty.pth")


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_weights(path, {"a": torch.ones(3)}, {})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_weights(path, {"a": torch.zeros(1)}, {"unwritable": object()})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
