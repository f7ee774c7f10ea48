"""Cropping, downsampling, flip and zoom, done on event coordinates before anything is counted.

Counting the events that nearest-exact sub-sampling keeps gives the same bits as counting all of them at full size and
sub-sampling the histogram, with a quarter of the events and of the memory at factor 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

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

    def seen(self, view: View | None = None) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(K, 65536) at which rows, and (L, 65536) at which columns each of the sensor's is seen; see `seen_places`."""
        rows, columns = self.places()
        if view is None:
            return rows[None], columns[None]
        return seen_places(rows, view.rows), seen_places(columns, view.columns)


@lru_cache(maxsize=64)
def _places(size: int, factor: int, keep: str) -> NDArray[np.int32]:
    """(65536,) where each coordinate of the sensor lands along one side of the region, or `DROPPED`."""
    coordinates = np.arange(COORDINATES, dtype=np.int32)
    places = coordinates // factor
    places[places >= size] = DROPPED
    if keep == "nearest":
        places[coordinates % factor != factor // 2] = DROPPED
    return places


class View(Protocol):
    """How an image is seen, flipped, zoomed or both: an index map for each side."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """(H,) source row of each row of the result; `DROPPED` lies outside of the image."""
        ...

    @property
    def columns(self) -> NDArray[np.int64]:
        """(W,) source column of each column, likewise."""
        ...


def apply_maps(image: NDArray[Any], view: View, outside: float) -> NDArray[Any]:
    """Image (..., H, W) as it is seen; pixels from outside of it get the value `outside`.

    Where nothing changes, the image itself is returned.
    """
    seen = image
    # One side after the other takes a third of the time of indexing both at once; most sides stay as they are.
    for axis, sources in ((-2, view.rows), (-1, view.columns)):
        if np.array_equal(sources, np.arange(image.shape[axis])):
            continue
        seen = seen.take(sources, axis=axis)
        seen.swapaxes(axis, -1)[..., sources == DROPPED] = outside
    return seen


def seen_places(places: NDArray[np.int32], sources: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where each coordinate of the sensor is seen, along one side; zooming in shows some of them several times.

    Args:
        places: (N,) where each coordinate of the sensor lands in the region, or `DROPPED`.
        sources: (size,) coordinate of the region that is seen at each place, or `DROPPED`.

    Returns:
        (K, N) the places at which each coordinate is seen, `DROPPED` where there is no first, second ... one.
    """
    size = len(sources)
    where = np.flatnonzero(sources != DROPPED)
    order = where[np.argsort(sources[where], kind="stable")]
    shown = sources[order]
    nth = np.arange(len(shown)) - np.searchsorted(shown, shown)
    # The last column stands for what the region drops.
    seen = np.full((int(nth.max(initial=0)) + 1, size + 1), DROPPED, np.int32)
    seen[nth, shown] = order
    return np.ascontiguousarray(seen[:, np.where(places == DROPPED, size, places)])


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
