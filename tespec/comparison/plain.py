"""The paper's tables of facts (sizes, settings, augmentation, run times), which nothing is measured beside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tespec.comparison.references import PAPER, published, text
from tespec.comparison.table import Cell, Column, Group, Row, Table

FILE = PAPER / "plain.yaml"


def plain_tables() -> dict[str, Table]:
    """All of them by name."""
    with published(FILE) as content:
        return {text(name): _table(facts) for name, facts in content.items()}


def _table(facts: Mapping[str, Any]) -> Table:
    groups = tuple(
        Group(text(group["heading"] or ""), tuple(_row(texts) for texts in group["rows"])) for group in facts["groups"]
    )
    columns = tuple(
        Column(
            tuple(map(text, headers)),
            " ".join(headers) or "row",
            number=_numeric(groups, index),
            facts=_facts(headers, index),
        )
        for index, headers in enumerate(facts["columns"])
    )
    widths = {len(row.cells) for group in groups for row in group.rows}
    if widths != {len(columns)} or not all(column.headers for column in columns):
        raise ValueError("rows and columns do not fit")
    return Table(text(facts["title"]), columns, groups, notes=("As published; nothing here is measured.",))


def _numeric(groups: tuple[Group, ...], index: int) -> bool:
    return all(row.cells[index].value is not None for group in groups for row in group.rows)


def _facts(headers: list[str], index: int) -> dict[str, str]:
    return {"source": "paper", "metric": " ".join(headers)} if index else {}


def _row(texts: list[str]) -> Row:
    return Row(tuple(Cell(text(each), _value(each)) for each in texts), facts={"title": texts[0]})


def _value(shown: str) -> float | None:
    """The number of a cell that is one, thousands separated by commas or not."""
    try:
        value = float(shown.replace(",", "")) if ", " not in shown else math.nan
        return value if math.isfinite(value) else None
    except ValueError:
        return None
