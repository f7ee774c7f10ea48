from __future__ import annotations

import pytest

from tespec.comparison.statistics import best
from tespec.comparison.table import (
    Cell,
    Column,
    Group,
    Row,
    Span,
    Table,
    in_parts,
    only_measured,
    undecided,
    with_best_bold,
)

UP, DOWN, NONE = Column(("a",), "a", "higher"), Column(("b",), "b", "lower"), Column(("c",), "c")
LABEL = Column(("Method",), "Method", number=False)


def cell(*values: float, bold: bool = False) -> Cell:
    """A measured number of as many seeds as there are values."""
    return Cell(str(values), values[0], runs=len(values), by_seed=dict(enumerate(values)), bold=bold)


def bold(rows: list[Row], *columns: Column) -> list[list[bool]]:
    groups = with_best_bold([Group("", tuple(rows))], columns)
    return [[cell.bold for cell in row.cells] for group in groups for row in group.rows]


LOW, HIGH = (1.0, 1.1, 0.9), (9.0, 9.2, 8.9)


def test_best_follows_the_columns_direction() -> None:
    rows = [Row((cell(*LOW),) * 3), Row((cell(*HIGH),) * 3)]
    rows = [Row(tuple(cell(*each.by_seed.values()) for each in row.cells)) for row in rows]
    assert bold(rows, UP, DOWN, NONE) == [[False, True, False], [True, False, False]]


def test_all_that_cannot_be_told_from_the_best_are_bold_and_grey_rows_never() -> None:
    columns = ((20.0, 20.1, 19.9), HIGH, (8.9, 9.1, 9.3), LOW)
    rows = [Row((cell(*values),), grey=index == 0) for index, values in enumerate(columns)]
    assert bold(rows, UP) == [[False], [True], [True], [False]]
    assert best([row.cells[0].by_seed for row in rows[1:]], "higher") == {0, 1}


@pytest.mark.parametrize("values", [[(9.0,), (1.0,)], [HIGH, (9.1, 9.0, 9.3)], [HIGH]])
def test_where_nothing_can_be_told_apart_nothing_is_bold(values: list[tuple[float, ...]]) -> None:
    rows = [Row((cell(*each),)) for each in values]
    assert not any(shown for (shown,) in bold(rows, UP))
    assert undecided([Group("", tuple(rows))], 0) == (len(values) > 1)


def test_published_numbers_keep_their_bold() -> None:
    rows = [Row((Cell("1", 1.0, bold=True), cell(*LOW))), Row((Cell("2", 2.0), cell(*HIGH)))]
    assert bold(rows, UP, UP) == [[True, False], [False, True]]


def test_only_the_rows_that_were_measured_are_left_and_the_others_counted() -> None:
    published, measured = Row((Cell("a"), Cell("2", 2.0))), Row((Cell("b"), cell(*HIGH)))
    table = Table("t", (LABEL, UP), (Group("x", (published,)), Group("y", (measured, published))))
    found = only_measured(table)
    assert [(group.heading, group.rows) for group in found.groups] == [("y", (measured,))]
    assert found.notes == ("2 rows with published numbers alone left out: nothing was measured there.",)
    for rows in ((measured,), (published,)):
        whole = Table("t", (LABEL, UP), (Group("", rows),))
        assert only_measured(whole) is whole


def wide() -> Table:
    """Two blocks of three and five columns of numbers; the second row has numbers in the second block alone."""
    columns = (LABEL, *(Column(("task", block, f"{block}{index}"), f"{block}{index}")
               for block, count in (("p", 3), ("m", 5)) for index in range(count)))  # fmt: skip
    full = Row((Cell("x"), *(Cell(str(index), index) for index in range(8))))
    half = Row((Cell("y"), *[Cell()] * 3, *(Cell("1", 1.0) for _ in range(5))))
    return Table("t", columns, (Group("g", (full, half)),), notes=("a note",))


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (90, [8]),
        (80, [3, 5]),
        (60, [3, 5]),
        (50, [3, 3, 2]),
        (30, [2, 1, 2, 2, 1]),
        (5, [1] * 8),
    ],
)
def test_a_table_is_cut_into_parts_that_fit(room: int, expected: list[int]) -> None:
    parts = in_parts(wide(), lambda part: 10 * len(part.columns) <= room)
    assert [len(part.columns) - 1 for part in parts] == expected
    assert all(part.columns[0] == LABEL for part in parts)
    # Nothing is lost, and the notes are there once.
    assert [column for part in parts for column in part.columns[1:]] == list(wide().columns[1:])
    assert [part.notes for part in parts] == [()] * (len(parts) - 1) + [("a note",)]
    shown = [[row.cells[0].text for row in part.rows] for part in parts]
    if len(parts) > 1:
        assert shown == [["x"] if part.columns[1].headers[1] == "p" else ["x", "y"] for part in parts]
        assert [part.title for part in parts] == [
            f"t ({number} of {len(parts)})" for number in range(1, len(parts) + 1)
        ]


def test_equal_headers_join_only_under_equal_headers() -> None:
    columns = tuple(
        Column(headers, str(index))
        for index, headers in enumerate(
            [("Method",), ("Recurrent",), ("A", "paper", "x"), ("A", "paper", "x"), ("B", "paper", "x")]
        )
    )
    table = Table("t", columns, ())
    assert table.spans(0) == [Span("", 0, 0), Span("", 1, 1), Span("A", 2, 3), Span("B", 4, 4)]
    assert table.spans(1) == [Span("", 0, 0), Span("", 1, 1), Span("paper", 2, 3), Span("paper", 4, 4)]
    assert [span.title for span in table.spans(2)] == ["Method", "Recurrent", "x", "x", "x"]


def test_bests_are_judged_by_the_variance_of_their_architecture() -> None:
    quiet = [{0: 40.0, 1: 40.2, 2: 40.1}, {0: 42.0, 1: 42.3, 2: 42.1}]
    noisy = [{0: 30.0, 1: 48.0, 2: 41.0}, {0: 45.0, 1: 31.0, 2: 40.0}]
    archs = ["feedforward", "feedforward", "recurrent", "recurrent"]

    def bold(facts: list[dict[str, str]]) -> list[bool]:
        cells = [Cell("x", 1.0, by_seed=scores) for scores in (*quiet, *noisy)]
        rows = tuple(Row((cell,), facts=fact) for cell, fact in zip(cells, facts, strict=True))
        (group,) = with_best_bold([Group("", rows)], [Column(("mIoU",), "miou", "higher")])
        return [row.cells[0].bold for row in group.rows]

    assert bold([{"arch": arch} for arch in archs]) == [False, True, True, True]
    assert bold([{}] * 4) == [False] * 4
