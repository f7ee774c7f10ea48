"""A table as CSV: wide, one line for each row, and tidy, one line for each number."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from tespec.comparison.table import Cell, Table
from tespec.core.errors import one_line

ROW_FACTS = ("method", "arch", "title", "backbone", "recurrent", "pretraining")
COLUMN_FACTS = ("task", "source", "metric", "frames", "data", "profile", "basis")
FORMULA = "=+-@|%"  # what spreadsheets let a formula, or a call to another program, begin with
TIDY = ("table", "group", *ROW_FACTS, "mark", *COLUMN_FACTS, "value", "std", "seeds", "low_95", "high_95", "bold")


def render_csv(table: Table) -> str:
    """Wide CSV: the table's columns; missing numbers are empty.

    `<name> std` stands behind each column that has deviations, `<name> mark` behind each that has footnotes.
    """
    columns = [[row.cells[index] for row in table.rows] for index in range(len(table.columns))]
    deviating = [any(cell.deviation is not None for cell in cells) for cells in columns]
    marked = [any(cell.mark for cell in cells) for cells in columns]
    header = ["Group"]
    for column, deviates, has_marks in zip(table.columns, deviating, marked, strict=True):
        header += [column.key, *[f"{column.key} std"] * deviates, *[f"{column.key} mark"] * has_marks]
    lines = [header]
    for group in table.groups:
        for row in group.rows:
            line = [group.heading]
            for index, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
                line.append(_number(cell.value) if column.number else cell.text)
                line += [_number(cell.deviation)] * deviating[index] + [cell.mark] * marked[index]
            lines.append(line)
    return _csv(lines)


def render_long_csv(table: Table) -> str:
    """Tidy CSV: each published, measured or compared number with all that it belongs to."""
    lines = [list(TIDY)]
    for group in table.groups:
        for row in group.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if column.facts and cell.value is not None:
                    facts = row.facts | cell.facts
                    of_row = [table.title, group.heading, *(facts.get(name, "") for name in ROW_FACTS)]
                    of_column = [column.facts.get(name) or facts.get(name, "") for name in COLUMN_FACTS]
                    lines.append([*of_row, cell.mark, *of_column, *_of_cell(cell)])
    return _csv(lines)


def _of_cell(cell: Cell) -> list[str]:
    runs = "" if cell.runs is None else str(cell.runs)
    low, high = cell.interval or (None, None)
    return [
        _number(cell.value),
        _number(cell.deviation),
        runs,
        _number(low),
        _number(high),
        "yes" if cell.bold else "no",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else str(round(value, 6))


def _csv(lines: Iterable[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_inert(cell) for cell in line] for line in lines)
    return text.getvalue()


def _inert(cell: str) -> str:
    """`cell` as one that spreadsheets take for a text or a number, not for a formula to be worked out."""
    shown = one_line(cell)
    if len(shown) < 2 or shown[0] not in FORMULA:
        return shown
    try:
        float(shown)
    except ValueError:
        return f"'{shown}"
    return shown
