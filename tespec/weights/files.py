"""Weights on disk: safetensors written atomically; foreign files read with `weights_only=True` alone."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tespec.errors import UserError

RECIPE_KEY = "tespec"
CONTAINERS = ("state_dict", "model", "checkpoint")  # in which published files keep their tensors


def write_weights(path: Path, tensors: Mapping[str, Tensor], recipe: Mapping[str, Any]) -> str:
    """Write tensors and the settings that made them as one safetensors file, atomically; gives its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        # A single entry: safetensors writes several in random order, and equal weights would have unequal hashes.
        save_file(plain, temporary, metadata={RECIPE_KEY: json.dumps(recipe, sort_keys=True)})
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return sha256_of(path)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of a weights file on the CPU, and the recipe inside it ({} for foreign files).

    Raises:
        UserError: missing, unreadable, unsafe or empty file, or one with values that are not finite.
    """
    if not path.is_file():
        raise UserError(path, "no such weights file", "check the path given to --checkpoint")
    tensors, recipe = _read_safetensors(path) if path.suffix == ".safetensors" else (_read_torch(path), {})
    if not tensors:
        raise UserError(path, "holds no tensors", "give a file of model weights")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(path, f"{name} holds values that are not finite", "take an earlier checkpoint")
    return tensors, recipe


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        return tensors, json.loads(metadata.get(RECIPE_KEY, "{}"))
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise UserError(path, f"not a readable safetensors file ({error})", "copy or write it again") from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            path, "holds more than plain tensors, and loading it could run code", "export it as safetensors"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise UserError(path, "not a readable torch file", "copy it again, or export it as safetensors") from error
    while isinstance(content, dict) and not any(isinstance(value, Tensor) for value in content.values()):
        inner = next((content[key] for key in CONTAINERS if key in content), None)
        if not isinstance(inner, dict):
            break
        content = inner
    if not isinstance(content, dict):
        raise UserError(path, "holds no state dict", "give a file of model weights")
    return {name: value for name, value in content.items() if isinstance(value, Tensor)}


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
