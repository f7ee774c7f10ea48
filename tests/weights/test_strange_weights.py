from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import tespec
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.weights.files import read_torch, read_weights, write_weights
from tespec.weights.inspection import inspect

RECIPE = {"bins": 1, "in_channels": 2, "sensor": [32, 32], "width": "micro", "recurrent": False}


def zipped_with_more(path: Path) -> None:
    torch.save({"a": torch.ones(3)}, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/9", bytes(50 << 20))


CONTENTS: dict[str, tuple[Any, str]] = {
    "one number for 10^12": ({"a": torch.zeros(1).expand(10**12)}, "would take 4,000,000,000,000 bytes"),
    "sparse": (
        {"a": torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (10**9,), check_invariants=True)},
        "is no plain array",
    ),
    "without values": ({"a": torch.zeros(10**9, device="meta")}, "is no plain array"),
    "complex": ({"a": torch.zeros(3, dtype=torch.complex64)}, "holds torch.complex64"),
    "eight bits": ({"a": torch.zeros(3).to(torch.float8_e4m3fn)}, "holds torch.float8_e4m3fn"),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_tensors_that_are_not_in_the_file_are_refused(tmp_path: Path, kind: str) -> None:
    content, said = CONTENTS[kind]
    torch.save({"state_dict": content}, tmp_path / "a.pth")
    with pytest.raises(UserError, match=said):
        read_weights(tmp_path / "a.pth")


def test_views_of_one_storage_are_counted(tmp_path: Path) -> None:
    shared = torch.zeros(1 << 20)
    torch.save({str(number): shared.view(1 << 10, -1) for number in range(100)}, tmp_path / "a.pth")
    with pytest.raises(UserError, match="would take 419,430,400 bytes"):
        read_torch(tmp_path / "a.pth")
    torch.save({"a": shared, "tied": shared.view(-1, 1)}, tmp_path / "b.pth")
    assert set(read_torch(tmp_path / "b.pth")) == {"a", "tied"}


def test_containers_that_hold_each_other_many_times_are_looked_at_once(tmp_path: Path) -> None:
    laughs: list[Any] = [torch.ones(2)]
    for _ in range(60):
        laughs = [laughs, laughs]
    torch.save({"a": laughs}, tmp_path / "a.pth")
    assert "a" in read_torch(tmp_path / "a.pth")


def test_an_archive_that_unpacks_to_more_is_refused(tmp_path: Path) -> None:
    zipped_with_more(tmp_path / "a.pth")
    with pytest.raises(UserError, match=r"unpacks to 52,4\d\d,\d+ bytes; do not trust"):
        read_weights(tmp_path / "a.pth")


def test_safetensors_of_other_dtypes_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3).to(torch.float8_e4m3fn)}, tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=r"a holds torch.float8_e4m3fn; export it with float32"):
        read_weights(tmp_path / "a.safetensors")


def weights(path: Path, recipe: str) -> Path:
    torch.manual_seed(0)
    tensors: dict[str, Tensor] = EventSwin("micro", recurrent=False, bins=1, img_size=(32, 32)).state_dict()
    save_file(tensors, path, metadata={"tespec": recipe})
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"bins": 10**9}, {"bins": "1"}, {"bins": True}, {"in_channels": -1}, {"sensor": [10**5, 10**5]}, {"sensor": 3},
        {"sensor": [32]}, {"sensor": ["a", "b"]}, {"width": 3}, {"recurrent": "no"}, {"recurrent": [1]},
    ],
)  # fmt: skip
def test_no_network_is_built_from_what_cannot_be(tmp_path: Path, change: dict[str, Any]) -> None:
    path = weights(tmp_path / "a.safetensors", json.dumps(RECIPE | change))
    for read in (tespec.load, inspect, read_weights):
        with pytest.raises(UserError, match=f"the recipe in it has {next(iter(change))} "):
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
