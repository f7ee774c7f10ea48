"""Labels and predictions drawn over events: masks, boxes, depths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.metrics.segmentation import IGNORE

OPACITY = 0.55  # of labels over events
NEAR, FAR = 2.0, 80.0  # m, the ends of the colours of depth


def faded_events(histogram: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(H, W, 3) white with dark grey pixels where there was an event."""
    picture = np.ones((*histogram.shape[1:], 3), np.float32)
    picture[histogram.any(axis=0)] = 0.25
    return picture


def draw_label(axis: Axes, label: Any) -> None:
    """Draw a mask (H, W) uint8, a depth (H, W) float32 in m, or `Boxes` over what `axis` shows."""
    if isinstance(label, Boxes):
        for (left, top, right, bottom), number in zip(label.corners.tolist(), label.label.tolist(), strict=True):
            colour = _colour(number)
            axis.add_patch(
                Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, color=colour, lw=2)
            )
        return
    if label.dtype == np.uint8:
        colours = np.array([_colour(number) for number in range(IGNORE + 1)], np.float32)[label]
        alpha = np.where(label == IGNORE, 0, OPACITY)
    else:
        known = np.isfinite(label)
        depth = np.clip(np.where(known, label, FAR), NEAR, FAR)
        place = np.log(depth / NEAR) / np.log(FAR / NEAR)
        colours = matplotlib.colormaps["magma_r"](place)[..., :3].astype(np.float32)
        alpha = np.where(known, OPACITY, 0)
    axis.imshow(np.concatenate([colours, alpha[..., None].astype(np.float32)], axis=-1), interpolation="nearest")


def add_legend(figure: Figure, classes: Sequence[str]) -> None:
    """Name the colours of classes below the pictures."""
    patches = [Patch(color=_colour(number), label=name) for number, name in enumerate(classes)]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(len(classes), 10), fontsize=9)


def _colour(number: int) -> tuple[float, float, float]:
    red, green, blue, _ = matplotlib.colormaps["tab20"](number % 20)
    return float(red), float(green), float(blue)
