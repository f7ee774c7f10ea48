"""The device a run uses, and its numeric precision."""

from __future__ import annotations

import torch

from tespec.errors import UserError

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


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
        raise UserError(f"--device {name}", "not on this machine", "leave --device out or use cpu")
    return device


def describe(device: torch.device) -> str:
    """Name of the device for records."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Autocast type of a precision setting; None computes in fp32. `auto` is bf16 on a GPU and fp32 on a CPU.

    Raises:
        UserError: unknown precision.
    """
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else None
    if precision not in PRECISIONS:
        choices = ", ".join(["auto", *PRECISIONS])
        raise UserError("optimisation.precision", f"unknown value {precision!r}", f"choose from {choices}")
    return PRECISIONS[precision]
