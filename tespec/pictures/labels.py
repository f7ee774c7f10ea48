"""Labels and predictions as pictures: masks, boxes, depths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.metrics.segmentation import IGNORE
from tespec.pictures.panels import Colour

# In an order in which the first 2, 3, 6 and 11 are as far apart as they can be, also for readers who see two primary
# colours alone; tests measure how far. They repeat after eleven.
CLASSES = (
    "#802000", "#2060bf", "#ffbf60", "#df6060", "#80bfff", "#604060",
    "#9f8020", "#8080bf", "#bf6080", "#404080", "#804040",
)  # fmt: skip
UNKNOWN = to_rgb("#e6e6e6")  # pixels without a label
FADED = 0.62  # grey of events behind boxes


def faded_events(histogram: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(H, W, 3) white with grey pixels where there was an event."""
    picture = np.ones((*histogram.shape[1:], 3), np.float32)
    picture[histogram.any(axis=0)] = FADED
    return picture


def class_colour(number: int) -> Colour:
    """The colour of a class in every picture."""
    return to_rgb(CLASSES[number % len(CLASSES)])


def class_colours(classes: Sequence[str]) -> dict[str, Colour]:
    """The colours of classes by their names, for a legend."""
    return {name: class_colour(number) for number, name in enumerate(classes)}


def colours_of(labels: Sequence[Any], classes: Sequence[str]) -> dict[str, Colour]:
    """What a legend has to say of these labels: their classes, and the colour of pixels that have no label."""
    holes = any(
        isinstance(label, np.ndarray) and bool((label == IGNORE if label.dtype == np.uint8 else ~known(label)).any())
        for label in labels
    )
    return class_colours(classes) | ({"no label": UNKNOWN} if holes else {})


def known(depth: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where a depth is one: finite and above zero."""
    return np.isfinite(depth) & (depth > 0)


def draw_label(axis: Axes, label: Any) -> AxesImage | None:
    """Draw `Boxes` over what `axis` shows, or a mask (H, W) uint8 or a depth (H, W) float32 in m in its place.

    Returns:
        of a depth the image, whose label says what a bar of its values is to be called.
    """
    if isinstance(label, Boxes):
        _draw_boxes(axis, label)
        return None
    if label.dtype == np.uint8:
        colours = np.array([*(class_colour(number) for number in range(IGNORE)), UNKNOWN], np.float32)
        axis.imshow(colours[label], interpolation="nearest")
        return None
    axis.imshow(np.broadcast_to(np.array(UNKNOWN, np.float32), (*label.shape, 3)))
    depth = np.ma.masked_array(label, ~known(label))
    shown = axis.imshow(depth, "viridis_r", norm=LogNorm(), interpolation="nearest")
    shown.set_label("depth in m")
    return shown


def _draw_boxes(axis: Axes, boxes: Boxes) -> None:
    for (left, top, right, bottom), number, score in zip(*(each.tolist() for each in boxes), strict=True):
        colour = class_colour(number)
        axis.add_patch(Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, color=colour, lw=2))
        if score < 1:
            axis.text(left - 0.5, top - 0.5, f"{score:.2f}", color="white", fontsize=7, va="bottom", clip_on=True,
                      bbox={"facecolor": colour, "edgecolor": "none", "pad": 1})  # fmt: skip
