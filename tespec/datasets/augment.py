"""Flip and zoom as index maps, drawn once per recording pass and applied alike to events, images and labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.settings import Augmentation
from tespec.events.spatial import DROPPED

SMALLEST = 1.0  # px; what is left of a box after zooming in, along each side


class Maps(NamedTuple):
    """How an image is seen, a `tespec.events.spatial.View`, and the same as numbers for boxes.

    Attributes:
        rows: (H,) source row of each row of the result; `DROPPED` lies outside of the image.
        columns: (W,) source column of each column, likewise.
        scale: by which rows and columns are enlarged; negative where they are flipped.
        shift: where, after that, the source's upper and left edge lie in px.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    scale: tuple[float, float] = (1.0, 1.0)
    shift: tuple[float, float] = (0.0, 0.0)


def draw_maps(generator: np.random.Generator, settings: Augmentation, height: int, width: int) -> Maps:
    """Draw a flip and a zoom (paper, table "Augmentation Transformations").

    Zooming in by f shows a random part of 1/f of the height and width, zooming out by f shows the whole image at 1/f
    of its size, at a random place. Pixels are picked by the nearest-exact rule.
    """
    flip = generator.random() < settings.flip
    rows, columns = _Axis(np.arange(height), 1.0, 0.0), _Axis(np.arange(width), 1.0, 0.0)
    if generator.random() < settings.zoom:
        inward = generator.random() < settings.zoom_in_share
        factor = generator.uniform(*(settings.zoom_in if inward else settings.zoom_out))
        zoom = _zoom_in if inward else _zoom_out
        rows, columns = zoom(height, factor, generator.random()), zoom(width, factor, generator.random())
    if flip:
        columns = _Axis(columns.indices[::-1], -columns.scale, width - columns.shift)
    return Maps(rows.indices, columns.indices, (rows.scale, columns.scale), (rows.shift, columns.shift))


class _Axis(NamedTuple):
    """One side of a map: source indices, and scale and shift of the edges between pixels."""

    indices: NDArray[np.int64]
    scale: float
    shift: float


def _zoom_in(side: int, factor: float, place: float) -> _Axis:
    start = place * (side - side / factor)
    indices = np.minimum((start + (np.arange(side) + 0.5) / factor).astype(np.int64), side - 1)
    return _Axis(indices, factor, -start * factor)


def _zoom_out(side: int, factor: float, place: float) -> _Axis:
    small = round(side / factor)
    start = round(place * (side - small))
    indices = np.full(side, DROPPED, np.int64)
    indices[start : start + small] = ((np.arange(small) + 0.5) * side / small).astype(np.int64)
    return _Axis(indices, small / side, float(start))


def move_boxes(boxes: Boxes, maps: Maps) -> Boxes:
    """Boxes where the maps show them, clipped to the image; those of which less than a pixel is left are dropped."""
    height, width = len(maps.rows), len(maps.columns)
    scale = np.array([maps.scale[1], maps.scale[0]] * 2)
    shift = np.array([maps.shift[1], maps.shift[0]] * 2)
    moved = boxes.corners * scale + shift
    # A flip exchanges left and right.
    left_top, right_bottom = np.minimum(moved[:, :2], moved[:, 2:]), np.maximum(moved[:, :2], moved[:, 2:])
    corners = np.clip(np.concatenate([left_top, right_bottom], axis=1), 0, (width, height, width, height))
    seen = boxes._replace(corners=corners.astype(np.float32))
    return seen.keep(np.all(seen.size >= SMALLEST, axis=1))
