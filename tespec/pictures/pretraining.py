"""Pictures of pre-trainings: what one sees, aims at and rebuilds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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

HIDDEN = (0.62, 0.62, 0.62)
WIDTH = 16.0  # inches
TARGETS = {
    "intensity": "intensity, Eq. 7",
    "high_pass": "intensity, Eq. 6",
    "uniform_decay": "intensity, uniform decay",
    "histograms": "positive minus negative events",
}


@dataclass(frozen=True)
class RebuiltSegment:
    """One segment of a recording and what a model makes of it.

    Attributes:
        title: what the row shows.
        histogram: (2*bins, H, W) uint8, negative polarity first.
        high_pass: (H, W) intensity of Eq. 6 at the end of the segment.
        target: (H, W) what the model is to rebuild there.
        mask: (H, W) bool, the hidden pixels; none of an autoencoder.
        reconstruction: (H, W) what the model predicts.
    """

    title: str
    histogram: NDArray[np.uint8]
    high_pass: Image
    target: Image
    mask: NDArray[np.bool_]
    reconstruction: Image


def draw_segments(segments: Sequence[RebuiltSegment], path: Path, target: str = "intensity") -> None:
    """Write one row of five pictures per segment as a PNG; target and reconstruction share a scale.

    Args:
        segments: at least one.
        path: of the PNG.
        target: what the model rebuilds, a key of `TARGETS`.
    """
    hidden = bool(segments[0].mask.any())
    colours = POLARITIES | ({"hidden from the network": HIDDEN} if hidden else {})
    columns = (
        "events of the segment",
        "what the network sees" if hidden else "input",
        f"target: {TARGETS[target]}",
        "reconstruction of what is hidden" if hidden else "reconstruction",
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
        seen[segment.mask] = HIDDEN
        show_events(axes[0], segment.histogram)
        axes[1].imshow(seen, interpolation="nearest")
        show_grey(axes[2], segment.target, unit, reach)
        show_grey(axes[3], _rebuilt(segment), unit, reach)
        show_grey(axes[4], segment.high_pass)
    add_legend(figure, colours)
    save_figure(figure, path, dpi=100)


def _rebuilt(segment: RebuiltSegment) -> Image:
    """The reconstruction where something was hidden, and what was seen beside it; all of an autoencoder's."""
    shown = segment.mask if segment.mask.any() else True
    return np.where(shown, segment.reconstruction, segment.target).astype(np.float32)
