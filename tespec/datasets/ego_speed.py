"""The camera's speed at each label, where a dataset says it, by which driving and standing are scored apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.arrays import load_array

FOLDER = "ego_speed"


def speed_file(root: Path, name: str) -> Path:
    """Where the speeds of a recording would lie."""
    return root / FOLDER / f"{name}.npy"


def speed_at(root: Path, name: str, times: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Speed (N,) float32 in m/s at `times` (N,) in us, interpolated; None where the dataset does not say it.

    `<root>/ego_speed/<name>.npy` holds (M, 2) float64, time in us in the recording's clock and speed in m/s.

    Raises:
        UserError: the file is damaged, or its times step back.
    """
    path = speed_file(root, name)
    if not path.is_file():
        return None
    rows = load_array(path)
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) < 1 or rows.dtype.kind != "f":
        raise UserError(path, f"is {rows.dtype} of shape {rows.shape} instead of float (N, 2)", "remove it")
    if not np.isfinite(rows).all() or (np.diff(rows[:, 0]) < 0).any():
        raise UserError(path, "holds times that step back, or other things than numbers", "remove it")
    known = rows.astype(np.float64)
    return np.interp(times, known[:, 0], known[:, 1]).astype(np.float32)
