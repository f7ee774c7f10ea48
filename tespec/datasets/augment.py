"""Random flip and zoom, applied alike to events, images and labels, and sampled once per pass over a recording."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.settings import Augmentation
from tespec.events.histogram import DROPPED, FlipZoom

MIN_BOX_SIDE = 1.0  # px; a smaller box after clipping to the image is dropped


def sample_flip_zoom(generator: np.random.Generator, settings: Augmentation, height: int, width: int) -> FlipZoom:
    """Sample a flip and a zoom (paper, table "Augmentation Transformations").

    Zooming in by f crops 1/f of the height and width at a random position. Zooming out by f places the full image, at
    1/f of its size, at a random position. Resampling is nearest-exact.
    """
    flip = generator.random() < settings.flip
    axes = [(np.arange(side), 1.0, 0.0) for side in (height, width)]
    if generator.random() < settings.zoom:
        inward = generator.random() < settings.zoom_in_share
        factor = generator.uniform(*(settings.zoom_in if inward else settings.zoom_out))
        axes = [(_zoom_in if inward else _zoom_out)(side, factor, generator.random()) for side in (height, width)]
    (rows, row_scale, row_shift), (columns, scale, shift) = axes
    if flip:
        columns, scale, shift = columns[::-1], -scale, width - shift
    return FlipZoom(rows, columns, (row_scale, scale), (row_shift, shift))


def _zoom_in(side: int, factor: float, place: float) -> tuple[NDArray[np.int64], float, float]:
    start = place * (side - side / factor)
    indices = (start + (np.arange(side) + 0.5) / factor).astype(np.int64)
    return np.minimum(indices, side - 1), factor, -start * factor


def _zoom_out(side: int, factor: float, place: float) -> tuple[NDArray[np.int64], float, float]:
    small = round(side / factor)
    start = round(place * (side - small))
    indices = np.full(side, DROPPED, np.int64)
    indices[start : start + small] = ((np.arange(small) + 0.5) * side / small).astype(np.int64)
    return indices, small / side, float(start)


def transform_boxes(boxes: Boxes, view: FlipZoom) -> Boxes:
    """Flip and zoom boxes, clip them to the image, and drop boxes with a side below one pixel."""
    moved = boxes.corners * np.array(view.scale[::-1] * 2) + np.array(view.shift[::-1] * 2)
    sides = moved.reshape(-1, 2, 2)  # a flip swaps left and right
    corners = np.concatenate([sides.min(axis=1), sides.max(axis=1)], axis=1)
    corners = np.clip(corners, 0, (len(view.columns), len(view.rows)) * 2)
    seen = boxes._replace(corners=corners.astype(np.float32))
    return seen.keep(np.all(seen.size >= MIN_BOX_SIDE, axis=1))
