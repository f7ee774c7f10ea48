"""Weights on disk: safetensors written atomically; torch files read only with `weights_only=True`."""

import hashlib
import json
import pickle
import re
import warnings
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
from tespec.core.files import UNREADABLE, regular_file, sha256_of, whole_file
from tespec.core.renamed import renamed
from tespec.core.settings import Flag, HistogramSpec, Side, build

RECIPE_KEY = "tespec"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WRAPPERS = ("state_dict", "model", "checkpoint", "weights")
Channels = Annotated[int, Field(strict=True, ge=1, le=1024)]  # beyond any real network


@dataclass(frozen=True)
class Architecture:
    """Fields of a recipe that describe the network of its tensors and its input; others are not validated."""

    backbone: str | None = None
    recurrent: Flag | None = None
    bins: Channels | None = None
    sensor: tuple[Side, Side] | None = None
    in_channels: Channels | None = None
    histograms: HistogramSpec | None = None


class Unread:
    """Placeholder for a value that is not needed."""

    def __init__(self, *_: Any) -> None:
        pass

    __setstate__ = __init__


# Settings that training scripts save with the weights: read as plain values, without importing
# their classes.
NUMPY = ("dtype", "ndarray", *(f"{core}.multiarray.{name}" for core in ("core", "_core")
                               for name in ("scalar", "_reconstruct")))  # fmt: skip
HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (OrderedDict, "yacs.config.CfgNode"),
    (OrderedDict, "argparse.Namespace"),
    *((Unread, f"numpy.{name}") for name in NUMPY),
]


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a torch file without running its code; raise `UserError` if damaged or with other objects."""
    try:
        with torch.serialization.safe_globals(HARMLESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns if damage looks like an old file
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a dozen types, depending on where a damaged file ends
        found = (
            re.search(r"GLOBAL (\S+)", str(error))
            if isinstance(error, pickle.UnpicklingError)
            else None
        )
        what = f"not a readable torch file ({type(error).__name__})"
        if found:
            what = f"holds more than plain tensors ({found[1]}), and loading it could run code"
        raise UserError(path, what, "copy it again, or export it as safetensors") from error
    while isinstance(content, Mapping):
        inner = next(
            (content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None
        )
        if inner is None:
            return {
                name: each
                for name, each in content.items()
                if isinstance(name, str) and isinstance(each, Tensor)
            }
        content = inner
    raise UserError(path, "holds no state dict", "give a file of model weights")


def write_weights(path: Path, tensors: Mapping[str, Tensor], recipe: Mapping[str, Any]) -> str:
    """Atomically write tensors and the recipe that made them to a safetensors file, and return its SHA-256."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # A single entry: safetensors writes multiple ones in random order, so equal weights would get
    # different hashes.
    metadata = {RECIPE_KEY: json.dumps(recipe, sort_keys=True)}
    try:
        with whole_file(path) as unfinished:
            save_file(plain, unfinished, metadata=metadata)
    except SafetensorError as error:
        raise UserError(
            path, f"cannot be written ({error})", "choose another folder, or free disk space"
        ) from error
    return sha256_of(path)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file as `read_tensors` does; raise `UserError` for a quantised tensor or values that are not finite."""
    tensors, recipe = read_tensors(path)
    for name, tensor in tensors.items():
        if problem := problem_of(tensor, tensor):
            raise UserError(
                path, f"{name} {problem}", "use an earlier checkpoint that is not quantised"
            )
    return tensors, recipe


def problem_of(tensor: Tensor | None, target: Tensor) -> str:
    """Describe why a tensor cannot be loaded into `target` (missing, dtype, shape, or values), "" if it can."""
    if tensor is None:
        return "is missing"
    integers = not (target.is_floating_point() or tensor.is_floating_point() or tensor.is_complex())
    if not integers and tensor.dtype not in FLOATS:
        return f"has dtype {tensor.dtype}, which is not supported for weights"
    if tensor.shape != target.shape:
        return f"has shape {tuple(tensor.shape)}, but this model needs {tuple(target.shape)}"
    return "" if torch.isfinite(tensor).all() else "holds values that are not finite"


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a weights file to the CPU, and its recipe, {} if it was not written by this harness.

    Suffix and first bytes determine the file type; tensors of a torch file may be nested under keys
    of `WRAPPERS`.
    """
    tensors, recipe = (
        _open_safetensors(path, with_tensors=True)
        if _is_safetensors(path)
        else (_read_torch(path), {})
    )
    if not tensors:
        raise UserError(path, "holds no tensors", "give a file of model weights")
    return tensors, recipe


def read_recipe(path: Path) -> dict[str, Any]:
    """Read the recipe from a file's header alone, {} if there is none; raise `UserError` if that fails."""
    return _open_safetensors(path, with_tensors=False)[1] if _is_safetensors(path) else {}


def _is_safetensors(path: Path) -> bool:
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise UserError(path, "is not a regular file", "check the path to the weights")
    try:
        with regular_file(path).open("rb") as file:
            start = file.read(9)
    except OSError as error:
        what = (
            "no such weights file"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read ({error.strerror})"
        )
        raise UserError(path, what, "check the path to the weights") from error
    # Eight bytes of length, then a JSON object; a torch file is a zip archive or a pickle.
    return path.suffix == ".safetensors" or (
        start[8:] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000
    )


def _open_safetensors(path: Path, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
        recipe = json.loads(metadata.get(RECIPE_KEY, "{}"))
    except (SafetensorError, *UNREADABLE, AttributeError) as error:
        raise UserError(
            path, f"not a readable safetensors file ({error})", "copy or write it again"
        ) from error
    if not isinstance(recipe, dict):
        raise UserError(path, "its recipe is not a mapping", "write the file again")
    recipe = renamed(recipe)
    named = {
        field.name: recipe[field.name] for field in fields(Architecture) if field.name in recipe
    }
    build(Architecture, named, f"{path}: recipe")
    return tensors, recipe


def state_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex of the names, shapes, dtypes and values of tensors, independent of the file that holds them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}\n".encode())
        digest.update(
            tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
