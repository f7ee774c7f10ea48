"""The paper's three comparison tables, with what was measured beside them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tespec.comparison.basis import bases
from tespec.comparison.records import Record
from tespec.comparison.side_by_side import side_by_side
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml
from tespec.core.paths import PUBLISHED

PAPER = PUBLISHED


@dataclass(frozen=True)
class Named:
    """A task or a metric: its name in records and its title in tables."""

    name: str
    title: str
    better: str = ""


@dataclass(frozen=True)
class Published:
    """One row of a published table.

    Attributes:
        method: registered name of the method.
        title: name in the table, without its mark.
        backbone: network.
        recurrent: whether the network has memory.
        pretraining: data of the pre-training.
        scores: by (task, metric); None where nothing is published.
        bold: which of them the paper sets in bold.
        mark: sign of a footnote.
        citation: the paper's key of the source, "" for its own experiments.
        test_time_augmentation: whether the numbers were made with it.
        ranked: whether the row takes part in the search for the best number.
    """

    method: str
    title: str
    backbone: str
    recurrent: bool
    pretraining: str
    scores: dict[tuple[str, str], float | None]
    bold: frozenset[tuple[str, str]] = frozenset()
    mark: str = ""
    citation: str = ""
    test_time_augmentation: bool = False
    ranked: bool = True


@dataclass(frozen=True)
class PublishedGroup:
    """Rows between two rules, under a heading or none."""

    heading: str
    rows: tuple[Published, ...]


@dataclass(frozen=True)
class Reference:
    """A published table."""

    title: str
    decimals: int
    tasks: tuple[Named, ...]
    metrics: tuple[Named, ...]
    groups: tuple[PublishedGroup, ...]
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Published, ...]:
        """All rows in order."""
        return tuple(row for group in self.groups for row in group.rows)


def read_reference(name: str) -> Reference:
    """The published table `results/paper/<name>.yaml`.

    Raises:
        UserError: the file is not as it was shipped.
    """
    with published(PAPER / f"{name}.yaml") as content:
        metrics = tuple(_named(metric) for metric in content["metrics"])
        groups = tuple(
            PublishedGroup(text(group["heading"] or ""), tuple(_row(row, metrics) for row in group["rows"]))
            for group in content["groups"]
        )
        tasks = tuple(_named(task) for task in content["tasks"])
        wanted = {(task.name, metric.name) for task in tasks for metric in metrics}
        if not wanted or any(not wanted <= set(row.scores) for group in groups for row in group.rows):
            raise ValueError("a score is missing")
        marks = {text(mark): text(words) for mark, words in content["marks"].items()}
        return Reference(text(content["title"]), _decimals(content["decimals"]), tasks, metrics, groups, marks)


@contextmanager
def published(path: Path) -> Iterator[Any]:
    """Content of a file of published numbers.

    Raises:
        UserError: what is read from it is not what such a file holds, as after an edit by hand.
    """
    try:
        yield read_yaml(path)
    except UserError:
        raise
    except (*UNREADABLE, TypeError, LookupError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"[:200]
        raise UserError(path, f"is not as it was shipped ({said})", "restore it from the repository") from error


def text(value: Any) -> str:
    """`value`, which has to be a text.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def number(value: Any) -> float:
    """`value`, which has to be a finite number.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise TypeError(f"{value!r} is no published number")
    return value


def _decimals(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 6:
        raise TypeError(f"{value!r} is no number of decimals")
    return value


def _named(facts: dict[str, Any]) -> Named:
    return Named(**{name: text(value) for name, value in facts.items()})


def _row(facts: dict[str, Any], metrics: tuple[Named, ...]) -> Published:
    for name, value in facts.items():
        if name in ("recurrent", "test_time_augmentation", "ranked"):
            if not isinstance(value, bool):
                raise TypeError(f"{name}: {value!r} is neither true nor false")
        elif name not in ("scores", "bold"):
            text(value)
    scores = {
        (task, metric.name): None if value is None else number(value)
        for task, values in facts["scores"].items()
        for metric, value in zip(metrics, values, strict=True)
    }
    bold = frozenset((task, metric) for task, names in facts.get("bold", {}).items() for metric in names)
    return Published(**(facts | {"scores": scores, "bold": bold}))


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
        Group(text(group["heading"] or ""), tuple(_row_published(texts) for texts in group["rows"]))
        for group in facts["groups"]
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


def _row_published(texts: list[str]) -> Row:
    return Row(tuple(Cell(text(each), _value(each)) for each in texts), facts={"title": texts[0]})


def _value(shown: str) -> float | None:
    """The number of a cell that is one, thousands separated by commas or not."""
    try:
        value = float(shown.replace(",", "")) if ", " not in shown else math.nan
        return value if math.isfinite(value) else None
    except ValueError:
        return None
