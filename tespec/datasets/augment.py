"""Flip and zoom: sampled once, then applied alike to events, images, maps and boxes."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.settings import Augmentation
from tespec.events.histogram import OUTSIDE_IMAGE


class FlipZoom(NamedTuple):
    """Flip and zoom of an image, as index maps for pixels and as scale and shift for boxes."""

    # (H,) source row of each output row; `OUTSIDE_IMAGE` outside of the image
    rows: NDArray[np.int64]
    # (W,) source column of each output column; `OUTSIDE_IMAGE` outside of the image
    columns: NDArray[np.int64]
    scale: tuple[float, float] = (1.0, 1.0)  # factors along rows and columns; negative if flipped
    # output position of the source's upper and left edges in px
    shift: tuple[float, float] = (0.0, 0.0)


def sample_flip_zoom(
    generator: np.random.Generator, settings: Augmentation, height: int, width: int
) -> FlipZoom:
    """Sample a flip and a zoom (paper, table "Augmentation Transformations").

    Zooming in by f crops 1/f of the height and width at a random position. Zooming out by f puts
    the full image, at 1/f of its size, at a random position. Resampling is nearest-exact.

    Args:
        generator: random generator.
        settings: probabilities of the transformations, and ranges of the zoom factor.
        height: rows of the images.
        width: columns of the images.
    """
    flip = generator.random() < settings.flip
    axes = [(np.arange(side), 1.0, 0.0) for side in (height, width)]
    if generator.random() < settings.zoom:
        inward = generator.random() < settings.zoom_in_fraction
        factor = generator.uniform(*(settings.zoom_in if inward else settings.zoom_out))
        axes = [
            (_zoom_in if inward else _zoom_out)(side, factor, generator.random())
            for side in (height, width)
        ]
    (rows, row_scale, row_shift), (columns, scale, shift) = axes
    if flip:
        columns, scale, shift = columns[::-1], -scale, width - shift
    return FlipZoom(rows, columns, (row_scale, scale), (row_shift, shift))


def _zoom_in(side: int, factor: float, position: float) -> tuple[NDArray[np.int64], float, float]:
    start = position * (side - side / factor)
    indices = (start + (np.arange(side) + 0.5) / factor).astype(np.int64)
    return np.minimum(indices, side - 1), factor, -start * factor


def _zoom_out(side: int, factor: float, position: float) -> tuple[NDArray[np.int64], float, float]:
    small = round(side / factor)
    start = round(position * (side - small))
    indices = np.full(side, OUTSIDE_IMAGE, np.int64)
    indices[start : start + small] = ((np.arange(small) + 0.5) * side / small).astype(np.int64)
    return indices, small / side, float(start)


def transform_boxes(boxes: Boxes, flip_zoom: FlipZoom) -> Boxes:
    """Flip and zoom boxes, clip them to the last visible pixel, and remove those without an area.

    As in uzh-rpg/RVT, data/genx_utils/labels.py: coordinates are those of pixels from 0 to side -
    1, so a flip maps 0 to side - 1, and the last visible pixel is `scale` px wide when zoomed in.

    Args:
        boxes: boxes in px of the image.
        flip_zoom: flip and zoom of the image.
    """
    # for left, top, right and bottom
    size = np.array([len(flip_zoom.columns), len(flip_zoom.rows)] * 2)
    scale = np.array(flip_zoom.scale[::-1] * 2)
    shift = np.array(flip_zoom.shift[::-1] * 2)
    flipped = scale < 0
    corners = np.where(flipped, size - 1 - boxes.corners[:, [2, 3, 0, 1]], boxes.corners)
    shift = np.where(flipped, shift + size * scale, shift)  # that of the flipped image
    scale = np.abs(scale)
    zoomed_in = np.minimum((size - 1) * scale + shift, size) - scale
    last = np.where(scale > 1, zoomed_in, size * scale + shift - 1)
    corners = np.clip(corners * scale + shift, 0, last).astype(np.float32)
    transformed = boxes._replace(corners=corners)
    return transformed.keep(np.all(transformed.size > 0, axis=1))


def apply_maps(image: NDArray[Any], flip_zoom: FlipZoom, outside: float) -> NDArray[Any]:
    """Flip and zoom an image.

    Args:
        image: (..., H, W) of any type.
        flip_zoom: flip and zoom for images of this size.
        outside: value of pixels from outside of the image.

    Returns:
        The transformed image, or the image itself if nothing changes.
    """
    transformed = image
    # Indexing one axis at a time takes a third of the time of indexing both together; most axes do
    # not change.
    for axis, sources in ((-2, flip_zoom.rows), (-1, flip_zoom.columns)):
        if np.array_equal(sources, np.arange(image.shape[axis])):
            continue
        transformed = transformed.take(sources, axis=axis)
        transformed.swapaxes(axis, -1)[..., sources == OUTSIDE_IMAGE] = outside
    return transformed
