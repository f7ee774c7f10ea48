"""Charts as SVG, drawn from numbers alone: lines over steps, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Distinct for colour-blind readers as well (Wong, Nature Methods 2011), then lighter ones.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#17becf", "#bcbd22")
WIDTH, HEIGHT = 360, 220  # px
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 24, 30
LETTERS = 20  # of a label
TINY = 1e-12  # below it a range is no range
HUGE = 1e100  # above it a number of a curve is not drawn
DASHED = ' stroke-dasharray="4 3"'
BAR, GAP, LABEL = 11, 8, 140  # px


@dataclass(frozen=True)
class Line:
    """One curve: its name and its points (x, y) in order; dashed ones are told apart in print."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


def colour(number: int) -> str:
    """The colour of the n-th thing; repeats after ten."""
    return COLOURS[number % len(COLOURS)]


def line_chart(title: str, lines: Sequence[Line], x_title: str) -> str:
    """Curves in one frame from the lowest to the highest value, steps from 0; without any, an empty frame."""
    points = [point for line in lines for point in line.points if _drawn(point)]
    xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
    x_ticks, y_ticks = ticks(min(0, *xs), max(0, *xs)), ticks(min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * _share(x, x_ticks[0], x_ticks[-1]),
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _share(y, y_ticks[0], y_ticks[-1]),
        )

    parts = [f'<text class="title" x="{WIDTH / 2:.0f}" y="14">{escape(title)}</text>']
    for tick in y_ticks:
        _, y = place(0, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 4}" y="{y + 3.5:.1f}">{_number(tick)}</text>')
    for tick in x_ticks:
        x, _ = place(tick, 0)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 13}">{_number(tick)}</text>')
    parts.append(f'<text class="tick" x="{WIDTH / 2:.0f}" y="{HEIGHT - 3}">{escape(x_title)}</text>')
    for line in lines:
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in filter(_drawn, line.points))
        dash = DASHED if line.dashed else ""
        parts.append(
            f'<polyline fill="none" stroke="{line.colour}" stroke-width="1.4"{dash} points="{path}">'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return _svg(WIDTH, HEIGHT, title, parts)


def bar_chart(title: str, bars: Mapping[str, Sequence[float | None]], colours: Sequence[str], top: float) -> str:
    """Horizontal bars from zero to `top`: for each label one for each series, none where there is no number."""
    count = max((len(values) for values in bars.values()), default=1)
    row = count * BAR + GAP
    height = 26 + len(bars) * row
    parts = [f'<text class="title" x="{WIDTH / 2:.0f}" y="14">{escape(title)}</text>']
    for index, (label, values) in enumerate(bars.items()):
        y = 24 + index * row
        shown = label if len(label) <= LETTERS else label[: LETTERS - 1] + "…"
        parts.append(
            f'<text class="tick end" x="{LABEL - 6}" y="{y + count * BAR / 2 + 3.5:.1f}">'
            f"<title>{escape(label)}</title>{escape(shown)}</text>"
        )
        for number, value in enumerate(values):
            if value is None or not math.isfinite(value):
                continue
            length = (WIDTH - LABEL - 44) * min(1.0, max(0.0, value / top if top > 0 else 0.0))
            at = y + number * BAR
            parts.append(
                f'<rect x="{LABEL}" y="{at}" width="{length:.1f}" height="{BAR - 2}" fill="{colours[number]}"/>'
                f'<text class="value" x="{LABEL + length + 3:.1f}" y="{at + BAR - 3}">{_number(value)}</text>'
            )
    return _svg(WIDTH, height, title, parts)


def legend(entries: Sequence[tuple[str, str, bool]]) -> str:
    """Names beside their colours: (name, colour, dashed)."""
    items = []
    for name, each, dashed in entries:
        dash = DASHED if dashed else ""
        sample = f'<line x1="0" x2="22" y1="5" y2="5" stroke="{each}" stroke-width="4"{dash}/>'
        items.append(f'<li><svg width="22" height="10" aria-hidden="true">{sample}</svg> {escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def ticks(low: float, high: float) -> list[float]:
    """Two to six round numbers, the first not above `low` and the last not below `high`."""
    if high - low <= max(TINY, 1e-9 * abs(low)):
        half = abs(low) / 2 if abs(low) > TINY else 0.5
        low, high = low - half, high + half
    step = 10.0 ** math.floor(math.log10(high - low))
    for factor in (0.2, 0.5, 1.0, 2.0, 5.0):
        first, last = math.floor(low / (step * factor)), math.ceil(high / (step * factor))
        if last - first <= 5:
            return [number * step * factor for number in range(first, last + 1)]
    return [low, high]


def _drawn(point: tuple[float, float]) -> bool:
    return all(abs(number) < HUGE for number in point)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )
