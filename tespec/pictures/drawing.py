"""Pictures of what a pre-training sees, aims at and rebuilds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from tespec.core.files import whole_file

POSITIVE, NEGATIVE = (0.16, 0.29, 0.90), (0.87, 0.15, 0.15)
HIDDEN = (0.13, 0.37, 0.21)
GREY_RANGE = 2.5  # standard deviations shown between black and white

TARGETS = {
    "intensity": "intensity, Eq. 7",
    "high_pass": "intensity, Eq. 6",
    "uniform_decay": "intensity, uniform decay",
    "histograms": "positive minus negative events",
}

Image = NDArray[np.float32]


@dataclass(frozen=True)
class Moment:
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


def event_image(histogram: NDArray[np.uint8]) -> Image:
    """(2*bins, H, W) counts as an (H, W, 3) picture: blue where positive events win, red where negative ones do."""
    bins = histogram.shape[0] // 2
    negative, positive = histogram[:bins].sum(0, dtype=np.int32), histogram[bins:].sum(0, dtype=np.int32)
    picture = np.ones((*negative.shape, 3), np.float32)
    picture[positive > negative] = POSITIVE
    picture[(negative >= positive) & (negative > 0)] = NEGATIVE
    return picture


def grey_image(intensity: Image, spread: float) -> Image:
    """(H, W) log intensity as an (H, W, 3) picture: zero is mid-grey, -spread black, +spread white."""
    grey = np.clip(0.5 + 0.5 * intensity / spread, 0, 1).astype(np.float32)
    return np.repeat(grey[..., None], 3, axis=2)


def spread_of(intensity: Image) -> float:
    """What `grey_image` shows between grey and white: GREY_RANGE standard deviations, and 1 of a constant image."""
    return GREY_RANGE * float(intensity.std()) or 1.0


def add_event_legend(figure: Figure, *notes: str, hidden: bool = False) -> None:
    """Say below a figure what the colours of events are, and whatever else is to be said."""
    said = [(POSITIVE, "positive events (brighter)"), (NEGATIVE, "negative events (darker)")]
    colours = [Patch(color=colour, label=text) for colour, text in said + ([(HIDDEN, "hidden")] if hidden else [])]
    handles = colours + [Patch(facecolor="0.5", edgecolor="0.5", label=note) for note in notes]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)


def draw_moments(moments: Sequence[Moment], path: Path, target: str = "intensity") -> None:
    """Write one row of five pictures per moment as a PNG.

    Args:
        moments: at least one.
        path: of the PNG.
        target: what the model rebuilds, a key of `TARGETS`.
    """
    hidden = bool(moments[0].mask.any())
    rebuilt = "reconstruction of the hidden patches" if hidden else "reconstruction"
    columns = (
        "events of the segment",
        TARGETS["high_pass"],
        f"{TARGETS[target]} (target)",
        "masked input" if hidden else "input",
        rebuilt,
    )
    height, width = moments[0].mask.shape
    size = (15, 0.6 + len(moments) * (15 / len(columns) * height / width + 0.25))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(moments), len(columns), squeeze=False)
    for row, moment in zip(axes, moments, strict=True):
        for axis, column, picture in zip(row, columns, _pictures(moment), strict=True):
            axis.imshow(picture, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(column, fontsize=9)
        row[0].set_ylabel(moment.title, fontsize=10)
    add_event_legend(figure, hidden=hidden)
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=100, format="png", metadata={"Software": None})


def _pictures(moment: Moment) -> tuple[Image, Image, Image, Image, Image]:
    events, spread = event_image(moment.histogram), spread_of(moment.target)
    masked = events.copy()
    masked[moment.mask] = HIDDEN
    shown = moment.mask if moment.mask.any() else True
    rebuilt = np.where(shown, moment.reconstruction, moment.target).astype(np.float32)
    return (
        events,
        grey_image(moment.high_pass, spread_of(moment.high_pass)),
        grey_image(moment.target, spread),
        masked,
        grey_image(rebuilt, spread),
    )
