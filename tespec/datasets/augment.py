"""Flip and zoom as index maps, drawn once per recording pass and applied alike to events, images and labels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.settings import Augmentation

OUTSIDE = -1


class Maps(NamedTuple):
    """Source row (H,) and source column (W,) of each row and column of the result; -1 lies outside of the image."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


def draw_maps(generator: np.random.Generator, settings: Augmentation, height: int, width: int) -> Maps:
    """Draw a flip and a zoom (paper, table "Augmentation Transformations").

    Zooming in by f shows a random part of 1/f of the height and width, zooming out by f shows the whole image at 1/f
    of its size, at a random place. Pixels are picked by the nearest-exact rule.
    """
    flip = generator.random() < settings.flip
    rows, columns = np.arange(height), np.arange(width)
    if generator.random() < settings.zoom:
        inward = generator.random() < settings.zoom_in_share
        factor = generator.uniform(*(settings.zoom_in if inward else settings.zoom_out))
        zoom = _zoom_in if inward else _zoom_out
        rows, columns = zoom(height, factor, generator.random()), zoom(width, factor, generator.random())
    return Maps(rows, columns[::-1] if flip else columns)


def _zoom_in(side: int, factor: float, place: float) -> NDArray[np.int64]:
    start = place * (side - side / factor)
    return np.minimum((start + (np.arange(side) + 0.5) / factor).astype(np.int64), side - 1)


def _zoom_out(side: int, factor: float, place: float) -> NDArray[np.int64]:
    small = round(side / factor)
    start = round(place * (side - small))
    indices = np.full(side, OUTSIDE, np.int64)
    indices[start : start + small] = ((np.arange(small) + 0.5) * side / small).astype(np.int64)
    return indices


def apply_maps(image: NDArray[Any], maps: Maps, outside: int) -> NDArray[Any]:
    """Image (..., H, W) seen through the maps; pixels from outside of it get the value `outside`.

    Where nothing changes, the image itself is returned.
    """
    seen = image
    # One side after the other takes a third of the time of indexing both at once; most sides stay as they are.
    for axis, places in ((-2, maps.rows), (-1, maps.columns)):
        if np.array_equal(places, np.arange(image.shape[axis])):
            continue
        seen = seen.take(places, axis=axis)
        seen.swapaxes(axis, -1)[..., places == OUTSIDE] = outside
    return seen
