"""Weights on disk: safetensors written atomically, torch files read with `weights_only=True`."""

import hashlib
import json
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from tespec.core.errors import UserError, require
from tespec.core.files import UNREADABLE, atomic_write, parse_json, regular_file
from tespec.core.renamed import renamed
from tespec.core.settings import Flag, HistogramSpec, Side, build

RECIPE_KEY = "tespec"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WRAPPERS = ("state_dict", "model", "checkpoint", "weights", "event_encoder")
Channels = Annotated[int, Field(strict=True, ge=1, le=1024)]  # beyond any real network


@dataclass(frozen=True)
class Architecture:
    """Fields of a recipe that are read without a check of their own; the others are not validated.

    They describe the network, its input and its training.
    """

    backbone: str = ""
    recurrent: Flag | None = None
    bins: Channels | None = None
    sensor: tuple[Side, Side] | None = None
    in_channels: Channels | None = None
    histograms: HistogramSpec | None = None
    data_fingerprint: str = ""
    objective: dict[str, Any] | None = None
    run: dict[str, Any] = field(default_factory=dict)


class IgnoredObject:
    """Placeholder for an object of a torch file that is not needed."""

    def __init__(self, *_: Any) -> None:
        pass

    __setstate__ = __init__


# Settings that training scripts save with the weights: read as plain values, without importing
# their classes.
NUMPY = [
    "dtype",
    "ndarray",
    "core.multiarray.scalar",
    "core.multiarray._reconstruct",
    "_core.multiarray.scalar",
    "_core.multiarray._reconstruct",
]
SAFE_GLOBALS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (OrderedDict, "yacs.config.CfgNode"),
    (OrderedDict, "argparse.Namespace"),
    *((IgnoredObject, f"numpy.{name}") for name in NUMPY),
]


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a torch file without running its code."""
    try:
        with torch.serialization.safe_globals(SAFE_GLOBALS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns if damage looks like an old file
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a dozen types, depending on where a damaged file ends
        what = f"not a readable torch file ({type(error).__name__})"
        unsafe = re.search(r"GLOBAL (\S+)", str(error))
        if unsafe and isinstance(error, pickle.UnpicklingError):
            what = f"holds more than plain tensors ({unsafe[1]}), and loading it could run code"
        raise UserError(path, what, "copy it again, or export it as safetensors") from error
    while isinstance(content, dict):
        # taken out, since a mapping may hold itself
        nested = [content.pop(key) for key in WRAPPERS if isinstance(content.get(key), dict)]
        if not nested:
            return {
                name: value
                for name, value in content.items()
                if isinstance(name, str) and isinstance(value, Tensor) and _is_stored(value)
            }
        content = nested[0]
    raise UserError(path, "holds no state dict", "give a file of model weights")


def _is_stored(tensor: Tensor) -> bool:
    """Whether a tensor is dense, and all its values are in the file."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_meta)
        and tensor.nbytes <= tensor.untyped_storage().nbytes()
    )


def write_weights(path: Path, tensors: Mapping[str, Tensor], recipe: Mapping[str, Any]) -> str:
    """Write tensors atomically to a safetensors file.

    Args:
        path: file to write; its folder is created.
        tensors: state dict, on any device.
        recipe: settings that made the tensors, of types that JSON has.

    Returns:
        the file's SHA-256 in hex.
    """
    content = serialised(tensors, recipe)
    # Not safetensors' `save_file`, whose files only their owner can read.
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def serialised(tensors: Mapping[str, Tensor], recipe: Mapping[str, Any]) -> bytes:
    """Return the content of the file that `write_weights` writes, which has the same arguments."""
    # Copies, since safetensors refuses tensors that share memory, such as tied weights.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    # A single entry: safetensors writes multiple ones in random order, so equal weights would get
    # different hashes.
    return save(copies, metadata={RECIPE_KEY: json.dumps(recipe, sort_keys=True)})


def problem_of(tensor: Tensor | None, target: Tensor) -> str:
    """Describe why a tensor of a file cannot be loaded.

    Args:
        tensor: None if the file lacks it.
        target: tensor of the network, which may be on the meta device.

    Returns:
        the problem with its presence, dtype, shape or values; "" if it can be loaded.
    """
    if tensor is None:
        return "is missing"
    integers = not (target.is_floating_point() or tensor.is_floating_point() or tensor.is_complex())
    if not integers and tensor.dtype not in FLOATS:
        return f"has dtype {tensor.dtype}, which is not supported for weights"
    if tensor.shape != target.shape:
        return f"has shape {tuple(tensor.shape)}, but this model needs {tuple(target.shape)}"
    return "" if torch.isfinite(tensor).all() else "holds values that are not finite"


def load_tensors(
    network: nn.Module, tensors: Mapping[str, Tensor], where: object, remedy: str
) -> None:
    """Load all tensors of a network in place from a file that may hold more.

    Args:
        network: left as it is if an error is raised.
        tensors: of the file.
        where: file that the error names.
        remedy: advice that the error gives.

    Raises:
        UserError: a tensor is missing or does not fit.
    """
    expected = network.state_dict()
    for name, tensor in expected.items():
        problem = problem_of(tensors.get(name), tensor)
        require(not problem, where, f"{name} {problem}", remedy)
    network.load_state_dict({name: tensors[name] for name in expected})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the recipe of a weights file.

    Suffix and first bytes determine the file type; tensors of a torch file may be nested under keys
    of `WRAPPERS`.

    Returns:
        tensors on the CPU by name, and the recipe, {} if the file was not written by this harness.

    Raises:
        UserError: the file is missing, damaged, without tensors, or could run code.
    """
    tensors, recipe = _read(path, with_tensors=True)
    require(tensors, path, "holds no tensors", "give a file of model weights")
    return tensors, recipe


def read_recipe(path: Path) -> dict[str, Any]:
    """Read the recipe from a file's header alone, {} if it has none."""
    return _read(path, with_tensors=False)[1]


def _read(path: Path, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with regular_file(path).open("rb") as file:
            start = file.read(9)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        what = "no such weights file" if is_missing else f"cannot be read ({error.strerror})"
        raise UserError(path, what, "check the path to the weights") from error
    # Eight bytes of length, then a JSON object; a torch file is a zip archive or a pickle.
    is_header = start[8:] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000
    if path.suffix == ".safetensors" or is_header:
        return _open_safetensors(path, with_tensors)
    return _read_torch(path) if with_tensors else {}, {}


def _open_safetensors(path: Path, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = file.keys() if with_tensors else ()
            tensors = {name: file.get_tensor(name) for name in names}
            recipe = parse_json((file.metadata() or {}).get(RECIPE_KEY, "{}"))
    except (SafetensorError, *UNREADABLE, AttributeError) as error:
        raise UserError(
            path, f"not a readable safetensors file ({error})", "copy or write it again"
        ) from error
    require(isinstance(recipe, dict), path, "its recipe is not a mapping", "write the file again")
    recipe = renamed(recipe)
    names = Architecture.__annotations__.keys() & recipe
    build(Architecture, {name: recipe[name] for name in names}, f"{path}: recipe")
    return tensors, recipe


def state_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex of the names, shapes, dtypes and values of tensors, not of their file."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}\n".encode())
        values = tensor.detach().cpu().reshape(-1).contiguous()
        digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
