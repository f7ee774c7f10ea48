"""The camera's speed beside a recording, by which driving and standing can be scored apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

FOLDER = "ego_speed"


def write_speed(root: Path, name: str, times_us: Sequence[int], speeds: Sequence[float]) -> None:
    """Write `ego_speed/<name>.npy`, float64 (N, 2): time in us in the recording's clock, speed in m/s."""
    (root / FOLDER).mkdir(exist_ok=True)
    np.save(root / FOLDER / f"{name}.npy", np.stack([times_us, speeds], axis=1).astype(np.float64))
