"""Picture of a masked reconstruction: events, masked input, target and what a network reconstructs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.pictures.panels import (
    POLARITIES,
    Image,
    add_legend,
    event_image,
    make_panels,
    reach_of,
    save_figure,
    show_events,
    show_grey,
)

MASKED = (0.62, 0.62, 0.62)
WIDTH = 16.0  # inches
TARGETS = {
    "intensity": "intensity, Eq. 7",
    "high_pass": "intensity, Eq. 6",
    "histograms": "positive minus negative events",
}


class ReconstructedSegment(NamedTuple):
    """One segment of a recording and a network's reconstruction of it.

    Attributes:
        title: of the row.
        histogram: (2*bins, H, W) uint8, negative polarity first.
        high_pass: (H, W) intensity of Eq. 6 at the end of the segment.
        target: (H, W) the target of the reconstruction there.
        mask: (H, W) bool, the masked pixels; none of an autoencoder.
        reconstruction: (H, W) the network's prediction.
    """

    title: str
    histogram: NDArray[np.uint8]
    high_pass: Image
    target: Image
    mask: NDArray[np.bool_]
    reconstruction: Image


def draw_segments(segments: Sequence[ReconstructedSegment], path: Path, target: str = "intensity") -> None:
    """Write one row of five pictures per segment as a PNG; target and reconstruction share a scale.

    Args:
        segments: at least one.
        path: of the PNG.
        target: what the network reconstructs, a key of `TARGETS`.
    """
    is_masked = bool(segments[0].mask.any())
    colours = POLARITIES | ({"masked": MASKED} if is_masked else {})
    columns = (
        "events of the segment",
        "masked input" if is_masked else "input",
        f"target: {TARGETS[target]}",
        "reconstruction of what is masked" if is_masked else "reconstruction",
        "for comparison: intensity, Eq. 6",
    )
    unit = "events" if target == "histograms" else "log intensity"
    size = segments[0].mask.shape
    figure, panels = make_panels(len(segments), len(columns), size, WIDTH, bars=3, legend=len(colours))
    for axis, column in zip(panels[0], columns, strict=True):
        axis.set_title(column, fontsize=10)
    for axes, segment in zip(panels, segments, strict=True):
        axes[0].set_ylabel(segment.title, fontsize=10)
        seen, reach = event_image(segment.histogram), reach_of(segment.target)
        seen[segment.mask] = MASKED
        # Visible pixels show the target, so that the reconstruction can be judged beside it.
        replaced = segment.mask if is_masked else np.ones_like(segment.mask)
        show_events(axes[0], segment.histogram)
        axes[1].imshow(seen, interpolation="nearest")
        show_grey(axes[2], segment.target, unit, reach)
        show_grey(axes[3], np.where(replaced, segment.reconstruction, segment.target), unit, reach)
        show_grey(axes[4], segment.high_pass)
    add_legend(figure, colours)
    save_figure(figure, path, dpi=100)
