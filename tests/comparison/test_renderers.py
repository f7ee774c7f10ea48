"""Golden files: `python -m pytest tests/comparison/test_renderers.py` compares, TESPEC_WRITE_GOLDEN=1 writes them."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tespec.comparison.identity import package_code
from tespec.comparison.published import read_published
from tespec.comparison.records import Record
from tespec.comparison.render import (
    latex,
    print_table,
    render_csv,
    render_html,
    render_latex,
    render_long_csv,
    render_markdown,
    render_text,
)
from tespec.comparison.side_by_side import published_table, side_by_side
from tespec.comparison.table import Cell, Column, Group, Row, Table

GOLDEN = Path(__file__).parent / "golden"
RENDERERS: dict[str, Callable[[Table], str]] = {
    "txt": render_text,
    "csv": render_csv,
    "long.csv": render_long_csv,
    "tex": render_latex,
    "md": render_markdown,
    "html": render_html,
}


@pytest.fixture
def real_record(record: Callable[..., Record]) -> Record:
    """A run on the real data set."""
    return record(data="ddd17", profile="paper", miou=56.0, config={}, groups={})


@pytest.mark.parametrize("ending", RENDERERS)
@pytest.mark.parametrize("name", ["published", "measured"])
def test_golden(name: str, ending: str, sample_records: list[Record], real_record: Record) -> None:
    records = [*sample_records, real_record] if name == "measured" else []
    text = RENDERERS[ending](published_table("segmentation", records)).replace(package_code(), "CODE")
    golden = GOLDEN / f"{name}.{ending}"
    if "TESPEC_WRITE_GOLDEN" in os.environ:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


class Nesting(HTMLParser):
    """Refuses tags that do not close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_escapes_what_it_shows_and_is_well_formed(sample_records: list[Record]) -> None:
    bad = "<script>alert('x')</script> & \"more\""
    row = Row((Cell(bad), Cell("1.0", 1.0, bold=True, mark="†")), grey=True)
    columns = (Column((bad,), "a", number=False), Column((bad, "b"), "b"))
    table = Table(bad, columns, (Group(bad, (row,)),), {"†": bad}, (bad,))
    for page in (render_html(table), render_html(published_table("detection", sample_records))):
        assert "<script" not in page
        nesting = Nesting()
        nesting.feed(page)
        assert nesting.open == []


def test_golden_of_a_table_with_a_grey_row() -> None:
    text = render_latex(side_by_side(read_published("depth"), ()))
    golden = GOLDEN / "depth.tex"
    if "TESPEC_WRITE_GOLDEN" in os.environ:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_text_columns_are_aligned(sample_records: list[Record]) -> None:
    table = published_table("segmentation", sample_records)
    lines = render_text(table).splitlines()
    ruled = [index for index, line in enumerate(lines) if line.startswith("====")]
    header = next(line for line in lines if line.startswith("Method"))
    ends = header.index("seeds") + len("seeds")
    counted = [line for line in lines[: ruled[1]] if line.startswith(("No Pre", "TESPEC", "My", "MoBY", "ECDDP"))]
    assert {len(line) for line in counted} == {ends}


def test_csv_gives_back_every_number(sample_records: list[Record]) -> None:
    table = published_table("segmentation", sample_records)
    lines = list(csv.DictReader(io.StringIO(render_csv(table))))
    for line, row in zip(lines, table.rows, strict=True):
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.number:
                assert line[column.key] == ("" if cell.value is None else str(round(cell.value, 6)))


@given(st.text())
def test_escaped_text_holds_no_bare_special_character(text: str) -> None:
    bare = latex(text)
    for command in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}"):
        bare = bare.replace(command, "")
    for character in "{}$&#%_":
        bare = bare.replace(f"\\{character}", "")
    for command in ("{[}", "{]}", "{*}", r"\textless{}", r"\textgreater{}", r"\textbar{}", r"$\pm$", r"$\uparrow$"):
        bare = bare.replace(command, "")
    for command in (
        "$_1$",
        "$_2$",
        "$_3$",
        r"$\downarrow$",
        r"$\Delta$",
        r"$\delta$",
        r"$\alpha$",
        r"$\times$",
        r"$^\dagger$",
        r"$^\ddagger$",
        r"$^\S$",
        r"$^\P$",
    ):
        bare = bare.replace(command, "")
    assert not set(bare) & set("\\{}$&#%_~^\n")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 50%", r"a\_b \& 50\%"),
        (r"C:\x", r"C:\textbackslash{}x"),
        ("1 ± 2 ↑", r"1 $\pm$ 2 $\uparrow$"),
        ("{~^}", r"\{\textasciitilde{}\textasciicircum{}\}"),
    ],
)
def test_escape(text: str, escaped: str) -> None:
    assert latex(text) == escaped


def test_special_characters_of_a_title_stay_inside_their_cell(record: Callable[..., Record]) -> None:
    facts: dict[str, Any] = {"title": "A&B|50%_#1\nnew", "backbone": "Swin-T/7"}
    table = published_table("segmentation", [record("mine", method=facts)])
    assert r"A\&B\textbar{}50\%\_\#1 new & Swin-T/7 & Yes" in render_latex(table)
    assert r"| A&B\|50%\_#1 new | Swin-T/7 | Yes" in render_markdown(table)
    rows = list(csv.reader(io.StringIO(render_csv(table))))
    assert len({len(row) for row in rows}) == 1
    assert "A&B|50%_#1 new   Swin-T/7" in render_text(table)


HOSTILE = (
    '=HYPERLINK("http://a")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", r"\input{/etc/passwd}", "$x$",
    "[2cm] a", "* b", "<script>alert(1)</script>", "![a](http://b)", "[a](javascript:b)", "\x1b[2Jc", "a\u202eb", "|c",
    "a\x0cb",
)  # fmt: skip


@pytest.mark.parametrize("title", HOSTILE)
def test_what_a_title_says_is_shown_and_does_nothing(record: Callable[..., Record], title: str) -> None:
    table = published_table("segmentation", [record("mine", method={"title": title, "backbone": title})])
    for page in (render_text(table), render_csv(table), render_latex(table), render_markdown(table)):
        assert not any(character in page for character in "\x1b\x0c\r\u202e")
    data = f"data{title}"
    table = published_table("segmentation", [record("mine", data=data, data_fingerprint=title)])
    assert not any(character in render_text(table) for character in "\x1b\x0c\r\u202e")
    for row in csv.reader(io.StringIO(render_csv(table))):
        for cell in row:
            assert len(cell) < 2 or cell[0] not in "=+-@|%" or float(cell) < 0
    latex = render_latex(table)
    assert r"\input" not in latex
    assert not any(line.startswith(("[", "*")) for line in latex.splitlines())
    markdown = render_markdown(table)
    assert "<script" not in markdown.replace(r"\<", "")
    assert "](" not in markdown.replace(r"\]", "")
    assert "<script" not in render_html(table)


@pytest.mark.parametrize("width", [60, 100, 140, 400])
def test_on_a_terminal_a_wide_table_is_cut_and_no_line_is_broken(
    width: int, sample_records: list[Record], real_record: Record
) -> None:
    table = published_table("segmentation", [*sample_records, real_record])
    file = io.StringIO()
    print_table(table, Console(file=file, force_terminal=True, color_system=None, width=width))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    # The labels and one column are always there, and what stands over it.
    assert max(map(len, lines)) <= max(width, 96)
    parts = [line for line in lines if line.startswith("Semantic segmentation")]
    assert parts == (
        [f"Semantic segmentation ({number} of {len(parts)})" for number in range(1, len(parts) + 1)]
        if width < 400
        else ["Semantic segmentation"]
    )
    heads = sum(len(re.split(r"  +", line)) - 4 for line in lines if line.startswith("Method  "))
    assert heads == len(table.columns) - 4
    assert sum(line.startswith("Bold: ") for line in lines) == 1
    # Into a file it goes as one.
    assert len(render_text(table).splitlines()[1]) > 140
