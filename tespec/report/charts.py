"""Charts as SVG inside the page, drawn by matplotlib: the same numbers give the same bytes with the same matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from tespec.comparison.records import Record
from tespec.core.errors import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinct for colour-blind readers as well (Wong, Nature Methods 2011), then lighter ones.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#17becf", "#bcbd22")
ARCHITECTURES = {"recurrent": COLOURS[0], "feedforward": COLOURS[1]}  # as the page's style has them
WORDS = {"recurrent": "recurrent", "feedforward": "feed-forward"}
PREFERRED = ("tespec", "ecddp", "ecdp", "moby", "imagenet", "scratch")
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tespec",  # names of elements are the same each time
    "text.parse_math": False,  # a name with two $ is no formula
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI = 96
SMALL, WIDE = 2.9, 4.4  # inches
LETTERS = 24  # of a label
HUGE = 1e100  # above it a number is not drawn
FLAT = 1e-6  # share of a value below which a difference is none
STEEP = 8  # ratio of values from which on their axis is logarithmic

Bounds = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Picture:
    """A picture inside the page: its title, its bytes as a `data:` address, and its size in px."""

    title: str
    source: str
    width: int
    height: int
    chart: bool = False


@dataclass(frozen=True)
class Curve:
    """One curve: its name, its points (x, y) in order, and its look; dashed ones are told apart in print."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False

    @property
    def drawn(self) -> list[tuple[float, float]]:
        """The points that are not beyond all bounds."""
        return [point for point in self.points if all(abs(number) < HUGE for number in point)]


def bounds_of(curves: Sequence[Curve]) -> Bounds | None:
    """Least and greatest x and y, for charts that are to be compared; None of curves without points."""
    points = [point for curve in curves for point in curve.drawn]
    if not points:
        return None
    (left, right), (low, high) = ((min(each), max(each)) for each in zip(*points, strict=True))
    return (left, right), (low, high)


def line_chart(title: str, curves: Sequence[Curve], x_title: str, y_title: str, bounds: Bounds | None) -> Picture:
    """Curves in one small frame, whose axes span `bounds`; y is logarithmic where its values differ by much."""

    def draw(panel: Axes) -> None:
        for curve in curves:
            xs, ys = [x for x, _ in curve.drawn], [y for _, y in curve.drawn]
            panel.plot(xs, ys, "--" if curve.dashed else "-", color=curve.colour, lw=0.9, gid=one_line(curve.name))
        if bounds:
            (left, right), (low, high) = bounds
            logarithmic = 0 < STEEP * low <= high
            margin = 0.04 * (high - low) if high - low > FLAT * abs(high) else abs(high) or 1.0
            panel.set_xlim(min(left, 0.0), max(right, 1.0))
            panel.set_yscale("log" if logarithmic else "linear")
            panel.set_ylim(*((low / 1.2, high * 1.2) if logarithmic else (low - margin, high + margin)))
        panel.set(xlabel=x_title, ylabel=y_title)
        panel.grid(color="0.9")

    return _chart(title, draw, SMALL, 1.9)


def bar_chart(
    title: str, bars: Mapping[str, Sequence[Sequence[float]]], series: Sequence[tuple[str, str]], x_title: str
) -> Picture:
    """Horizontal bars from zero to the mean of some numbers, each number a dot on its bar.

    Args:
        title: of the chart.
        bars: for each label the numbers of each series; no bar where there are none.
        series: names and colours.
        x_title: what the numbers are.
    """
    thick = 0.8 / max(len(series), 1)

    def draw(panel: Axes) -> None:
        for number, (_, colour) in enumerate(series):
            shift = (number - (len(series) - 1) / 2) * thick
            rows = [(index + shift, row[number]) for index, row in enumerate(bars.values())]
            there = [(place, values) for place, values in rows if values and all(abs(each) < HUGE for each in values)]
            means = [mean(values) for _, values in there]
            panel.barh([place for place, _ in there], means, thick * 0.9, color=colour)
            dots = [(value, place) for place, values in there for value in values if len(values) > 1]
            panel.plot(*zip(*dots, strict=True), "o", color="0.15", ms=2, lw=0) if dots else None
        panel.set_yticks(range(len(bars)), [_label(name) for name in bars])
        panel.set_ylim(len(bars) - 0.5, -0.5)
        panel.set_xlabel(x_title)

    return _chart(title, draw, WIDE, 0.5 + len(bars) * (0.12 * len(series) + 0.08), series)


def _chart(
    title: str, draw: Callable[[Axes], None], width: float, height: float, legend: Sequence[tuple[str, str]] = ()
) -> Picture:
    """What is drawn on one panel, `width` by `height` inches, above its legend of names and colours."""
    import matplotlib.style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lines = (len(legend) + 1) // 2
    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(width, height + 0.17 * lines + 0.1 * bool(lines)), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        if legend:
            keys = [Line2D([], [], color=colour, lw=3) for _, colour in legend]
            names = [_label(name, 2 * LETTERS) for name, _ in legend]
            figure.legend(keys, names, loc="outside lower left", ncols=2, frameon=False, fontsize=7.5)
        data = io.BytesIO()
        figure.savefig(data, format="svg", metadata={"Date": None, "Creator": None})
        wide, tall = (round(inches * DPI) for inches in figure.get_size_inches())
    source = f"data:image/svg+xml;base64,{base64.b64encode(data.getvalue()).decode()}"
    return Picture(title, source, wide, tall, chart=True)


def _label(name: str, letters: int = LETTERS) -> str:
    """A name for a chart: long ones without their middle, as recordings often differ at their ends."""
    shown = one_line(name)
    half = letters // 2
    shown = shown if len(shown) <= letters else f"{shown[: half - 1]}…{shown[-half:]}"
    # Matplotlib leaves names that begin so out of legends.
    return f" {shown}" if shown.startswith("_") else shown


def preference(name: str) -> tuple[int, str]:
    """Puts the paper's methods before others, in one order everywhere."""
    return PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), name


def method_colours(records: Sequence[Record]) -> dict[str, str]:
    """A colour for each method, the same in all charts; they repeat after ten."""
    names = sorted({record["method_name"] for record in records}, key=preference)
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def title_of(record: Record) -> str:
    """A method's title on one line."""
    return " ".join(str(record["method"]["title"]).split())
