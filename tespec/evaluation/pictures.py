"""Pictures of what a pre-training sees, aims at and rebuilds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tespec.writing import whole_file

POSITIVE, NEGATIVE = (0.16, 0.29, 0.90), (0.87, 0.15, 0.15)
HIDDEN = (0.13, 0.37, 0.21)
GREY_RANGE = 2.5  # standard deviations shown between black and white

COLUMNS = (
    "events of the segment",
    "intensity, Eq. 6",
    "intensity, Eq. 7 (target)",
    "masked input",
    "reconstruction of the hidden patches",
)

Image = NDArray[np.float32]


@dataclass(frozen=True)
class Moment:
    """One segment of a recording and what a model makes of it.

    Attributes:
        title: what the row shows.
        histogram: (2*bins, H, W) uint8, negative polarity first.
        high_pass: (H, W) intensity of Eq. 6 at the end of the segment; None where there are no single events.
        intensity: (H, W) intensity of Eq. 7 there.
        mask: (H, W) bool, the hidden pixels.
        reconstruction: (H, W) intensity the model predicts.
    """

    title: str
    histogram: NDArray[np.uint8]
    high_pass: Image | None
    intensity: Image
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


def _spread(intensity: Image) -> float:
    return GREY_RANGE * float(intensity.std()) or 1.0


def draw_moments(moments: Sequence[Moment], path: Path) -> None:
    """Write one row of five pictures per moment as a PNG."""
    height, width = moments[0].mask.shape
    figure = Figure(figsize=(15, 0.3 + len(moments) * (15 / len(COLUMNS) * height / width + 0.25)), layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(moments), len(COLUMNS), squeeze=False)
    for row, moment in zip(axes, moments, strict=True):
        for axis, column, picture in zip(row, COLUMNS, _pictures(moment), strict=True):
            axis.imshow(picture, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(column, fontsize=9)
        row[0].set_ylabel(moment.title, fontsize=10)
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=100, format="png", metadata={"Software": None})


def _pictures(moment: Moment) -> tuple[Image, Image, Image, Image, Image]:
    events, spread = event_image(moment.histogram), _spread(moment.intensity)
    masked = events.copy()
    masked[moment.mask] = HIDDEN
    rebuilt = np.where(moment.mask, moment.reconstruction, moment.intensity).astype(np.float32)
    return (
        events,
        _blank(events) if moment.high_pass is None else grey_image(moment.high_pass, _spread(moment.high_pass)),
        grey_image(moment.intensity, spread),
        masked,
        grey_image(rebuilt, spread),
    )


def _blank(like: Image) -> Image:
    return np.ones_like(like)
