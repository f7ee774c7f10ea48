"""Panels of events, intensities and labels, with legends and colour bars."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.files import atomic_write, file_lock
from tespec.metrics.segmentation import IGNORE

Colour = tuple[float, float, float]
Image = NDArray[np.float32]

POSITIVE, NEGATIVE = (0.16, 0.29, 0.90), (0.87, 0.15, 0.15)
POLARITIES = {
    "positive events win (brighter)": POSITIVE,
    "negative events win or tie (darker)": NEGATIVE,
}
# Ordered so that the first 2, 3, 6 and 11 are as distinct as possible, also for colour-blind
# readers. Colours repeat after eleven.
CLASSES = (
    "#802000", "#2060bf", "#ffbf60", "#df6060", "#80bfff", "#604060",
    "#9f8020", "#8080bf", "#bf6080", "#404080", "#804040",
)  # fmt: skip
UNKNOWN = to_rgb("#e6e6e6")  # pixels without a label
FADED = 0.62  # grey level of events behind boxes
MIN_SCORE = 0.3  # of boxes that are drawn; there are hundreds with a lower one
GREY_RANGE = 2.5  # standard deviations from mid-grey to black or white
LEGEND_WIDTH = 1.35  # inches, average width of a legend entry
# left, bottom, width and height of a colour bar relative to its panel
BAR = (1.02, 0.0, 0.035, 1.0)
MIN_TICK_RATIO = 1.3  # minimum ratio between a tick and the ends of a colour bar
# one event differs from black, none
COUNTS = ListedColormap(colormaps["inferno"](np.linspace(0.3, 1.0, 256)))
MASKED = (0.62, 0.62, 0.62)
RECONSTRUCTION_WIDTH = 16.0  # inches
TARGETS = {
    "intensity": "intensity, Eq. 7",
    "high_pass": "intensity, Eq. 6",
    "histograms": "positive minus negative events",
}


def make_panels(
    rows: int,
    columns: Sequence[str],
    size: tuple[int, int],
    width: float,
    bars: int,
    colours: Mapping[str, Colour],
) -> tuple[Figure, NDArray[np.object_]]:
    """Create a figure for pictures of one size, with a legend below them.

    Args:
        rows: number of rows.
        columns: titles of the columns.
        size: height and width of a picture in px.
        width: of the figure in inches.
        bars: number of columns with a colour bar.
        colours: entries of the legend.

    Returns:
        The figure and its axes (rows, columns), without ticks.
    """
    panel = (width - 0.35 - 0.45 * bars) / len(columns)
    per_line = min(len(colours), max(1, int(width / LEGEND_WIDTH)))
    legend_lines = -(-len(colours) // per_line)
    height = 0.4 + 0.25 * legend_lines + rows * (panel * size[0] / size[1] + 0.08)
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05))
    axes = figure.subplots(
        rows, len(columns), squeeze=False, subplot_kw={"xticks": [], "yticks": []}
    )
    for axis, column in zip(axes[0], columns, strict=True):
        axis.set_title(column, fontsize=11)
    patches = [
        Patch(facecolor=colour, edgecolor="0.4", linewidth=0.5, label=name)
        for name, colour in colours.items()
    ]
    figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=per_line,
        fontsize=9,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.4,
    )
    return figure, axes


def save_figure(figure: Figure, path: Path, dpi: int) -> None:
    """Write a figure in the format of the file's suffix, as PNG with equal bytes for equal figures.

    Args:
        figure: of `make_panels`.
        path: file to write.
        dpi: px per inch.
    """
    kind = path.suffix[1:].lower()
    metadata = {"Software": None} if kind == "png" else None  # without matplotlib's version
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished, dpi=dpi, format=kind, metadata=metadata)


def save_figure_as(figure: Figure, out: Path, name: str, dpi: int) -> Path:
    """Write a figure to a file or, without replacing another one, into a folder.

    Args:
        figure: of `make_panels`.
        out: file with the suffix of its format, or folder.
        name: of the PNG in the folder; a number is added if it exists.
        dpi: px per inch.

    Returns:
        The written file.
    """
    if out.suffix and not out.is_dir():
        save_figure(figure, out, dpi)
        return out
    with file_lock(out / name):  # other commands may draw into the folder
        paths = (out / f"{name}{f'-{number}' if number > 1 else ''}.png" for number in count(1))
        path = next(path for path in paths if not path.exists())
        save_figure(figure, path, dpi)
    return path


def event_image(histogram: NDArray[np.uint8]) -> Image:
    """Colour the pixels of a histogram by the polarity of most of their events.

    Args:
        histogram: (2*bins, H, W), negative polarity first.

    Returns:
        (H, W, 3): blue if positive events win, red if negative ones win or tie, else white.
    """
    negative, positive = np.split(histogram, 2)  # (bins, H, W)
    difference = positive.sum(0, dtype=np.int32) - negative.sum(0, dtype=np.int32)
    image = np.ones((*difference.shape, 3), np.float32)
    image[histogram.any(axis=0)] = NEGATIVE
    image[difference > 0] = POSITIVE
    return image


def show_events(axis: Axes, histogram: NDArray[np.uint8]) -> None:
    """Show the events of a histogram in the colours of `POLARITIES`.

    Args:
        axis: panel of `make_panels`.
        histogram: (2*bins, H, W), negative polarity first.
    """
    axis.imshow(event_image(histogram), interpolation="nearest")


def show_faded(axis: Axes, histogram: NDArray[np.uint8]) -> None:
    """Show the events of a histogram in grey, as the background of labels.

    Args:
        axis: panel of `make_panels`.
        histogram: (2*bins, H, W).
    """
    image = np.ones((*histogram.shape[1:], 3), np.float32)
    image[histogram.any(axis=0)] = FADED
    axis.imshow(image, interpolation="nearest")


def show_counts(axis: Axes, histogram: NDArray[np.uint8]) -> None:
    """Show the number of events per pixel; pixels without events are black.

    Args:
        axis: panel of `make_panels`.
        histogram: (2*bins, H, W).
    """
    counts = histogram.sum(axis=0, dtype=np.int64)
    masked = np.ma.masked_equal(counts, 0)
    norm = LogNorm(1, max(2, int(counts.max())))
    axis.set_facecolor("black")
    image = axis.imshow(masked, COUNTS, norm=norm, interpolation="nearest")
    add_bar(axis, image, "events per pixel")


def show_grey(
    axis: Axes, image: Image, unit: str = "log intensity", reach: float | None = None
) -> None:
    """Show an image in grey.

    Args:
        axis: panel of `make_panels`.
        image: (H, W).
        unit: title of the colour bar.
        reach: value shown as white, whose negative is black; default: `reach_of` the image.
    """
    reach = reach_of(image) if reach is None else reach
    grey = axis.imshow(image, "gray", vmin=-reach, vmax=reach, interpolation="nearest")
    add_bar(axis, grey, unit)


def reach_of(image: Image) -> float:
    """Value shown as white: GREY_RANGE standard deviations, or 1 for a constant image."""
    return GREY_RANGE * float(image.std()) or 1.0


def class_colour(number: int) -> Colour:
    """Colour of a class in all pictures."""
    return to_rgb(CLASSES[number % len(CLASSES)])


def colours_of(labels: Iterable[Any], classes: Sequence[str]) -> dict[str, Colour]:
    """Return the legend of labels: the classes, and "no label" if any pixel has none.

    Args:
        labels: as in `draw_label`.
        classes: names.

    Returns:
        Colours by name.
    """
    colours = {name: class_colour(number) for number, name in enumerate(classes)}
    if any(isinstance(label, np.ndarray) and not known(label).all() for label in labels):
        colours["no label"] = UNKNOWN
    return colours


def known(label: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of labelled pixels: those with a class, or with a depth that is finite and above 0."""
    return label != IGNORE if label.dtype == np.uint8 else np.isfinite(label) & (label > 0)


def draw_label(axis: Axes, label: Any) -> AxesImage | None:
    """Draw boxes on top of a panel, or cover it with a mask or a depth map.

    Boxes with a score below `MIN_SCORE` are left out.

    Args:
        axis: panel of `make_panels`.
        label: `Boxes`, a mask (H, W) uint8, or a depth map (H, W) float32 in m.

    Returns:
        The image of a depth map, whose label is the title of its colour bar; None for others.
    """
    if isinstance(label, Boxes):
        columns = [column.tolist() for column in label.keep(label.score >= MIN_SCORE)]
        for (left, top, right, bottom), number, score in zip(*columns, strict=True):
            colour = class_colour(number)
            corner = (left - 0.5, top - 0.5)
            width = right - left
            height = bottom - top
            axis.add_patch(Rectangle(corner, width, height, fill=False, color=colour, lw=2))
            if score < 1:
                axis.text(
                    *corner,
                    f"{score:.2f}",
                    color="white",
                    fontsize=7,
                    va="bottom",
                    clip_on=True,
                    bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
                )
        return None
    if label.dtype == np.uint8:
        colours = [*(class_colour(number) for number in range(IGNORE)), UNKNOWN]
        axis.imshow(np.array(colours, np.float32)[label], interpolation="nearest")
        return None
    axis.imshow(np.broadcast_to(np.array(UNKNOWN, np.float32), (*label.shape, 3)))
    depth = np.ma.masked_array(label, ~known(label))
    norm = LogNorm()
    return axis.imshow(depth, "viridis_r", norm=norm, interpolation="nearest", label="depth in m")


def add_bar(axis: Axes, image: AxesImage, title: str) -> None:
    """Add a colour bar next to a panel, with ticks at its ends and at round numbers or zero.

    Args:
        axis: panel of `make_panels`.
        image: image of the panel.
        title: title of the colour bar.
    """
    low, high = image.get_clim()
    between = [0.0]
    if isinstance(image.norm, LogNorm):
        values = LogLocator(subs=(1, 2, 5)).tick_values(low, high)
        between = [v for v in values if MIN_TICK_RATIO * low <= v <= high / MIN_TICK_RATIO]
    bar = axis.figure.colorbar(image, cax=axis.inset_axes(BAR))
    ticks = [low, *between, *[high] * (high > low)]
    bar.set_ticks(ticks, labels=[f"{tick:.3g}".replace("-", "−") for tick in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=7, pad=1, length=2)
    bar.set_label(title, fontsize=8, labelpad=1)


class ReconstructedSegment(NamedTuple):
    """Segment of a recording and its reconstruction by a network."""

    title: str  # title of the row
    histogram: NDArray[np.uint8]  # (2*bins, H, W), negative polarity first
    high_pass: Image  # (H, W) intensity of Eq. 6 at the end of the segment
    target: Image  # (H, W) target of the reconstruction at the end of the segment
    mask: NDArray[np.bool_]  # (H, W) masked pixels; all False for an autoencoder
    reconstruction: Image  # (H, W) prediction of the network


def draw_segments(
    segments: Sequence[ReconstructedSegment], path: Path, target: str = "intensity"
) -> None:
    """Write a PNG with five pictures per segment.

    Args:
        segments: all masked, or all not.
        path: file to write.
        target: key of `TARGETS`, the target of the reconstruction.
    """
    is_masked = bool(segments[0].mask.any())
    colours = POLARITIES | ({"masked": MASKED} if is_masked else {})
    columns = (
        "events of the segment",
        "masked input" if is_masked else "input",
        f"target: {TARGETS[target]}",
        "reconstruction of masked pixels" if is_masked else "reconstruction",
        "for comparison: intensity, Eq. 6",
    )
    unit = "events" if target == "histograms" else "log intensity"
    size = segments[0].mask.shape
    figure, panels = make_panels(len(segments), columns, size, RECONSTRUCTION_WIDTH, 3, colours)
    for axes, segment in zip(panels, segments, strict=True):
        axes[0].set_ylabel(segment.title, fontsize=10)
        masked_events = event_image(segment.histogram)
        masked_events[segment.mask] = MASKED
        reconstruction = segment.reconstruction
        if is_masked:  # visible pixels show the target, for comparison
            reconstruction = np.where(segment.mask, reconstruction, segment.target)
        reach = reach_of(segment.target)
        show_events(axes[0], segment.histogram)
        axes[1].imshow(masked_events, interpolation="nearest")
        show_grey(axes[2], segment.target, unit, reach)
        show_grey(axes[3], reconstruction, unit, reach)
        show_grey(axes[4], segment.high_pass)
    save_figure(figure, path, dpi=100)
