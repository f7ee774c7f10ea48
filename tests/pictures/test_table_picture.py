"""A table as a picture holds every text of the table, none on another and none cut off."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg

from tespec.comparison.side_by_side import published_table
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.pictures.table import PALE, draw_table, table_figure


def small_table() -> Table:
    columns = (
        Column(("Method",), "method", number=False),
        Column(("A title far wider than the columns below it", "paper", "x ↑"), "a"),
        Column(("A title far wider than the columns below it", "paper", "y_$ ↓"), "b"),
    )
    best = Row((Cell("first"), Cell("1.0", bold=True, mark="†"), Cell("a number of many letters")))
    floor = Row((Cell("floor"), Cell("0.1"), Cell()), grey=True)
    return Table("title", columns, (Group("", (best,)), Group("A heading", (floor,))))


def test_every_text_stands_once_inside_and_on_no_other():
    for table in (small_table(), published_table("depth", [], "paper")):
        figure = table_figure(table)
        renderer = FigureCanvasAgg(figure).get_renderer()
        texts = [text for text in figure.texts if text.get_text()]
        headers = [span.title for level in range(table.levels) for span in table.spans(level) if span.title]
        cells = [cell.text + cell.mark for row in table.rows for cell in row.cells]
        headings = [group.heading for group in table.groups if group.heading]
        assert sorted(text.get_text() for text in texts) == sorted(filter(None, headers + headings + cells))
        boxes = [text.get_window_extent(renderer) for text in texts]
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
        assert all(box.y0 >= 0 and box.y1 <= figure.bbox.height for box in boxes)
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_bold_cells_are_bold_and_grey_rows_grey():
    texts = {text.get_text(): text for text in table_figure(small_table()).texts}
    assert texts["1.0†"].get_fontweight() == "bold"
    assert texts["first"].get_fontweight() == "normal"
    assert texts["0.1"].get_color() == PALE != texts["first"].get_color()


def test_the_same_table_gives_the_same_bytes(tmp_path: Path):
    for name in ("one.png", "two.png"):
        draw_table(small_table(), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
