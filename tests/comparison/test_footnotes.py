"""Footnotes of published numbers belong to those numbers, in every table and in every form it is written in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tespec.comparison.published import TABLES, Scheme, read_published
from tespec.comparison.records import Record
from tespec.comparison.render import (
    html_table,
    render_csv,
    render_html,
    render_latex,
    render_long_csv,
    render_markdown,
    render_text,
)
from tespec.comparison.side_by_side import NOT_AT_HAND, published_table
from tespec.comparison.table import Table

RENDERERS: dict[str, Callable[[Table], str]] = {
    "text": render_text,
    "csv": render_csv,
    "long csv": render_long_csv,
    "latex": render_latex,
    "markdown": render_markdown,
    "html": render_html,
    "report": lambda table: html_table(table, lambda names: (names[0], "anchor")),
}
SIGN = re.compile(r"[†‡]|\$\^\\d?dagger\$")


def measured_everywhere(reference: Scheme, record: Callable[..., Record]) -> list[Record]:
    """A run for every published row on every task of a table, on the sample world and on the real data."""
    made = []
    for row in reference.rows:
        facts = {"title": row.title, "backbone": row.backbone, "pretraining_data": "-"}
        arch = "recurrent" if row.recurrent else "feedforward"
        augmented = {"test_time_augmentation": "ecddp"} if row.test_time_augmentation else {}
        for task in reference.tasks:
            for data, profile in (("sample", "sample"), (task.name, "paper")):
                fields: dict[str, Any] = {
                    "metrics": {each.name: 1.5 for each in reference.metrics},
                    "groups": {},
                    "config": {"arch": arch, "deviations": []} | augmented,
                }
                made.append(
                    record(row.method, arch, method=facts, task=task.name, data=data, profile=profile, **fields)
                )
    return made


@pytest.mark.parametrize("name", TABLES)
def test_no_measured_number_has_a_footnote(name: str, record: Callable[..., Record]) -> None:
    reference = read_published(name)
    table = published_table(name, measured_everywhere(reference, record))
    measured = 0
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            published = column.facts.get("source") == "paper" and (cell.value is not None or cell.mark == NOT_AT_HAND)
            assert not cell.mark or published
            measured += column.facts.get("source") == "measured" and cell.value is not None
    assert measured >= len(reference.rows)
    # The published ones keep theirs.
    for line, row in zip(reference.rows, table.rows, strict=False):
        marks = {
            cell.mark
            for column, cell in zip(table.columns, row.cells, strict=True)
            if column.facts.get("source") == "paper" and cell.value is not None
        }
        assert marks <= {line.mark}


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("name", TABLES)
def test_measured_tables_show_none(name: str, renderer: str, record: Callable[..., Record]) -> None:
    reference = read_published(name)
    text = RENDERERS[renderer](published_table(name, measured_everywhere(reference, record), "measured"))
    assert not SIGN.search(text)
    assert not any(words in text for words in reference.marks.values())


@pytest.mark.parametrize("renderer", ["text", "latex", "markdown", "html", "report"])
@pytest.mark.parametrize("name", TABLES)
def test_beside_each_other_a_sign_follows_a_published_number(
    name: str, renderer: str, record: Callable[..., Record]
) -> None:
    reference = read_published(name)
    text = RENDERERS[renderer](published_table(name, measured_everywhere(reference, record)))
    # The footnotes themselves stand below, a sign before their words.
    notes = "|".join(re.escape(words[:20]) for words in reference.marks.values()) or "nothing"
    before = re.findall(rf"(\S*?)(?:{SIGN.pattern})(?! (?:{notes}))", text)
    rows = [row for row in reference.rows if row.mark]
    published = {f"{value:.{reference.decimals}f}" for row in rows for value in row.scores.values() if value}
    assert len(before) >= len(published)
    for each in before:
        assert any(each.endswith(number) for number in published), each
