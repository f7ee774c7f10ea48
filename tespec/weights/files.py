"""Weights on disk: safetensors written atomically; foreign files read with `weights_only=True` alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tespec.documents import UNREADABLE
from tespec.errors import UserError
from tespec.weights.recipe import require_recipe
from tespec.weights.torch_files import read_torch, require_plain
from tespec.writing import whole_file

T = TypeVar("T")
RECIPE_KEY = "tespec"
WRAPPERS = ("state_dict", "model", "checkpoint")


def write_weights(path: Path, tensors: Mapping[str, Tensor], recipe: Mapping[str, Any]) -> str:
    """Write tensors and the settings that made them as one safetensors file, atomically; gives its SHA-256."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(path) as unfinished:
        # A single entry: safetensors writes several in random order, and equal weights would have unequal hashes.
        save_file(plain, unfinished, metadata={RECIPE_KEY: json.dumps(recipe, sort_keys=True)})
    return sha256_of(path)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of a weights file on the CPU, and the recipe inside it ({} for foreign files).

    Raises:
        UserError: missing, unreadable, unsafe or empty file, or one with values that are not finite.
    """
    tensors, recipe = read_tensors(path)
    require_finite(path, tensors)
    return tensors, recipe


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Like `read_weights`, whatever the values are.

    Which kind of file it is follows from how it begins. The tensors of a torch file may lie under `state_dict`, `model`
    or `checkpoint`.

    Raises:
        UserError: missing, unreadable, unsafe or empty file.
    """
    if not path.is_file():
        raise UserError(path, "no such weights file", "check the path given to --checkpoint")
    tensors, recipe = _read_safetensors(path) if _is_safetensors(path) else (_read_torch(path), {})
    if not tensors:
        raise UserError(path, "holds no tensors", "give a file of model weights")
    for name, tensor in tensors.items():
        require_plain(path, name, tensor)
    return tensors, recipe


def read_recipe(path: Path) -> dict[str, Any]:
    """The recipe in a file's header, {} where it holds none; no tensor is read.

    Raises:
        UserError: missing or unreadable file.
    """
    if not path.is_file():
        raise UserError(path, "no such weights file", "check the path given to --checkpoint")
    return _open_safetensors(path, lambda file: None)[1] if _is_safetensors(path) else {}


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check the values.

    Raises:
        UserError: names the first tensor with a value that is not finite.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(path, f"{name} holds values that are not finite", "take an earlier checkpoint")


def _is_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(9)
    # Eight bytes of length, then a JSON object; a torch file is a zip archive or a pickle.
    return path.suffix == ".safetensors" or (start[8:] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000)


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return _open_safetensors(path, lambda file: {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def _open_safetensors(path: Path, read: Callable[[Any], T]) -> tuple[T, dict[str, Any]]:
    """What `read` takes of the open file, and the recipe in its header."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            found = read(file)
        recipe = json.loads(metadata.get(RECIPE_KEY, "{}"))
    except (SafetensorError, *UNREADABLE, AttributeError) as error:
        raise UserError(path, f"not a readable safetensors file ({error})", "copy or write it again") from error
    if not isinstance(recipe, dict):
        raise UserError(path, "the recipe in it is no mapping", "write the file again")
    require_recipe(path, recipe)
    return found, recipe


def _read_torch(path: Path) -> dict[str, Tensor]:
    content = read_torch(path)
    while isinstance(content, Mapping):
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise UserError(path, "holds no state dict", "give a file of model weights")
    return {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}


def state_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, shapes and values of tensors, as hex; the same wherever they come from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
