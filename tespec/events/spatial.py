"""Cropping, downsampling, flip and zoom as maps of coordinates, applied before anything is counted.

Counting the events that nearest-exact sub-sampling keeps gives the same bits as counting all of them at full size and
sub-sampling the histogram, with a quarter of the events and of the memory at factor 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

COORDINATES = 2049  # of packed events, and one that no region has
DROPPED = -1
Seen = tuple[NDArray[np.int32], NDArray[np.int32]]  # rows and columns, see `Region.seen`


class View(Protocol):
    """Flip and zoom of an image as index maps of its sides, `DROPPED` outside of the image."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """(H,) source row of each row of the result."""

    @property
    def columns(self) -> NDArray[np.int64]:
        """(W,) source column of each column."""


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

    def seen(self, view: View | None = None) -> Seen:
        """(K, 2049) at which rows, and (L, 2049) at which columns each of the sensor's is seen.

        `DROPPED` where there is no first, second ... place: zooming in shows some of them several times.
        """
        if view is None:
            return _places(self)
        (rows,), (columns,) = _places(self)
        return _seen(rows, view.rows), _seen(columns, view.columns)


@lru_cache(maxsize=64)
def _places(region: Region) -> Seen:
    """(1, 2049) at which row, and (1, 2049) at which column each of the sensor's lands, or `DROPPED`."""
    coordinates = np.arange(COORDINATES, dtype=np.int32)
    places = coordinates // region.factor
    if region.keep == "nearest":
        places[coordinates % region.factor != region.factor // 2] = DROPPED
    places[-1] = DROPPED
    rows, columns = (np.where(places < side, places, DROPPED)[None] for side in (region.height, region.width))
    return rows.astype(np.int32), columns.astype(np.int32)


def _seen(places: NDArray[np.int32], sources: NDArray[np.int64]) -> NDArray[np.int32]:
    """(K, 2049) the places at which coordinates are seen that land at `places`; see `View` for `sources`."""
    size = len(sources)
    where = np.flatnonzero(sources != DROPPED)
    order = where[np.argsort(sources[where], kind="stable")]
    shown = sources[order]
    nth = np.arange(len(shown)) - np.searchsorted(shown, shown)
    # The last column stands for what the region drops.
    seen = np.full((int(nth.max(initial=0)) + 1, size + 1), DROPPED, np.int32)
    seen[nth, shown] = order
    return np.ascontiguousarray(seen[:, np.where(places == DROPPED, size, places)])


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
