"""Torch's own files, read as plain tensors and values that take no more memory than their file can hold."""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tespec.errors import UserError
from tespec.weights.unpickling import HARMLESS

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
