"""Cropping and downsampling, done on event coordinates before anything is counted.

Counting the events that nearest-exact sub-sampling keeps gives the same bits as counting all of them at full size and
sub-sampling the histogram, with a quarter of the events and of the memory at factor 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.events.stream import Events

KEEP = ("nearest", "all")
COORDINATES = 1 << 16  # values of a uint16
DROPPED = -1


@dataclass(frozen=True)
class Region:
    """The upper rows and left columns of a sensor, downsampled.

    Attributes:
        height: rows of the result in px.
        width: columns of the result in px.
        factor: sensor pixels per pixel of the result, along each side.
        keep: "nearest" keeps the events of one sensor pixel in factor x factor, the one that nearest-exact
            sub-sampling picks: coordinates c with c % factor == factor // 2 (odd ones at factor 2, as in RVT's 1Mpx
            archive); "all" sums them.
    """

    height: int
    width: int
    factor: int = 1
    keep: str = "nearest"

    def __post_init__(self) -> None:
        if self.keep not in KEEP or self.factor < 1:
            raise ValueError(f"factor {self.factor} must be positive and keep {self.keep!r} one of {', '.join(KEEP)}")

    def apply(self, events: Events) -> Events:
        """Events that fall into the region, in its coordinates, with their order and times as they were."""
        x, y, t, p = events
        if self.factor == 1 and (not len(x) or (int(x.max()) < self.width and int(y.max()) < self.height)):
            return events
        rows, columns = self.places()
        return Events(*_select(np.asarray(x, np.uint16), np.asarray(y, np.uint16), t, p, columns, rows))

    def places(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(65536,) where each row, and (65536,) where each column of the sensor lands; `DROPPED`: nowhere."""
        return _places(self.height, self.factor, self.keep), _places(self.width, self.factor, self.keep)


@lru_cache(maxsize=64)
def _places(size: int, factor: int, keep: str) -> NDArray[np.int32]:
    """(65536,) where each coordinate of the sensor lands along one side of the region, or `DROPPED`."""
    coordinates = np.arange(COORDINATES, dtype=np.int32)
    places = coordinates // factor
    places[places >= size] = DROPPED
    if keep == "nearest":
        places[coordinates % factor != factor // 2] = DROPPED
    return places


@njit(cache=True, nogil=True)
def _select(x, y, t, p, columns, rows):  # type: ignore[no-untyped-def]
    out_x, out_y, out_t, out_p = np.empty_like(x), np.empty_like(y), np.empty_like(t), np.empty_like(p)
    n = 0
    for i in range(len(x)):
        column, row = columns[x[i]], rows[y[i]]
        # Written in any case, then kept or overwritten: no branch to mispredict.
        out_x[n], out_y[n], out_t[n], out_p[n] = column, row, t[i], p[i]
        n += column >= 0 and row >= 0
    return out_x[:n], out_y[:n], out_t[:n], out_p[:n]
