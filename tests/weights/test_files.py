"""Weight files: reading, refused content, and no execution of code in a file."""

import argparse
import json
import os
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tespec
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.weights.files import read_tensors

RECIPE = {
    "bins": 1,
    "in_channels": 2,
    "sensor": [32, 32],
    "backbone": "swin_micro",
    "recurrent": False,
}


CYCLE: dict[str, Any] = {}
CYCLE["model"] = {"state_dict": CYCLE}
WRONG = [
    ("bins", 0),
    ("bins", 10**9),
    ("bins", "1"),
    ("in_channels", -1),
    ("sensor", 3),
    ("sensor", ["a", "b"]),
    ("backbone", 3),
    ("recurrent", "no"),
    ("backbone", None),
    ("data_fingerprint", 3),
    ("objective", "x"),
    ("run", None),
]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        *((RECIPE | {name: value}, f"recipe, {name}: ") for name, value in WRONG),
        *(
            ({key: RECIPE[key] for key in RECIPE if key != name}, f"its recipe lacks {name}")
            for name in ("sensor", "recurrent", "bins")
        ),
        *(
            (text, "not a readable safetensors file|not a mapping")
            for text in ("[" * 200_000, "[]", "{", '{"backbone": ')
        ),
        (RECIPE | {"width": "swin-of-mine"}, "unknown value 'swin-of-mine'"),
    ],
)
def test_a_recipe_of_other_types_or_that_lacks_something_is_refused(tmp_path, recipe, message):
    text = recipe if isinstance(recipe, str) else json.dumps(recipe)
    tensors = EventSwin("swin_micro", recurrent=False, bins=1, img_size=(32, 32)).state_dict()
    save_file(tensors, tmp_path / "a.safetensors", metadata={"tespec": text})
    with pytest.raises(UserError, match=message):
        tespec.load(tmp_path / "a.safetensors")


def test_settings_beside_the_weights_are_read_as_plain_values(tmp_path, monkeypatch):
    # yacs saves a dictionary with attributes.
    node = type("CfgNode", (dict,), {"__module__": "yacs.config"})
    settings = node(MODEL=node(TYPE="swin"))
    settings.__dict__["__immutable__"] = True
    for name in ("yacs", "yacs.config"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(CfgNode=node))
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
    assert torch.equal(read_tensors(tmp_path / "a.pth")[0]["a"], torch.ones(3))


class Harmful:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    "hide",
    [
        lambda x: x,
        lambda x: {"a": {"b": [(x,)]}},
        lambda x: argparse.Namespace(inner=[x]),
        lambda x: {x: 1},
    ],
)
def test_a_file_that_could_run_code_is_refused(tmp_path, capsys, hide):
    path = tmp_path / "harmful.pth"
    torch.save({"model": {"a": torch.zeros(1)}, "extra": hide(Harmful())}, path)
    with pytest.raises(
        UserError, match=r"holds more than plain tensors \(print\), and loading it could run code"
    ):
        read_tensors(path)
    path.write_bytes(pickle.dumps(hide(Harmful()), protocol=2))
    with pytest.raises(UserError):
        read_tensors(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
def test_a_torn_file_is_refused_wherever_it_ends(tmp_path, kind):
    path = tmp_path / ("torn.safetensors" if kind == "safetensors" else "torn.pth")
    if kind == "safetensors":
        save_file({"a": torch.zeros(50)}, path)
    else:
        torch.save(
            {"model": {"a": torch.zeros(50)}}, path, _use_new_zipfile_serialization=kind == "zip"
        )
    content = path.read_bytes()
    for length in (0, 5, *range(7, len(content) - 1, 53)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match="torn"):
            read_tensors(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.pth", None, "gone.pth: no such weights file"),
        ("folder", Path.mkdir, r"folder: cannot be read \(Is a directory\); "),
        ("pipe.pth", os.mkfifo, r"pipe.pth: cannot be read \(not a regular file\); "),
        ("empty.pth", {"epoch": 3}, "holds no tensors"),
        ("list.pth", [torch.ones(2)], "holds no state dict"),
        ("cycle.pth", CYCLE, "holds no tensors"),
        ("sparse.pth", {"a": torch.ones(2).to_sparse()}, "holds no tensors"),
        ("meta.pth", {"a": torch.ones(2, device="meta")}, "holds no tensors"),
        ("expanded.pth", {"a": torch.ones(1).expand(10**10)}, "holds no tensors"),
    ],
)
def test_files_without_weights_are_named(tmp_path, name, content, message):
    if callable(content):
        content(tmp_path / name)
    elif content is not None:
        torch.save(content, tmp_path / name)
    with pytest.raises(UserError, match=message):
        read_tensors(tmp_path / name)
