"""Weights on disk: safetensors written atomically; other files read with `weights_only=True` alone."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, whole_file
from tespec.core.settings import Flag, build

RECIPE_KEY = "tespec"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Beyond any network and sensor there is.
Channels = Annotated[int, Field(strict=True, ge=1, le=1024)]
Side = Annotated[int, Field(strict=True, ge=1, le=2048)]
WRAPPERS = ("state_dict", "model", "checkpoint", "weights")


@dataclass(frozen=True)
class Architecture:
    """What a recipe names of the network that its tensors belong to; the rest of a recipe is not read."""

    width: str | None = None
    recurrent: Flag | None = None
    bins: Channels | None = None
    sensor: tuple[Side, Side] | None = None
    in_channels: Channels | None = None


class Unread:
    """Stands for a value that is neither needed nor looked at."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


# Settings that training scripts save beside the weights: read as plain values, without importing their classes.
NUMPY = (
    "dtype",
    "ndarray",
    "core.multiarray.scalar",
    "core.multiarray._reconstruct",
    "_core.multiarray.scalar",
    "_core.multiarray._reconstruct",
)
HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (OrderedDict, "yacs.config.CfgNode"),
    (OrderedDict, "argparse.Namespace"),
    *((Unread, f"numpy.{name}") for name in NUMPY),
]
# What torch raises on a truncated file, depending on the byte it ends at.
TORN = (
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    OSError,
    OverflowError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
)


def read_torch(path: Path) -> Any:
    """Read a torch file on the CPU; nothing in it is run.

    Raises:
        UserError: it is damaged, or holds more than plain values.
    """
    try:
        with torch.serialization.safe_globals(HARMLESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damage that looks like an old file
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        named = f" ({found[1]})" if found else ""
        what = f"holds more than plain tensors{named}, and loading it could run code"
        raise UserError(path, what, "export it as safetensors") from error
    except TORN as error:
        raise UserError(path, "not a readable torch file", "copy it again, or export it as safetensors") from error


def write_weights(path: Path, tensors: Mapping[str, Tensor], recipe: Mapping[str, Any]) -> str:
    """Write tensors and the settings that made them as one safetensors file, atomically, and return its SHA-256."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(path) as unfinished:
        # A single entry: safetensors writes several in random order, and equal weights would have unequal hashes.
        save_file(plain, unfinished, metadata={RECIPE_KEY: json.dumps(recipe, sort_keys=True)})
    return sha256_of(path)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of a weights file on the CPU, and the recipe inside it ({} for files of others).

    Raises:
        UserError: missing, unreadable, unsafe or empty file, or one with values that are not finite.
    """
    tensors, recipe = read_tensors(path)
    require_finite(path, tensors)
    return tensors, recipe


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Like `read_weights`, whatever the values are.

    The kind of file follows from how it begins; the tensors of a torch file may be under one of `WRAPPERS`.

    Raises:
        UserError: missing, unreadable, unsafe or empty file.
    """
    tensors, recipe = _open_safetensors(path, with_tensors=True) if _is_safetensors(path) else (_read_torch(path), {})
    if not tensors:
        raise UserError(path, "holds no tensors", "give a file of model weights")
    return tensors, recipe


def read_recipe(path: Path) -> dict[str, Any]:
    """The recipe in a file's header, {} if it holds none; no tensor is read.

    Raises:
        UserError: missing or unreadable file.
    """
    return _open_safetensors(path, with_tensors=False)[1] if _is_safetensors(path) else {}


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse values that are not finite.

    Raises:
        UserError: names the first tensor that has one, or has fewer than 16 bits.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dtype not in FLOATS:
            raise UserError(path, f"{name} holds {tensor.dtype}, which are no weights", "give it unquantised")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(path, f"{name} holds values that are not finite", "take an earlier checkpoint")


def _is_safetensors(path: Path) -> bool:
    if not path.is_file():
        raise UserError(path, "no such weights file", "check the path given to --checkpoint")
    with path.open("rb") as file:
        start = file.read(9)
    # Eight bytes of length, then a JSON object; a torch file is a zip archive or a pickle.
    return path.suffix == ".safetensors" or (start[8:] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000)


def _open_safetensors(path: Path, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
        recipe = json.loads(metadata.get(RECIPE_KEY, "{}"))
    except (SafetensorError, *UNREADABLE, AttributeError) as error:
        raise UserError(path, f"not a readable safetensors file ({error})", "copy or write it again") from error
    if not isinstance(recipe, dict):
        raise UserError(path, "the recipe in it is no mapping", "write the file again")
    names = [field.name for field in fields(Architecture)]
    build(Architecture, {name: recipe[name] for name in names if name in recipe}, f"{path}: the recipe in it")
    return tensors, recipe


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
    """SHA-256 of the names, shapes and values of tensors, as hex; the same for every file that holds them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
