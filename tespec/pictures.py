"""Panels of events, intensities and labels, with legends and colour bars."""

from collections.abc import Iterable, Mapping, Sequence
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
from tespec.core.files import whole_file
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
GREY_RANGE = 2.5  # standard deviations from mid-grey to black or white
LEGEND_WIDTH = 1.35  # inches, average width of a legend entry
# left, bottom, width and height of a colour bar relative to its panel
BAR = (1.02, 0.0, 0.035, 1.0)
APART = 1.3  # minimum ratio between a tick and the ends of a colour bar
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
    """Return a figure and its axes (rows, columns), without ticks, for pictures of one size.

    `columns` are titles, `size` is (H, W) in px, `width` that of the figure in inches, `bars` the
    number of columns with a colour bar, and `colours` the legend below the panels.
    """
    panel = (width - 0.35 - 0.45 * bars) / len(columns)
    across = min(len(colours), max(1, int(width / LEGEND_WIDTH)))
    height = 0.4 + 0.25 * -(-len(colours) // across) + rows * (panel * size[0] / size[1] + 0.08)
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05))
    axes = figure.subplots(
        rows, len(columns), squeeze=False, subplot_kw={"xticks": [], "yticks": []}
    )
    for axis, column in zip(axes[0], columns, strict=True):
        axis.set_title(column, fontsize=11)
    figure.legend(
        handles=[Patch(facecolor=each, edgecolor="0.4", linewidth=0.5, label=name) for name, each in colours.items()],
        loc="outside lower center", ncols=across, fontsize=9, frameon=False, handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
    return figure, axes


def save_figure(figure: Figure, path: Path, dpi: int) -> None:
    """Write a PNG without date or version, so that equal figures have equal bytes."""
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=dpi, format="png", metadata={"Software": None})


def event_image(histogram: NDArray[np.uint8]) -> Image:
    """Draw a histogram (2*bins, H, W) as (H, W, 3): blue if positive events win, red if negative ones win or tie."""
    bins = histogram.shape[0] // 2
    negative, positive = (
        histogram[:bins].sum(0, dtype=np.int32),
        histogram[bins:].sum(0, dtype=np.int32),
    )
    picture = np.ones((*negative.shape, 3), np.float32)
    picture[positive > negative] = POSITIVE
    picture[(negative >= positive) & (negative > 0)] = NEGATIVE
    return picture


def show_events(axis: Axes, histogram: NDArray[np.uint8]) -> None:
    """Show where a histogram (2*bins, H, W) has events, in the colours of `POLARITIES`."""
    axis.imshow(event_image(histogram), interpolation="nearest")


def show_faded(axis: Axes, histogram: NDArray[np.uint8]) -> None:
    """Show where a histogram (2*bins, H, W) has events, in grey, as the background of labels."""
    picture = np.ones((*histogram.shape[1:], 3), np.float32)
    picture[histogram.any(axis=0)] = FADED
    axis.imshow(picture, interpolation="nearest")


def show_counts(axis: Axes, histogram: NDArray[np.uint8]) -> None:
    """Show the number of events per pixel of a histogram (2*bins, H, W); pixels without events are black."""
    counts = np.ma.masked_equal(histogram.sum(axis=0, dtype=np.int64), 0)
    axis.set_facecolor("black")
    most = max(2, int(counts.max()) if counts.count() else 2)
    add_bar(
        axis,
        axis.imshow(counts, COUNTS, norm=LogNorm(1, most), interpolation="nearest"),
        "events per pixel",
    )


def show_grey(
    axis: Axes, image: Image, unit: str = "log intensity", reach: float | None = None
) -> None:
    """Show an image (H, W) in grey from -`reach`, black, to `reach`, white; None: `reach_of` the image."""
    reach = reach_of(image) if reach is None else reach
    add_bar(
        axis, axis.imshow(image, "gray", vmin=-reach, vmax=reach, interpolation="nearest"), unit
    )


def reach_of(image: Image) -> float:
    """Value shown as white: GREY_RANGE standard deviations, or 1 for a constant image."""
    return GREY_RANGE * float(image.std()) or 1.0


def class_colour(number: int) -> Colour:
    """Colour of a class in all pictures."""
    return to_rgb(CLASSES[number % len(CLASSES)])


def colours_of(labels: Iterable[Any], classes: Sequence[str]) -> dict[str, Colour]:
    """Legend colours of labels: those of the classes, and of "no label" if any pixel has none."""
    colours = {name: class_colour(number) for number, name in enumerate(classes)}
    arrays = [label for label in labels if isinstance(label, np.ndarray)]
    if any(
        bool((label == IGNORE if label.dtype == np.uint8 else ~known(label)).any())
        for label in arrays
    ):
        colours["no label"] = UNKNOWN
    return colours


def known(depth: Image) -> NDArray[np.bool_]:
    """Mask of valid depth: finite and above zero."""
    return np.isfinite(depth) & (depth > 0)


def draw_label(axis: Axes, label: Any) -> AxesImage | None:
    """Draw `Boxes` on top of `axis`, or cover it with a mask (H, W) uint8 or a depth map (H, W) float32 in m.

    Returns the image of a depth map, whose label is the title of its colour bar; None for other
    labels.
    """
    if isinstance(label, Boxes):
        for (left, top, right, bottom), number, score in zip(
            *(each.tolist() for each in label), strict=True
        ):
            colour, corner = class_colour(number), (left - 0.5, top - 0.5)
            axis.add_patch(
                Rectangle(corner, right - left, bottom - top, fill=False, color=colour, lw=2)
            )
            if score < 1:
                axis.text(*corner, f"{score:.2f}", color="white", fontsize=7, va="bottom", clip_on=True,
                          bbox={"facecolor": colour, "edgecolor": "none", "pad": 1})  # fmt: skip
        return None
    if label.dtype == np.uint8:
        colours = np.array(
            [*(class_colour(number) for number in range(IGNORE)), UNKNOWN], np.float32
        )
        axis.imshow(colours[label], interpolation="nearest")
        return None
    axis.imshow(np.broadcast_to(np.array(UNKNOWN, np.float32), (*label.shape, 3)))
    depth = np.ma.masked_array(label, ~known(label))
    return axis.imshow(
        depth, "viridis_r", norm=LogNorm(), interpolation="nearest", label="depth in m"
    )


def add_bar(axis: Axes, shown: AxesImage, title: str) -> None:
    """Add a colour bar next to a panel, with ticks at its ends and at round numbers or zero in between."""
    low, high = shown.get_clim()
    between = [0.0]
    if isinstance(shown.norm, LogNorm):
        values = LogLocator(subs=(1, 2, 5)).tick_values(low, high)
        between = [value for value in values if APART * low <= value <= high / APART]
    bar = axis.figure.colorbar(shown, cax=axis.inset_axes(BAR))
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
    """Write a PNG with five pictures per segment; `target`, a key of `TARGETS`, is the target of the reconstruction."""
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
    figure, panels = make_panels(
        len(segments), columns, segments[0].mask.shape, RECONSTRUCTION_WIDTH, 3, colours
    )
    for axes, segment in zip(panels, segments, strict=True):
        axes[0].set_ylabel(segment.title, fontsize=10)
        seen, reach = event_image(segment.histogram), reach_of(segment.target)
        seen[segment.mask] = MASKED
        # Visible pixels show the target, for comparison with the reconstruction.
        replaced = segment.mask if is_masked else np.ones_like(segment.mask)
        show_events(axes[0], segment.histogram)
        axes[1].imshow(seen, interpolation="nearest")
        show_grey(axes[2], segment.target, unit, reach)
        show_grey(axes[3], np.where(replaced, segment.reconstruction, segment.target), unit, reach)
        show_grey(axes[4], segment.high_pass)
    save_figure(figure, path, dpi=100)
