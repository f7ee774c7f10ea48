"""The device a run uses, and its numeric precision."""

from __future__ import annotations

from dataclasses import replace

import torch

from tespec.errors import UserError
from tespec.settings import Optimisation

PRECISIONS = ("fp32", "bf16", "fp16")


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


def with_precision(settings: Optimisation, device: torch.device) -> Optimisation:
    """Settings whose precision is the one computed in: `auto` becomes bf16 on a GPU and fp32 on a CPU.

    Raises:
        UserError: unknown precision, or one that the device does not have.
    """
    choices = ", ".join(["auto", *PRECISIONS])
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    if precision not in PRECISIONS:
        raise UserError("optimisation.precision", f"unknown value {precision!r}", f"choose from {choices}")
    if precision != "fp32" and device.type == "cpu":
        raise UserError("optimisation.precision", f"{precision} is not available on a CPU", "use fp32 or auto")
    return replace(settings, precision=precision)
