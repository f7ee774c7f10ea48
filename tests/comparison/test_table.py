from __future__ import annotations

from tespec.comparison.table import Cell, Column, Group, Row, Span, Table, with_best_bold


def table_of(values: list[list[float | None]], columns: tuple[Column, ...], grey: tuple[int, ...] = ()) -> Table:
    rows = tuple(
        Row(tuple(Cell(str(value), value) for value in line), grey=index in grey) for index, line in enumerate(values)
    )
    return Table("t", columns, (Group("", rows),))


def bold(table: Table, chosen: list[int]) -> list[list[bool]]:
    groups = with_best_bold(table.groups, table.columns, chosen)
    return [[cell.bold for cell in row.cells] for group in groups for row in group.rows]


UP, DOWN, NONE = Column(("a",), "a", "higher"), Column(("b",), "b", "lower"), Column(("c",), "c")


def test_best_follows_the_columns_direction() -> None:
    table = table_of([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], (UP, DOWN, NONE))
    assert bold(table, [0, 1, 2]) == [[False, True, False], [True, False, False]]


def test_only_chosen_columns_are_searched() -> None:
    table = table_of([[1.0, 1.0], [2.0, 2.0]], (UP, UP))
    assert bold(table, [1]) == [[False, False], [False, True]]


def test_ties_are_all_best_and_grey_rows_none() -> None:
    table = table_of([[3.0], [2.0], [2.0], [None]], (UP,), grey=(0,))
    assert bold(table, [0]) == [[False], [True], [True], [False]]


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
