"""A table apart from how it is drawn: columns under spanning headers, groups of rows, cells, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from tespec.comparison.statistics import best

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
        by_seed: the number of each run that is averaged, by its seed.
        bold: whether it is set in bold.
        interval: where the mean lies with a probability of 95 %, by Student's t.
        sources: names of the records it was made from.
        mark: sign of a footnote of this number.
        facts: what it is of where that differs from its row's facts, for tidy output.
    """

    text: str = MISSING
    value: float | None = None
    deviation: float | None = None
    runs: int | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict)
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
        note: stands below the table where the row is shown.
    """

    cells: tuple[Cell, ...]
    grey: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    note: str = ""


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
    """A table; `marks` are footnotes by their sign, `notes` stand below them, `name` is that of its files.

    `lines` are those of its long CSV, by column, where it does not have one for each number.
    """

    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    marks: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    name: str = ""
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
        return [*self.footnotes(), *self.notes]

    def footnotes(self) -> list[str]:
        """Footnotes that a number refers to, and the notes of rows."""
        of_rows = dict.fromkeys(row.note for row in self.rows if row.note)
        return [*(f"{mark} {text}" for mark, text in self.used_marks().items()), *of_rows]

    def used_marks(self) -> dict[str, str]:
        """Footnotes that a number refers to."""
        used = {cell.mark for row in self.rows for cell in row.cells}
        return {mark: text for mark, text in self.marks.items() if mark in used}


def with_best_bold(groups: Sequence[Group], columns: Sequence[Column]) -> tuple[Group, ...]:
    """Set in bold, of each column of measured numbers, the best and all that cannot be told from it.

    Grey rows do not take part; see `tespec.comparison.statistics.best`, with the architecture of a row as its kind.
    Other numbers stay as they are.
    """
    rows = [row for group in groups for row in group.rows if not row.grey]
    chosen: set[int] = set()  # cells, by their identity: rows may be equal
    for index, column in enumerate(columns):
        measured = [row for row in rows if row.cells[index].by_seed]
        if column.better:
            scores = [row.cells[index].by_seed for row in measured]
            kinds = [str(row.facts.get("arch", "")) for row in measured]
            chosen |= {id(measured[each].cells[index]) for each in best(scores, column.better, kinds)}

    def embolden(row: Row) -> Row:
        return replace(row, cells=tuple(replace(cell, bold=cell.bold or id(cell) in chosen) for cell in row.cells))

    return tuple(replace(group, rows=tuple(map(embolden, group.rows))) for group in groups)


def undecided(groups: Sequence[Group], index: int) -> bool:
    """Whether several measured numbers of a column are compared, and none of them is in bold."""
    cells = [row.cells[index] for group in groups for row in group.rows if not row.grey]
    compared = [cell for cell in cells if cell.by_seed]
    return len(compared) > 1 and not any(cell.bold for cell in compared)


def only_rows(table: Table, kept: Callable[[Row], bool]) -> Table:
    """The table without the other rows, and without groups that have none then."""
    groups = (replace(group, rows=tuple(filter(kept, group.rows))) for group in table.groups)
    return replace(table, groups=tuple(group for group in groups if group.rows))


def only_columns(table: Table, kept: Iterable[int]) -> Table:
    """The table without the other columns."""
    kept = tuple(kept)

    def shortened(row: Row) -> Row:
        return replace(row, cells=tuple(row.cells[index] for index in kept))

    groups = tuple(replace(group, rows=tuple(map(shortened, group.rows))) for group in table.groups)
    return replace(table, columns=tuple(table.columns[index] for index in kept), groups=groups)


def only_measured(table: Table) -> Table:
    """The table without the rows of which nothing was measured, and a note on how many those are.

    A table of which nothing at all was measured stays as it is.
    """
    shown = only_rows(table, lambda row: any(cell.runs is not None for cell in row.cells))
    left = len(table.rows) - len(shown.rows)
    if left in (0, len(table.rows)):
        return table
    note = f"{left} row{'s' if left > 1 else ''} with published numbers alone left out: nothing was measured there."
    return replace(shown, notes=(*table.notes, note))


def in_parts(table: Table, fits: Callable[[Table], bool]) -> list[Table]:
    """The table in as many parts as it takes for each of them to fit, or to have a single column besides the labels.

    Each part has the labels of its rows, which are the columns up to the first of numbers; columns under the same
    headers stay together where they fit. A part of several lacks the rows that have nothing in it, and the last has the
    notes.
    """
    every = range(len(table.columns))
    labels = next((every[:index] for index in every if table.columns[index].number), every)
    if not every[len(labels) :]:
        return [table]

    def part(columns: Sequence[int]) -> Table:
        shown = only_columns(table, (*labels, *columns))
        return only_rows(shown, lambda row: any(cell.text != MISSING or cell.mark for cell in row.cells[len(labels) :]))

    pieces = _pieces(table, every[len(labels) :], 1, lambda columns: len(columns) == 1 or fits(part(columns)))
    if len(pieces) == 1:
        return [table]
    titles = [f"{table.title} ({number} of {len(pieces)})" for number in range(1, len(pieces) + 1)]
    notes = [()] * (len(pieces) - 1) + [table.notes]
    each = zip(map(part, pieces), titles, notes, strict=True)
    return [replace(shown, title=title, notes=below) for shown, title, below in each]


def _pieces(
    table: Table, columns: Sequence[int], level: int, fit: Callable[[Sequence[int]], bool]
) -> list[Sequence[int]]:
    """Columns under the same headers of the lines above `level`, as they are or cut where the next line's change."""
    if fit(columns):
        return [columns]
    if level == table.levels:
        sizes = (-(-len(columns) // count) for count in range(1, len(columns) + 1))
        cuts = ([columns[first : first + size] for first in range(0, len(columns), size)] for size in sizes)
        return next(pieces for pieces in cuts if all(map(fit, pieces)))
    pieces: list[Sequence[int]] = []
    for _, members in groupby(columns, key=lambda index: table.columns[index].headers[:level]):
        found = _pieces(table, list(members), level + 1, fit)
        if pieces and len(found) == 1 and fit((*pieces[-1], *found[0])):
            pieces[-1] = (*pieces[-1], *found[0])
        else:
            pieces += found
    return pieces
