"""Weights on disk: safetensors written atomically; foreign files read with `weights_only=True` alone."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, whole_file

LARGEST_SIDE = 2048  # px of a sensor
LARGEST = {"bins": 512, "in_channels": 1024}


def require_recipe(path: Path, recipe: Mapping[str, Any]) -> None:
    """Refuse settings of another type or size than any network has; those that are missing stay so.

    Raises:
        UserError: names the setting.
    """
    for name, value in recipe.items():
        if not _possible(name, value):
            said = repr(value)[:60]
            raise UserError(path, f"the recipe in it has {name} {said}", "write the file again")


def _possible(name: str, value: Any) -> bool:
    if name in LARGEST:
        return (value is None and name == "in_channels") or _whole(value, LARGEST[name])
    if name == "sensor":
        return isinstance(value, list) and len(value) == 2 and all(_whole(side, LARGEST_SIDE) for side in value)
    if name == "width":
        return isinstance(value, str)
    return name != "recurrent" or isinstance(value, bool)


def _whole(value: Any, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest


class Unread:
    """Stands for a value that is neither needed nor looked at."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (OrderedDict, "yacs.config.CfgNode"),
    (OrderedDict, "argparse.Namespace"),
    *(
        (Unread, f"numpy.{name}")
        for name in (
            "dtype",
            "ndarray",
            "core.multiarray.scalar",
            "core.multiarray._reconstruct",
            "_core.multiarray.scalar",
            "_core.multiarray._reconstruct",
        )
    ),
]


VIEWS = 8  # times that a file's bytes may be shared by its tensors
SMALL = 1 << 24  # bytes that any file's tensors may take
PLAIN = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip
# What torch raises on the remains of a file, whichever byte it ends at.
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
    """What a torch file holds, on the CPU; nothing in it is run.

    Raises:
        UserError: it is damaged, holds more than plain values, or would take more memory than its size can explain.
    """
    try:
        _require_unpacked(path)
        with torch.serialization.safe_globals(HARMLESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damage that spells an unusual file
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        named = f" ({found[1]})" if found else ""
        raise UserError(
            path, f"holds more than plain tensors{named}, and loading it could run code", "export it as safetensors"
        ) from error
    except TORN as error:
        raise UserError(path, "not a readable torch file", "copy it again, or export it as safetensors") from error
    total = 0
    for tensor in _tensors(content):
        require_plain(path, "one of its tensors", tensor)
        total += tensor.numel() * tensor.element_size()
    if total > VIEWS * path.stat().st_size + SMALL:
        what = f"its tensors would take {total:,} bytes, the file has {path.stat().st_size:,}"
        raise UserError(path, what, "export it as safetensors")
    return content


def require_plain(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse what is no array of whole or real numbers in memory.

    Raises:
        UserError: it is sparse, quantised, without values, or of another dtype.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise UserError(path, f"{name} is no plain array", "export it as safetensors")
    if tensor.dtype not in PLAIN:
        raise UserError(path, f"{name} holds {tensor.dtype}", "export it with float32 values")


def _require_unpacked(path: Path) -> None:
    """Torch writes its archives without compression; one that unpacks to more was made by somebody else."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > path.stat().st_size:
            raise UserError(path, f"unpacks to {unpacked:,} bytes", "do not trust this file")


def _tensors(content: Any) -> Iterator[Tensor]:
    """Every tensor in nested containers, each container once: they may hold each other."""
    seen: set[int] = set()
    left = [content]
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping | list | tuple | set) and id(value) not in seen:
            seen.add(id(value))
            left.extend([*value.keys(), *value.values()] if isinstance(value, Mapping) else value)


T = TypeVar("T")
RECIPE_KEY = "tespec"
WRAPPERS = ("state_dict", "model", "checkpoint", "weights")


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

    Which kind of file it is follows from how it begins. The tensors of a torch file may lie under one of the names in
    `WRAPPERS`.

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
