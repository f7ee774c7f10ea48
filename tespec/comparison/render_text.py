"""A table as aligned text for a terminal."""

from __future__ import annotations

import textwrap

from tespec.comparison.table import Cell, Row, Table
from tespec.core.errors import one_line

GAP = "  "
BEST = "*"
NOTES_WIDTH = 120


def render_text(table: Table) -> str:
    """Aligned text: spanning headers above their columns, `*` behind the best numbers, notes below."""
    widths = _widths(table)
    total = sum(widths) + len(GAP) * (len(widths) - 1)
    lines = [one_line(table.title), "=" * total]
    for level in range(table.levels):
        lines.append(_header(table, level, widths))
        if level < table.levels - 1:
            lines.append(_underline(table, level, widths))
    for group in table.groups:
        lines.append("-" * total)
        if group.heading:
            lines.append(one_line(group.heading))
        lines.extend(_line(table, row, widths) for row in group.rows)
    lines.append("=" * total)
    notes = [f"{mark} {text}" for mark, text in table.used_marks().items()]
    if any(cell.bold for row in table.rows for cell in row.cells):
        notes.append(f"{BEST} best number of its column")
    for note in (*notes, *table.notes):
        lines.extend(textwrap.wrap(one_line(note), NOTES_WIDTH, subsequent_indent="  "))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _text(table: Table, row: Row, index: int) -> str:
    # Blanks keep digits under digits where only some numbers of a column are marked.
    room = max(len(_signs(each.cells[index])) for each in table.rows) if table.columns[index].number else 0
    return one_line(row.cells[index].text) + f"{_signs(row.cells[index]):{room}}"


def _signs(cell: Cell) -> str:
    return one_line(cell.mark) + (BEST if cell.bold else "")


def _widths(table: Table) -> list[int]:
    widths = [
        max([len(column.headers[-1]), *(len(_text(table, row, index)) for row in table.rows)])
        for index, column in enumerate(table.columns)
    ]
    for level in reversed(range(table.levels - 1)):
        for span in table.spans(level):
            lacking = len(span.title) - _width(widths, span.first, span.last)
            widths[span.last] += max(0, lacking)
    return widths


def _width(widths: list[int], first: int, last: int) -> int:
    return sum(widths[first : last + 1]) + len(GAP) * (last - first)


def _header(table: Table, level: int, widths: list[int]) -> str:
    if level == table.levels - 1:
        return GAP.join(
            f"{one_line(span.title):{'>' if column.number else '<'}{width}}"
            for span, column, width in zip(table.spans(level), table.columns, widths, strict=True)
        )
    return GAP.join(f"{one_line(span.title):^{_width(widths, span.first, span.last)}}" for span in table.spans(level))


def _underline(table: Table, level: int, widths: list[int]) -> str:
    return GAP.join(("-" if span.title else " ") * _width(widths, span.first, span.last) for span in table.spans(level))


def _line(table: Table, row: Row, widths: list[int]) -> str:
    return GAP.join(
        f"{_text(table, row, index):{'>' if column.number else '<'}{width}}"
        for index, (column, width) in enumerate(zip(table.columns, widths, strict=True))
    )
