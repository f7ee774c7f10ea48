"""The device a run uses, its precision, its seeds, and deterministic algorithms."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from tespec.core.errors import UserError
from tespec.core.settings import Optimisation
from tespec.models.layers import allow_tf32


def be_deterministic(wanted: bool, device: torch.device) -> None:
    """Restrict torch to deterministic algorithms, or lift that; an operation that has none raises.

    Where it is lifted, a GPU computes as fast as it can: products and convolutions of float32 in TF32, but for losses,
    and each convolution by the algorithm that was fastest when it was tried. cuBLAS reads its variable when it is first
    used, so this comes before any work on a GPU.
    """
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.benchmark = is_fast(device, wanted)
    if device.type == "cuda":
        allow_tf32(not wanted)


def is_fast(device: torch.device, deterministic: bool) -> bool:
    """Whether what changes results by rounding alone is on by default: on a GPU that need not repeat to the bit."""
    return device.type == "cuda" and not deterministic


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """A block in which denormal floats are 0 on the CPU.

    Processors take a hundred times as long for a number below 1.2e-38 as for another, and shifted-window attention has
    many of them: it adds -100 where windows must not see each other, and exp(-100) is 3.7e-44. Added to anything else
    they change no digit. Threads that torch starts in the block take the mode over and keep it, so the block begins
    before torch has started any.
    """
    for kind in (np.float16, np.float32, np.float64):
        np.finfo(kind)  # cached; asked for the first time in the block, it warns that denormals are missing
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def out_of_memory_named() -> Iterator[None]:
    """A block in which a GPU that runs out of memory is a mistake that a user can mend.

    Raises:
        UserError: it did.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = "give --accumulate 2 or more, --recompute, or a smaller batch by --set batch_size=N"
        raise UserError("GPU", "out of memory", remedy) from error


def derive(seed: int, *names: int | str) -> int:
    """A 63-bit seed for one purpose, a pure function of the run's seed and the purpose's names."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # timm and mmseg draw from the global generator
    torch.manual_seed(seed)


def choose_device(name: str | None) -> torch.device:
    """The named device, or a GPU where there is one, else the CPU.

    Raises:
        UserError: the name is unknown, or its device is not there.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name}", "unknown device", "use cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        there = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU that torch can use"
        raise UserError(f"--device {name}", f"this machine has {there}", "leave --device out or use cpu")
    return device


def describe(device: torch.device) -> str:
    """Name of the device for records."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def with_precision(settings: Optimisation, device: torch.device) -> Optimisation:
    """Settings whose precision is the one computed in: `auto` becomes bf16 on a GPU and fp32 on a CPU.

    Raises:
        UserError: the device does not have it.
    """
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    if precision != "fp32" and device.type == "cpu":
        raise UserError("optimisation.precision", f"{precision} is not available on a CPU", "use fp32 or auto")
    return replace(settings, precision=precision)
