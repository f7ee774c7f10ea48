"""Predictions beside the events and, where there is one, the truth: a figure of some moments, and a video of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from tespec.boxes import Boxes
from tespec.evaluation.label_pictures import add_legend, draw_label, faded_events
from tespec.evaluation.pictures import event_image
from tespec.inference.play import Moment
from tespec.writing import whole_file

COLUMNS = ("events", "prediction", "ground truth")
PANEL = 4.0  # inches
FIGURE_DPI, VIDEO_DPI = 100, 80


def draw_figure(moments: Sequence[Moment], classes: Sequence[str], path: Path) -> None:
    """Write a row of two or three pictures for each moment as a PNG."""
    figure = _figure(moments, classes, columns_of(moments))
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=FIGURE_DPI, format="png", metadata={"Software": None})


def draw_video(moments: Sequence[Moment], classes: Sequence[str], path: Path, milliseconds: int) -> None:
    """Write an animated GIF with a frame of `milliseconds` for each moment; at least one."""
    columns = columns_of(moments)
    pictures = (Image.fromarray(_pixels(moment, classes, columns)) for moment in moments)
    frames = [picture.quantize(dither=Image.Dither.NONE) for picture in pictures]
    how = {"save_all": True, "append_images": frames[1:], "duration": milliseconds, "loop": 0, "optimize": False}
    with whole_file(path) as unfinished:
        frames[0].save(unfinished, format="GIF", **how)


def above(moment: Moment, score: float) -> Moment:
    """The moment without predicted boxes of a lower score."""
    predicted = moment.predicted
    if not isinstance(predicted, Boxes):
        return moment
    return replace(moment, predicted=predicted.keep(predicted.score >= score))


def columns_of(moments: Sequence[Moment]) -> Sequence[str]:
    """What is shown of each moment."""
    return COLUMNS if any(moment.truth is not None for moment in moments) else COLUMNS[:2]


def _figure(moments: Sequence[Moment], classes: Sequence[str], columns: Sequence[str]) -> Figure:
    height, width = moments[0].histogram.shape[1:]
    row = PANEL * height / width + 0.05
    figure = Figure(figsize=(PANEL * len(columns), 0.7 + len(moments) * row), layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.subplots(len(moments), len(columns), squeeze=False)
    for number, (axes, moment) in enumerate(zip(cells, moments, strict=True)):
        for axis, column in zip(axes, columns, strict=True):
            events = column == COLUMNS[0]
            axis.imshow(event_image(moment.histogram) if events else faded_events(moment.histogram))
            axis.set_xticks([])
            axis.set_yticks([])
            if number == 0:
                axis.set_title(column, fontsize=11)
        axes[0].set_ylabel(f"{moment.seconds:.2f} s", fontsize=9)
        draw_label(axes[1], moment.predicted)
        if moment.truth is not None and len(axes) == len(COLUMNS):
            draw_label(axes[2], moment.truth)
    if classes:
        add_legend(figure, classes)
    return figure


def _pixels(moment: Moment, classes: Sequence[str], columns: Sequence[str]) -> NDArray[np.uint8]:
    """A figure of one moment as (H, W, 3)."""
    figure = _figure([moment], classes, columns)
    figure.set_dpi(VIDEO_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
