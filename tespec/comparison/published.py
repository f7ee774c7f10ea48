"""The paper's numbers: `results/paper/*.yaml` as one tidy DataFrame, and how its tables are laid out."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml
from tespec.core.paths import PUBLISHED

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("detection", "segmentation", "depth")
SUMS = "SHA256SUMS"
PAPER, BEYOND = "paper", "beyond"  # where a published number comes from
ARCHS = {True: "recurrent", False: "feedforward"}


class Facts(BaseModel):
    """What a YAML file holds: no other keys, no other types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Task(Facts):
    """A task: its name in records and its title in tables."""

    name: str
    title: str


class Metric(Facts):
    """A metric: its name in records, its title in tables, its better direction and its unit."""

    name: str
    title: str
    better: Literal["higher", "lower"]
    unit: str = ""


class Row(Facts):
    """A row of a published table.

    Attributes:
        method: registered name.
        title: name in the table, without its mark.
        mark: sign of a footnote.
        citation: the paper's key of the source, "" for its own experiments.
        test_time_augmentation: whether the numbers were made with it.
        ranked: whether the row takes part in the search for the best number.
        scores: by task, in the order of the table's metrics; None where nothing is published.
        bold: metrics that the paper sets in bold, by task.
        few_labels: further numbers by metric, task, and share of the labels; "frozen": of a frozen backbone.
        source, protocol, differs: of rows from other publications: where they were read, and what differs.
    """

    method: str
    title: str
    mark: str = ""
    citation: str = ""
    backbone: str
    recurrent: bool
    pretraining: str
    test_time_augmentation: bool = False
    ranked: bool = True
    scores: dict[str, list[float | None]]
    bold: dict[str, list[str]] = {}
    few_labels: dict[str, dict[str, dict[str, float]]] = {}
    source: str = ""
    protocol: str = ""
    differs: str = ""


class Group(Facts):
    """Rows between two rules, under a heading or none."""

    heading: str | None
    rows: list[Row]


class PaperTable(Facts):
    """A comparison table of the paper."""

    title: str
    decimals: int
    tasks: list[Task]
    metrics: list[Metric]
    marks: dict[str, str]
    groups: list[Group]

    @model_validator(mode="after")
    def _is_complete(self) -> PaperTable:
        tasks, metrics = {task.name for task in self.tasks}, {metric.name for metric in self.metrics}
        for row in (row for group in self.groups for row in group.rows):
            if set(row.scores) != tasks or any(len(scores) != len(metrics) for scores in row.scores.values()):
                raise ValueError(f"{row.title}: needs a score, or null, for each task and metric")
            if not set(row.bold) <= tasks or not all(set(bold) <= metrics for bold in row.bold.values()):
                raise ValueError(f"{row.title}: bold names another task or metric")
        return self


class Beyond(Facts):
    """Rows of other publications by table, and what their marks mean."""

    marks: dict[str, str]
    rows: dict[str, list[Row]]


class PlainGroup(Facts):
    """Rows of texts, under a heading or none."""

    heading: str | None
    rows: list[list[str]]


class PlainTable(Facts):
    """A table of the paper that holds settings or costs; a column has one header for each level."""

    title: str
    label: str
    columns: list[list[str]]
    groups: list[PlainGroup]

    @model_validator(mode="after")
    def _is_rectangular(self) -> PlainTable:
        if any(len(row) != len(self.columns) for group in self.groups for row in group.rows):
            raise ValueError("a row needs a cell for each column")
        return self


def read_published(path: Path, kind: Any) -> Any:
    """Content of a YAML file of published numbers as `kind`, a type that pydantic knows.

    Raises:
        UserError: the file holds something else, as after an edit by hand.
    """
    try:
        return TypeAdapter(kind).validate_python(read_yaml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except UNREADABLE as error:
        said = f"{type(error).__name__}: {error}"[:200]
    raise UserError(path, f"is not as it was shipped ({said})", "restore it from the repository")


@cache
def read_paper(name: str) -> PaperTable:
    """One of `TABLES`."""
    table: PaperTable = read_published(PUBLISHED / f"{name}.yaml", PaperTable)
    return table


@cache
def plain_tables() -> dict[str, PlainTable]:
    """Tables of the paper's settings and costs, by name."""
    tables: dict[str, PlainTable] = read_published(PUBLISHED / "plain.yaml", dict[str, PlainTable])
    return tables


@cache
def read_beyond() -> Beyond:
    """Rows of other publications."""
    beyond: Beyond = read_published(PUBLISHED / "beyond.yaml", Beyond)
    return beyond


def table_of(task: str) -> str:
    """Name of the comparison table that holds a task, "" for a task that the paper does not have."""
    return next((name for name in TABLES if any(task == each.name for each in read_paper(name).tasks)), "")


def published_frame() -> pd.DataFrame:
    """All numbers of the comparison tables, one a row, in the paper's order; NaN where nothing is published.

    `source` is "paper", or "beyond" for a method that the paper does not have, whose rows are never ranked; `block` and
    `order` are numbers of the group and of the row; `tta` says whether there was test-time augmentation. The other
    columns are named as in `PaperTable` or in the frame of records.
    """
    import pandas as pd

    path, beyond, rows = PUBLISHED / "beyond.yaml", read_beyond(), []
    for name in TABLES:
        table = read_paper(name)
        cited = [row.model_copy(update={"ranked": False}) for row in beyond.rows.get(name, ())]
        groups = [(PAPER, group.heading or "", group.rows) for group in table.groups]
        known = {metric.name for metric in table.metrics}
        whole = all(len(scores) == len(known) for row in cited for scores in row.scores.values())
        if not whole or not all(set(row.few_labels) <= known for row in cited):
            raise UserError(path, f"{name}: needs a score, or null, for each metric", "restore it from the repository")
        order = 0
        for number, (source, heading, members) in enumerate([*groups, (BEYOND, "Other publications", cited)]):
            for row in members:
                order += 1
                facts = {"table": name, "source": source, "block": number, "group": heading, "order": order}
                rows += [facts | score for score in _scores(row, table)]
    return pd.DataFrame(rows).astype({"value": "float64"})


def _scores(row: Row, table: PaperTable) -> list[dict[str, Any]]:
    facts = row.model_dump(include={"method", "title", "mark", "citation", "backbone", "ranked"})
    facts |= {"arch": ARCHS[row.recurrent], "pretraining_data": row.pretraining, "tta": row.test_time_augmentation}
    metrics = {each.name: {"metric": each.name, "unit": each.unit, "better": each.better} for each in table.metrics}
    full = [
        {"task": task, "value": value, "bold": name in row.bold.get(task, ()), **metrics[name]}
        for task, scores in row.scores.items()
        for name, value in zip(metrics, scores, strict=True)
    ]
    few = [
        {"task": task, "value": value, "bold": False, **metrics[name], **_share(share)}
        for name, tasks in row.few_labels.items()
        for task, values in tasks.items()
        for share, value in values.items()
    ]
    return [{"label_fraction": 1.0, "frozen": False, **facts, **score} for score in (*full, *few)]


def _share(name: str) -> dict[str, Any]:
    return {"frozen": True} if name == "frozen" else {"label_fraction": float(name)}


def modified_files(folder: Path = PUBLISHED) -> list[str]:
    """Names of published files that differ from the listed sums, are missing, or are not listed."""
    lines = [line.split(maxsplit=1) for line in (folder / SUMS).read_text(encoding="utf-8").splitlines()]
    listed = {name: digest for digest, name in lines}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.yaml")}
    return sorted(name for name in {*listed, *there} if listed.get(name) != there.get(name))
