"""Published numbers, read from `results/paper/`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from tespec.paths import REPOSITORY

PAPER = REPOSITORY / "results" / "paper"


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
    """The published table `results/paper/<name>.yaml`."""
    content = yaml.safe_load((PAPER / f"{name}.yaml").read_text(encoding="utf-8"))
    metrics = tuple(Named(**metric) for metric in content["metrics"])
    groups = tuple(
        PublishedGroup(group["heading"] or "", tuple(_row(row, metrics) for row in group["rows"]))
        for group in content["groups"]
    )
    tasks = tuple(Named(**task) for task in content["tasks"])
    return Reference(content["title"], content["decimals"], tasks, metrics, groups, content["marks"])


def _row(facts: dict[str, Any], metrics: tuple[Named, ...]) -> Published:
    scores = {
        (task, metric.name): value
        for task, values in facts["scores"].items()
        for metric, value in zip(metrics, values, strict=True)
    }
    bold = frozenset((task, metric) for task, names in facts.get("bold", {}).items() for metric in names)
    return Published(**(facts | {"scores": scores, "bold": bold}))
