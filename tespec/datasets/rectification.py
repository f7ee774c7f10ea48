"""Rectified event coordinates (DSEC): each raw pixel has a real-valued place in the frame that labels live in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.hdf5 import AGAIN, dataset, translate_errors

KEY = "rectify_map"
OUTSIDE = -1


def read_rectification(path: Path, height: int, width: int) -> NDArray[np.int16]:
    """Nearest rectified pixel of each raw one.

    Args:
        path: `rectify_map.h5` with (H, W, 2) floating-point x and y (uzh-rpg/DSEC).
        height: rows of the sensor in px.
        width: columns of the sensor in px.

    Returns:
        (H, W, 2) int16 x and y; -1 where the place lies outside of the sensor.

    Raises:
        UserError: the file is missing, damaged, of another size, or holds no numbers.
    """
    if not path.is_file():
        raise UserError(path, "no such file, and labels need rectified events", "copy it beside the events")
    found = dataset(path, KEY, "f", 3)
    if found.shape != (height, width, 2):
        raise UserError(path, f"{KEY} has the shape {found.shape} instead of {(height, width, 2)}", AGAIN)
    with translate_errors(path, KEY):
        places = found[()]
    if not np.isfinite(places).all():
        raise UserError(path, f"{KEY} holds places that are no numbers", AGAIN)
    nearest = np.floor(places + 0.5)
    inside = ((nearest >= 0) & (nearest < (width, height))).all(axis=-1, keepdims=True)
    return np.where(inside, nearest, OUTSIDE).astype(np.int16)
