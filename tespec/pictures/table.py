"""A comparison table as a picture, for pages that show one at a glance; its notes stay in the other forms."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tespec.comparison.table import Cell, Table
from tespec.core.errors import one_line
from tespec.pictures.panels import save_figure

DPI = 110
SIZE = 10.0  # of the type, in pt
LINE, GAP, MARGIN = 27.0, 18.0, 9.0  # px: height of a line, between two columns, around the table
INK, PALE = "0.1", "0.55"
THICK, MIDDLE, THIN = 1.6, 1.2, 0.8  # pt


def draw_table(table: Table, path: Path) -> None:
    """Write a PNG of a table: headers over their columns, groups between rules, grey rows in grey."""
    save_figure(table_figure(table), path, dpi=DPI)


def table_figure(table: Table) -> Figure:
    """A table as a figure, as wide and as high as its texts need."""
    figure = Figure(dpi=DPI)
    widths = _widths(table, figure)
    lefts = [MARGIN + GAP / 2 + sum(widths[:at]) + GAP * at for at in range(len(widths))]
    lines = table.levels + sum(len(group.rows) + bool(group.heading) for group in table.groups)
    across, height = 2 * MARGIN + sum(widths) + GAP * len(widths), 2 * MARGIN + LINE * lines
    figure.set_size_inches(across / DPI, height / DPI)

    def write(text: str, at: int, line: float, last: int | None = None, **style: str) -> None:
        """Text of columns `at` to `last`: in their middle, in the first column at its left."""
        right = lefts[last or at] + widths[last or at]
        x, side = ((lefts[at] + right) / 2, "center") if at else (lefts[0], "left")
        figure.text(x / across, 1 - (MARGIN + LINE * (line + 0.5)) / height, text, ha=side, va="center_baseline",
                    fontsize=SIZE, parse_math=False, **{"color": INK, **style})  # type: ignore[arg-type]  # fmt: skip

    def rule(line: float, thickness: float, left: float = MARGIN, right: float = across - MARGIN) -> None:
        y = 1 - (MARGIN + LINE * line) / height
        figure.add_artist(Line2D([left / across, right / across], [y, y], color=INK, linewidth=thickness))

    rule(0, THICK)
    lowest = table.levels - 1
    for level in range(table.levels):
        for span in table.spans(level):
            if table.is_alone(span):
                if level == lowest:
                    write(one_line(span.title), span.first, level / 2, fontweight="bold")
            elif span.title:
                write(one_line(span.title), span.first, level, span.last, fontweight="bold")
                if level < lowest:
                    rule(level + 1, THIN, lefts[span.first] - GAP / 3, lefts[span.last] + widths[span.last] + GAP / 3)
    line = table.levels
    for place, group in enumerate(table.groups):
        rule(line, THIN if place else MIDDLE)
        if group.heading:
            write(one_line(group.heading), 0, line, fontstyle="italic")
            line += 1
        for row in group.rows:
            for at, cell in enumerate(row.cells):
                write(_shown(cell), at, line, color=PALE if row.grey else INK, fontweight=_weight(cell.bold))
            line += 1
    rule(line, THICK)
    return figure


def _widths(table: Table, figure: Figure) -> list[float]:
    """Widths of the columns in px, headers included."""
    renderer = FigureCanvasAgg(figure).get_renderer()

    def width(text: str, bold: bool) -> float:
        drawn = figure.text(0, 0, text, fontsize=SIZE, fontweight=_weight(bold), parse_math=False)
        extent = drawn.get_window_extent(renderer).width
        drawn.remove()
        return extent

    widths = [
        max((width(_shown(row.cells[at]), row.cells[at].bold) for row in table.rows), default=0.0)
        for at in range(len(table.columns))
    ]
    for level in reversed(range(table.levels)):
        for span in table.spans(level):
            places = range(span.first, span.last + 1)
            lacking = width(one_line(span.title), True) - sum(widths[at] for at in places) - GAP * (len(places) - 1)
            for at in places:
                widths[at] += max(0.0, lacking) / len(places)
    return widths


def _shown(cell: Cell) -> str:
    return one_line(f"{cell.text}{cell.mark}")


def _weight(bold: bool) -> str:
    return "bold" if bold else "normal"
