"""Rectified event coordinates (DSEC): each raw pixel has a real-valued place in the frame that labels live in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.hdf5 import AGAIN, dataset, reading
from tespec.events.stream import Events, EventStream

KEY = "rectify_map"
OUTSIDE = -1


class RectifiedStream:
    """Events of a stream moved to their rectified pixels; those that fall outside of the sensor are left out.

    See `EventStream`; `count`, `t_first`, `t_last` and `clamped` are those of the raw stream.

    Args:
        raw: events in raw coordinates.
        places: (H, W, 2) int16 of `read_rectification`.
    """

    def __init__(self, raw: EventStream, places: NDArray[np.int16]) -> None:
        self.height, self.width, self.count = raw.height, raw.width, raw.count
        self.t_first, self.t_last, self.clamped = raw.t_first, raw.t_last, raw.clamped
        self._raw, self._places = raw, places

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us)."""
        x, y, t, p = self._raw.slice(t0, t1)
        return Events(*_move(np.asarray(x, np.uint16), np.asarray(y, np.uint16), t, p, self._places))


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
    with reading(path, KEY):
        places = found[()]
    if not np.isfinite(places).all():
        raise UserError(path, f"{KEY} holds places that are no numbers", AGAIN)
    nearest = np.floor(places + 0.5)
    inside = ((nearest >= 0) & (nearest < (width, height))).all(axis=-1, keepdims=True)
    return np.where(inside, nearest, OUTSIDE).astype(np.int16)


@njit(cache=True, nogil=True)
def _move(x, y, t, p, places):  # type: ignore[no-untyped-def]
    out_x, out_y, out_t, out_p = np.empty_like(x), np.empty_like(y), np.empty_like(t), np.empty_like(p)
    n = 0
    for i in range(len(x)):
        column, row = places[y[i], x[i], 0], places[y[i], x[i], 1]
        # Written in any case, then kept or overwritten: no branch to mispredict.
        out_x[n], out_y[n], out_t[n], out_p[n] = column, row, t[i], p[i]
        n += column >= 0
    return out_x[:n], out_y[:n], out_t[:n], out_p[:n]
