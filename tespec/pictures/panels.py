"""Panels for pictures of events, with what explains them: a legend of colours, a bar of values beside a panel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import NDArray

from tespec.core.files import whole_file

Colour = tuple[float, float, float]

POSITIVE, NEGATIVE = (0.16, 0.29, 0.90), (0.87, 0.15, 0.15)
POLARITIES = {"positive events win (brighter)": POSITIVE, "negative events win or tie (darker)": NEGATIVE}
GREY_RANGE = 2.5  # standard deviations shown between grey and black or white
LEGEND_WIDTH = 1.35  # inches of an entry of a legend, on average
NICE = np.outer(10.0 ** np.arange(-3, 6), (1, 2, 5)).ravel()  # ticks of a bar, between those at its ends
APART = 1.3  # least ratio of neighbouring ticks
BAR = (1.02, 0.0, 0.035, 1.0)  # left, bottom, width and height of a bar, in those of its panel

Image = NDArray[np.float32]


def make_panels(
    rows: int, columns: int, size: tuple[int, int], width: float, bars: int = 0, legend: int = 0
) -> tuple[Figure, NDArray[np.object_]]:
    """A figure with panels in rows and columns, without ticks, for pictures of one size.

    Args:
        rows: of panels.
        columns: of panels.
        size: (H, W) of the pictures in px.
        width: of the figure in inches.
        bars: columns that have bars.
        legend: entries of the legend below.

    Returns:
        the figure and its axes (rows, columns).
    """
    panel = (width - 0.35 - 0.45 * bars) / columns
    lines = -(-legend // max(1, int(width / LEGEND_WIDTH)))
    height = 0.4 + 0.25 * lines + rows * (panel * size[0] / size[1] + 0.08)
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    return figure, axes


def save_figure(figure: Figure, path: Path, dpi: int) -> None:
    """Write a PNG that holds no date and no version; the same figure gives the same bytes."""
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=dpi, format="png", metadata={"Software": None})


def event_image(histogram: NDArray[np.uint8]) -> Image:
    """(2*bins, H, W) counts as an (H, W, 3) picture: blue where positive events win, red where negative ones do."""
    bins = histogram.shape[0] // 2
    negative, positive = histogram[:bins].sum(0, dtype=np.int32), histogram[bins:].sum(0, dtype=np.int32)
    picture = np.ones((*negative.shape, 3), np.float32)
    picture[positive > negative] = POSITIVE
    picture[(negative >= positive) & (negative > 0)] = NEGATIVE
    return picture


def show_events(axis: Axes, histogram: NDArray[np.uint8]) -> None:
    """Show where a histogram (2*bins, H, W) has events, in the colours of `POLARITIES`."""
    axis.imshow(event_image(histogram), interpolation="nearest")


def show_counts(axis: Axes, histogram: NDArray[np.uint8]) -> None:
    """Show how many events each pixel of a histogram (2*bins, H, W) has; pixels without any are black."""
    counts = np.ma.masked_equal(histogram.sum(axis=0, dtype=np.int64), 0)
    axis.set_facecolor("black")
    most = int(counts.max()) if counts.count() else 1
    shown = axis.imshow(counts, "inferno", norm=LogNorm(0.7, max(most, 2)), interpolation="nearest")
    add_bar(axis, shown, ticks_of(1, most), "events at a pixel")


def show_grey(axis: Axes, image: Image, unit: str = "log intensity", reach: float | None = None) -> None:
    """Show an image (H, W) in grey: zero is mid-grey, -reach black, +reach white; a bar says how much that is.

    Args:
        axis: where.
        image: of any unit.
        unit: what its values are.
        reach: default: that of `reach_of`.
    """
    reach = reach_of(image) if reach is None else reach
    shown = axis.imshow(image, "gray", vmin=-reach, vmax=reach, interpolation="nearest")
    add_bar(axis, shown, [-reach, 0.0, reach], unit)


def reach_of(image: Image) -> float:
    """What lies between grey and white: GREY_RANGE standard deviations, and 1 of a constant image."""
    return GREY_RANGE * float(image.std()) or 1.0


def add_bar(axis: Axes, shown: AxesImage, ticks: Sequence[float], title: str, extend: str = "neither") -> None:
    """Put a bar of values beside a panel; `extend` as matplotlib's, where values lie beyond its ends."""
    bar = axis.figure.colorbar(shown, cax=axis.inset_axes(BAR), extend=extend)
    bar.set_ticks(list(ticks), labels=[f"{tick:.3g}".replace("-", "−") for tick in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=7, pad=1, length=2)
    bar.set_label(title, fontsize=8, labelpad=1)


def ticks_of(low: float, high: float) -> list[float]:
    """Both ends, and between them round numbers that leave room for what is written beside them."""
    ticks = [low]
    for number in NICE.tolist():
        if number >= APART * ticks[-1] and APART * number <= high:
            ticks.append(number)
    return [*ticks, *[high] * (high > low)]


def values_of(images: Iterable[AxesImage | None]) -> tuple[float, float] | None:
    """Least and greatest value that images show; None where they show none."""
    arrays: list[Any] = [image.get_array() for image in images if image]
    shown = np.concatenate([np.empty(0), *(np.ma.masked_invalid(each).compressed() for each in arrays)])
    return (float(shown.min()), float(shown.max())) if shown.size else None


def add_legend(figure: Figure, colours: Mapping[str, Colour], *notes: str) -> None:
    """Say below a figure what colours mean, and whatever else is to be said."""
    handles = [Patch(facecolor=colour, edgecolor="0.4", linewidth=0.5, label=text) for text, colour in colours.items()]
    handles += [Patch(facecolor="none", label=note) for note in notes]
    across = max(1, int(figure.get_size_inches()[0] / LEGEND_WIDTH))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), across), fontsize=9, frameon=False,
        handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
