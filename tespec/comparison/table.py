"""A table apart from how it is drawn: columns under spanning headers, groups of rows, cells, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

MISSING = "-"


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        headers: titles from the widest span down to the column's own; equal neighbours under equal spans are one.
        key: its name where a column needs one word.
        better: "higher" or "lower" where the best number is to be found, else "".
        number: whether it holds numbers.
        facts: what its numbers are (source, task, metric, ...), for tidy output.
    """

    headers: tuple[str, ...]
    key: str
    better: str = ""
    number: bool = True
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and for a number what it is made of.

    Attributes:
        text: what is shown.
        value: the number.
        deviation: its sample standard deviation.
        runs: how many runs it averages.
        bold: whether it is the best of its column.
        interval: where the mean lies with a probability of 95 %, by Student's t.
        sources: names of the records it was made from.
        mark: sign of a footnote of this number.
        facts: what it is of where that differs from its row's facts, for tidy output.
    """

    text: str = MISSING
    value: float | None = None
    deviation: float | None = None
    runs: int | None = None
    bold: bool = False
    interval: tuple[float, float] | None = None
    sources: tuple[str, ...] = ()
    mark: str = ""
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One row: a cell for each column.

    Attributes:
        cells: as many as there are columns.
        grey: set apart: not compared with the other rows.
        facts: what the row is (method, architecture, ...), for tidy output.
    """

    cells: tuple[Cell, ...]
    grey: bool = False
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Rows between two rules, under a heading or none."""

    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Span:
    """A header over columns `first` to `last`, both included."""

    title: str
    first: int
    last: int


@dataclass(frozen=True)
class Table:
    """A table; `marks` are footnotes by their sign, `notes` stand below them.

    `lines` are those of its long CSV, by column, where it does not have one for each number.
    """

    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    marks: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lines: tuple[dict[str, Any], ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows in order."""
        return tuple(row for group in self.groups for row in group.rows)

    @property
    def levels(self) -> int:
        """Number of header lines."""
        return max(len(column.headers) for column in self.columns)

    def spans(self, level: int) -> list[Span]:
        """Headers of line `level`, 0 at the top.

        A column with fewer headers than the table has lines stands at the bottom, below empty ones.
        """
        paths = [("",) * (self.levels - len(column.headers)) + column.headers for column in self.columns]
        # Columns without a header on this line, and those of the lowest line, do not join their neighbours.
        apart = level == self.levels - 1
        keys = [(path[: level + 1], index if apart or not path[level] else -1) for index, path in enumerate(paths)]
        spans, first = [], 0
        for (path, _), members in groupby(keys):
            last = first + len(list(members)) - 1
            spans.append(Span(path[level], first, last))
            first = last + 1
        return spans

    def is_alone(self, span: Span) -> bool:
        """Whether a header is the only one of its column, which it stands above as high as all headers."""
        return len(self.columns[span.first].headers) == 1

    def all_notes(self) -> list[str]:
        """Footnotes that a number refers to, and the notes behind them."""
        return [*(f"{mark} {text}" for mark, text in self.used_marks().items()), *self.notes]

    def used_marks(self) -> dict[str, str]:
        """Footnotes that a number refers to."""
        used = {cell.mark for row in self.rows for cell in row.cells}
        return {mark: text for mark, text in self.marks.items() if mark in used}


def with_best_bold(groups: Sequence[Group], columns: Sequence[Column], chosen: Sequence[int]) -> tuple[Group, ...]:
    """Set the best numbers of the `chosen` columns in bold.

    Grey rows do not take part, a column with fewer than two numbers has no best one, and ties are all bold.
    """
    compared = [row for group in groups for row in group.rows if not row.grey]
    best: dict[int, float] = {}
    for index in chosen:
        values = [cell.value for row in compared if (cell := row.cells[index]).value is not None]
        if len(values) > 1 and columns[index].better:
            best[index] = max(values) if columns[index].better == "higher" else min(values)

    def embolden(row: Row) -> Row:
        if row.grey:
            return row
        cells = [
            replace(cell, bold=True) if index in best and cell.value == best[index] else cell
            for index, cell in enumerate(row.cells)
        ]
        return replace(row, cells=tuple(cells))

    return tuple(replace(group, rows=tuple(map(embolden, group.rows))) for group in groups)


def only_measured(table: Table) -> Table:
    """The table without the rows of which nothing was measured, and a note on how many those are.

    A table of which nothing at all was measured stays as it is.
    """

    def measured(row: Row) -> bool:
        return any(cell.runs is not None for cell in row.cells)

    left_out = sum(not measured(row) for row in table.rows)
    if left_out in (0, len(table.rows)):
        return table
    groups = tuple(replace(group, rows=tuple(filter(measured, group.rows))) for group in table.groups)
    rows = f"{left_out} row{'s' if left_out > 1 else ''}"
    note = f"{rows} with the paper's numbers alone left out: nothing was measured there."
    return replace(table, groups=tuple(group for group in groups if group.rows), notes=(*table.notes, note))


def without_empty(table: Table) -> Table:
    """The table without the columns of numbers that hold none."""
    kept = [
        index
        for index, column in enumerate(table.columns)
        if not column.number or any(row.cells[index].value is not None for row in table.rows)
    ]
    groups = tuple(
        replace(group, rows=tuple(replace(row, cells=tuple(row.cells[index] for index in kept)) for row in group.rows))
        for group in table.groups
    )
    return replace(table, columns=tuple(table.columns[index] for index in kept), groups=groups)
