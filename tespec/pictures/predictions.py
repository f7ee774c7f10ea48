"""What a network says of a recording, drawn over its events: a figure, and a video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from tespec.core.boxes import Boxes
from tespec.core.files import whole_file
from tespec.pictures.drawing import event_image
from tespec.pictures.labels import add_legend, faded_events

COLUMNS = ("events", "prediction", "ground truth")
PANEL = 4.0  # inches
FIGURE_DPI, VIDEO_DPI = 100, 80


@dataclass(frozen=True)
class Prediction:
    """What a network says at the end of a window.

    Attributes:
        seconds: since the recording's first window began.
        histogram: (2*bins, H, W) uint8 of the window.
        predicted: as the task's scorer wants it: a mask (H, W) uint8, a depth (H, W) float32 in m, `Boxes` ...
        truth: the label there, in the same form; None where there is none.
    """

    seconds: float
    histogram: NDArray[np.uint8]
    predicted: Any
    truth: Any

    def above(self, score: float) -> Prediction:
        """The same without predicted boxes of a lower score."""
        if not isinstance(self.predicted, Boxes):
            return self
        return replace(self, predicted=self.predicted.keep(self.predicted.score >= score))


class Style(NamedTuple):
    """How the labels of a task look.

    Attributes:
        draw: draws one over what an axis shows.
        classes: those a legend names; none for a task without.
    """

    draw: Callable[[Axes, Any], None]
    classes: Sequence[str]


def draw_figure(shown: Sequence[Prediction], style: Style, path: Path) -> None:
    """Write a row of two or three pictures for each prediction as a PNG."""
    figure = _figure(shown, style, _columns(shown))
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=FIGURE_DPI, format="png", metadata={"Software": None})


def draw_video(shown: Sequence[Prediction], style: Style, path: Path, milliseconds: int) -> None:
    """Write an animated GIF with a frame of `milliseconds` for each prediction; at least one."""
    columns = _columns(shown)
    pictures = (Image.fromarray(_pixels(each, style, columns)) for each in shown)
    frames = [picture.quantize(dither=Image.Dither.NONE) for picture in pictures]
    how = {"save_all": True, "append_images": frames[1:], "duration": milliseconds, "loop": 0, "optimize": False}
    with whole_file(path) as unfinished:
        frames[0].save(unfinished, format="GIF", **how)


def _columns(shown: Sequence[Prediction]) -> Sequence[str]:
    return COLUMNS if any(each.truth is not None for each in shown) else COLUMNS[:2]


def _figure(shown: Sequence[Prediction], style: Style, columns: Sequence[str]) -> Figure:
    height, width = shown[0].histogram.shape[1:]
    row = PANEL * height / width + 0.05
    figure = Figure(figsize=(PANEL * len(columns), 0.7 + len(shown) * row), layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.subplots(len(shown), len(columns), squeeze=False)
    for number, (axes, each) in enumerate(zip(cells, shown, strict=True)):
        for axis, column in zip(axes, columns, strict=True):
            events = column == COLUMNS[0]
            axis.imshow(event_image(each.histogram) if events else faded_events(each.histogram))
            axis.set_xticks([])
            axis.set_yticks([])
            if number == 0:
                axis.set_title(column, fontsize=11)
        axes[0].set_ylabel(f"{each.seconds:.2f} s", fontsize=9)
        style.draw(axes[1], each.predicted)
        if each.truth is not None and len(axes) == len(COLUMNS):
            style.draw(axes[2], each.truth)
    if style.classes:
        add_legend(figure, style.classes)
    return figure


def _pixels(prediction: Prediction, style: Style, columns: Sequence[str]) -> NDArray[np.uint8]:
    """A figure of one prediction as (H, W, 3)."""
    figure = _figure([prediction], style, columns)
    figure.set_dpi(VIDEO_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
