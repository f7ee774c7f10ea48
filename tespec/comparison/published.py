"""The paper's three comparison tables, with what was measured beside them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tespec.comparison.basis import bases
from tespec.comparison.records import Record
from tespec.comparison.references import PAPER, published, read_reference, text
from tespec.comparison.side_by_side import side_by_side
from tespec.comparison.table import Cell, Column, Group, Row, Table

# Metric that is shown apart for frames of a moving and of a standing camera, by table.
APART = {"detection": "map", "segmentation": "miou", "depth": "abs"}
TABLES = tuple(APART)


def published_table(name: str, records: Sequence[Record], columns: str = "both") -> Table:
    """One of the paper's tables with what was measured beside it.

    Args:
        name: one of `TABLES`.
        records: any records; those that are no evaluation of a task of the table are left out.
        columns: "both", "paper" or "measured".
    """
    reference = read_reference(name)
    tasks = {task.name for task in reference.tasks}
    measured = [record for record in records if record["kind"] == "evaluation" and record["task"] in tasks]
    frames = tuple((group, APART[name]) for group in ("moving", "standing"))
    return side_by_side(reference, bases(measured), frames, columns)


SUMS = "SHA256SUMS"


def edited(folder: Path = PAPER) -> list[str]:
    """Names of files that differ from the listed sums, are missing, or are not listed."""
    lines = [line.split(maxsplit=1) for line in (folder / SUMS).read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.yaml")}
    return sorted(name for name in {*listed, *there} if listed.get(name) != there.get(name))


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
