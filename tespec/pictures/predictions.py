"""Predictions of a network on a recording, drawn beside its events: a figure, and a video."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray
from PIL import Image
from PIL.GifImagePlugin import getdata, getheader

from tespec.core.boxes import Boxes
from tespec.core.files import whole_file
from tespec.pictures.panels import (
    POLARITIES,
    add_bar,
    add_legend,
    colours_of,
    faded_events,
    make_panels,
    save_figure,
    show_events,
)

COLUMNS = ("events", "prediction", "ground truth")
PANEL = 4.0  # inches
FIGURE_DPI, VIDEO_DPI = 100, 80


@dataclass(frozen=True)
class Prediction:
    """A network's prediction at the end of a window.

    Attributes:
        seconds: since the recording's first window began.
        milliseconds: length of the window.
        histogram: (2*bins, H, W) uint8 of the window.
        predicted: as the task's scorer takes it: a mask (H, W) uint8, a depth (H, W) float32 in m, `Boxes` ...
        truth: the label there, in the same form; None where there is none.
    """

    seconds: float
    milliseconds: float
    histogram: NDArray[np.uint8]
    predicted: Any
    truth: Any

    def above(self, score: float) -> Prediction:
        """The same without predicted boxes of a lower score."""
        if not isinstance(self.predicted, Boxes):
            return self
        return replace(self, predicted=self.predicted.keep(self.predicted.score >= score))


class Style(NamedTuple):
    """How predictions of a task are drawn.

    Attributes:
        draw: `Task.draw`.
        classes: names for the legend.
        has_truth: whether a column shows ground truth.
        limits: least and greatest value of the shared scale; None for labels without values. With limits of the truth,
            pictures of two networks on one recording share their colours.
    """

    draw: Callable[[Axes, Any], AxesImage | None]
    classes: Sequence[str]
    has_truth: bool
    limits: tuple[float, float] | None


def draw_figure(shown: Sequence[Prediction], style: Style, path: Path) -> None:
    """Write a row of two or three pictures for each prediction as a PNG."""
    save_figure(_figure(shown, style), path, FIGURE_DPI)


def draw_video(shown: Iterable[Prediction], style: Style, path: Path, milliseconds: int) -> None:
    """Write an animated GIF with a frame of `milliseconds` for each prediction as it comes; at least one."""
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        for number, each in enumerate(shown):
            frame = Image.fromarray(_pixels(_figure([each], style))).quantize(dither=Image.Dither.NONE)
            if number == 0:
                file.writelines(getheader(frame, info={"loop": 0})[0])
            file.writelines(getdata(frame, duration=milliseconds, include_color_table=True))
        file.write(b";")


def value_limits(draw: Callable[[Axes, Any], AxesImage | None], labels: Iterable[Any]) -> tuple[float, float] | None:
    """Least and greatest value that labels show; None if they show none."""
    found = None
    for label in labels:
        image = draw(Figure().subplots(), label)
        if image and (each := _values([image])):
            found = each if found is None else (min(found[0], each[0]), max(found[1], each[1]))
    return found


def _values(images: Iterable[AxesImage]) -> tuple[float, float] | None:
    """Least and greatest value that images show; None if they show none."""
    arrays: list[Any] = [image.get_array() for image in images]
    shown = np.concatenate([np.empty(0), *(np.ma.masked_invalid(each).compressed() for each in arrays)])
    return (float(shown.min()), float(shown.max())) if shown.size else None


def _figure(shown: Sequence[Prediction], style: Style) -> Figure:
    columns, limits = COLUMNS if style.has_truth else COLUMNS[:2], style.limits
    labels = [label for each in shown for label in (each.predicted, each.truth) if label is not None]
    colours = POLARITIES | colours_of(labels, style.classes)
    width = PANEL * len(columns) + 0.5 * (limits is not None)
    size = shown[0].histogram.shape[1:]
    figure, panels = make_panels(len(shown), len(columns), size, width, int(limits is not None), len(colours))
    for axis, column in zip(panels[0], columns, strict=True):
        axis.set_title(column, fontsize=11)
    for axes, each in zip(panels, shown, strict=True):
        show_events(axes[0], each.histogram)
        axes[0].set_ylabel(f"{each.seconds:.2f} s\nevents of {each.milliseconds:.0f} ms", fontsize=9)
        drawn = []
        for axis, label in zip(axes[1:], (each.predicted, each.truth), strict=False):
            axis.imshow(faded_events(each.histogram), interpolation="nearest")
            drawn += [] if label is None else [style.draw(axis, label)]
        images = [image for image in drawn if image is not None]
        if images and limits:
            _share_scale(axes[-1], images, limits)
    add_legend(figure, colours)
    return figure


def _share_scale(axis: Axes, images: Sequence[AxesImage], limits: tuple[float, float]) -> None:
    """Give images one scale and put its bar beside a panel, with points where values lie beyond it."""
    for image in images:
        image.set_clim(*limits)
    low, high = _values(images) or limits
    extend = {(True, True): "both", (True, False): "min", (False, True): "max", (False, False): "neither"}
    add_bar(axis, images[-1], str(images[-1].get_label()), extend[low < limits[0], high > limits[1]])


def _pixels(figure: Figure) -> NDArray[np.uint8]:
    """A figure as (H, W, 3)."""
    figure.set_dpi(VIDEO_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
