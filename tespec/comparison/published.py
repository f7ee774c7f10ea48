"""The paper's numbers, read from `results/paper/`: its comparison tables, and tables that are shown as they are."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, StrictBool, StrictStr
from pydantic.dataclasses import dataclass

from tespec.comparison.records import Record
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml
from tespec.core.paths import PUBLISHED

PAPER = PUBLISHED
# The comparison tables, and the metric that methods are judged by in each.
PRIMARY = {"detection": "map", "segmentation": "miou", "depth": "abs"}
TABLES = tuple(PRIMARY)
SUMS = "SHA256SUMS"
COMPARED = ("evaluation", "reference")  # kinds of records that are about a task
OWN = "task_"  # what the name of such a table begins with
ARROWS = {"higher": "↑", "lower": "↓"}
Amount = Annotated[float, Strict(), Field(gt=-1e9, lt=1e9)]  # a published number
Places = Annotated[int, Strict(), Field(ge=0, le=6)]  # decimals of one


@dataclass(frozen=True)
class Named:
    """A task or a metric: its name in records, its title in tables, and which way and in which unit a metric points."""

    name: StrictStr
    title: StrictStr
    better: StrictStr = ""
    unit: StrictStr = ""


@dataclass(frozen=True)
class PublishedRow:
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

    method: StrictStr
    title: StrictStr
    backbone: StrictStr
    recurrent: StrictBool
    pretraining: StrictStr
    scores: dict[tuple[str, str], Amount | None]
    bold: frozenset[tuple[str, str]] = frozenset()
    mark: StrictStr = ""
    citation: StrictStr = ""
    test_time_augmentation: StrictBool = False
    ranked: StrictBool = True


@dataclass(frozen=True)
class CitedRow:
    """A method that the paper has not got, as its own publication reports it: shown, never compared with.

    Attributes:
        method: name that it has, or would have, in records.
        title: name in the table.
        backbone: network.
        recurrent: whether the network has memory.
        pretraining: data of the pre-training.
        citation: the publication.
        source: where its facts were read.
        protocol: how its numbers are made.
        differs: what of it is done otherwise here.
        scores: by (task, metric), of the data sets that it reports on; None where the number is not at hand.
    """

    method: StrictStr
    title: StrictStr
    backbone: StrictStr
    recurrent: StrictBool
    pretraining: StrictStr
    citation: StrictStr
    source: StrictStr
    protocol: StrictStr
    differs: StrictStr
    scores: dict[tuple[str, str], Amount | None]


@dataclass(frozen=True)
class PublishedGroup:
    """Rows between two rules, under a heading or none."""

    heading: StrictStr
    rows: tuple[PublishedRow, ...]


@dataclass(frozen=True)
class Scheme:
    """What a comparison table is made of.

    Attributes:
        title: of the table.
        decimals: of its numbers.
        tasks: of its columns.
        metrics: of each task.
        main: the metric that methods are judged by.
        groups: published rows; none for a task that is not the paper's.
        beyond: rows of other publications.
        marks: footnotes by their sign.
    """

    title: StrictStr
    decimals: Places
    tasks: tuple[Named, ...]
    metrics: tuple[Named, ...]
    main: Named
    groups: tuple[PublishedGroup, ...] = ()
    beyond: tuple[CitedRow, ...] = ()
    marks: dict[StrictStr, StrictStr] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[PublishedRow, ...]:
        """All rows in order."""
        return tuple(row for group in self.groups for row in group.rows)

    def title_of(self, task: str) -> str:
        """Title of one of its tasks."""
        return next(each.title for each in self.tasks if each.name == task)


def schemes(records: Sequence[Record] = ()) -> dict[str, Scheme]:
    """All comparison tables by name: the paper's, and one for each task of evaluations that stands in none of them."""
    found = {name: read_published(name) for name in TABLES}
    for task in sorted({record["task"] for record in records if record["kind"] == "evaluation"}):
        if not table_of(task):
            stem = OWN + re.sub(r"[^A-Za-z0-9_-]+", "_", task)[:60]
            number = sum(name == stem or name.startswith(f"{stem}.") for name in found)
            scheme = _own_scheme([record for record in records if record["task"] == task])
            found[f"{stem}.{number + 1}" if number else stem] = scheme
    return found


def read_scheme(name: str, records: Sequence[Record] = ()) -> Scheme:
    """One of `schemes`, without reading the others where it is the paper's."""
    return read_published(name) if name in TABLES else schemes(records)[name]


def scheme_of(task: str, records: Sequence[Record] = ()) -> Scheme:
    """The comparison table that holds a task of the paper, or one of `records`."""
    if name := table_of(task):
        return read_published(name)
    return _own_scheme([record for record in records if record["task"] == task])


def _own_scheme(records: Sequence[Record]) -> Scheme:
    """The table of a task that the paper does not have, from what its newest record says of it.

    Records that do not say what their scores are have the metrics of their kind in the paper, or else all they hold.
    """
    newest = max(records, key=lambda record: (record["kind"] in COMPARED, record["written"]))
    config, scores = newest["config"], newest["scores"]
    kind, title = str(config.get("kind", "")), str(config.get("title") or newest["task"])
    if scores:
        metrics = tuple(
            Named(name, _score_title(facts), facts["better"], facts["unit"]) for name, facts in scores.items()
        )
    elif kind in TABLES:
        metrics = tuple(each for each in read_published(kind).metrics if each.name in newest["metrics"])
    else:
        metrics = ()
    metrics = metrics or tuple(Named(name, name) for name in newest["metrics"]) or (Named("", "no score"),)
    return Scheme(f"{title} ({kind})" if kind else title, 3, (Named(newest["task"], title),), metrics, metrics[0])


def _score_title(facts: Mapping[str, str]) -> str:
    unit = f" ({facts['unit']})" if facts["unit"] else ""
    return f"{facts['title'].rstrip(' ↑↓')}{unit} {ARROWS[facts['better']]}"


def read_published(name: str) -> Scheme:
    """The published table `results/paper/<name>.yaml`.

    Raises:
        UserError: the file is not as it was shipped.
    """
    with published(PAPER / f"{name}.yaml") as content:
        metrics = tuple(Named(**metric) for metric in content["metrics"])
        groups = tuple(
            PublishedGroup(group["heading"] or "", tuple(_row(row, metrics) for row in group["rows"]))
            for group in content["groups"]
        )
        tasks = tuple(Named(**task) for task in content["tasks"])
        wanted = {(task.name, metric.name) for task in tasks for metric in metrics}
        if not wanted or any(not wanted <= set(row.scores) for group in groups for row in group.rows):
            raise ValueError("a score is missing")
        main = {metric.name: metric for metric in metrics}[PRIMARY[name]]
        beyond = cited_rows(name, metrics)
        return Scheme(content["title"], content["decimals"], tasks, metrics, main, groups, beyond, content["marks"])


def cited_rows(name: str, metrics: tuple[Named, ...]) -> tuple[CitedRow, ...]:
    """The rows of other publications for a table, of `results/paper/beyond.yaml`.

    Raises:
        UserError: the file is not as it was shipped.
    """
    with published(PAPER / "beyond.yaml") as content:
        return tuple(CitedRow(**(row | {"scores": _scores(row, metrics)})) for row in content.get(name, []))


@cache
def table_of(task: str) -> str:
    """Name of the comparison table that a task stands in, "" where it stands in none."""
    return next((name for name in TABLES if task in {each.name for each in read_published(name).tasks}), "")


def judged_on(task: str, others: Iterable[str]) -> list[str]:
    """On which tasks an ablation of `task` may be judged: itself, then by name those of others in the same table."""
    table = table_of(task)
    return [task, *sorted(name for name in others if table and name != task and table_of(name) == table)]


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


def _row(facts: dict[str, Any], metrics: tuple[Named, ...]) -> PublishedRow:
    bold = frozenset((task, metric) for task, names in facts.get("bold", {}).items() for metric in names)
    return PublishedRow(**(facts | {"scores": _scores(facts, metrics), "bold": bold}))


def _scores(facts: dict[str, Any], metrics: tuple[Named, ...]) -> dict[tuple[str, str], Any]:
    return {
        (task, metric.name): value
        for task, values in facts["scores"].items()
        for metric, value in zip(metrics, values, strict=True)
    }


def edited(folder: Path = PAPER) -> list[str]:
    """Names of files that differ from the listed sums, are missing, or are not listed."""
    lines = [line.split(maxsplit=1) for line in (folder / SUMS).read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.yaml")}
    return sorted(name for name in {*listed, *there} if listed.get(name) != there.get(name))


def plain_tables() -> dict[str, Table]:
    """Tables of facts by name, which hold nothing that is measured here."""
    with published(PAPER / "plain.yaml") as content:
        return {_text(name): _plain_table(facts) for name, facts in content.items()}


def _plain_table(facts: Mapping[str, Any]) -> Table:
    groups = tuple(
        Group(_text(group["heading"] or ""), tuple(_plain_row(texts) for texts in group["rows"]))
        for group in facts["groups"]
    )
    columns = tuple(
        Column(
            tuple(map(_text, headers)),
            " ".join(headers) or "row",
            number=_numeric(groups, index),
            facts=_facts(headers, index),
        )
        for index, headers in enumerate(facts["columns"])
    )
    widths = {len(row.cells) for group in groups for row in group.rows}
    if widths != {len(columns)} or not all(column.headers for column in columns):
        raise ValueError("rows and columns do not fit")
    return Table(_text(facts["title"]), columns, groups, notes=("As published; nothing here is measured.",))


def _numeric(groups: tuple[Group, ...], index: int) -> bool:
    return all(row.cells[index].value is not None for group in groups for row in group.rows)


def _facts(headers: list[str], index: int) -> dict[str, str]:
    return {"source": "paper", "metric": " ".join(headers)} if index else {}


def _plain_row(texts: list[str]) -> Row:
    return Row(tuple(Cell(_text(each), _value(each)) for each in texts), facts={"title": texts[0]})


def _value(shown: str) -> float | None:
    """The number of a cell that is one, thousands separated by commas or not."""
    try:
        value = float(shown.replace(",", "")) if ", " not in shown else math.nan
        return value if math.isfinite(value) else None
    except ValueError:
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
