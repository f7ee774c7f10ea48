"""The paper's ablations: what each row changes, its published numbers, and a table with measured ones beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tespec.comparison.basis import average
from tespec.comparison.records import Record
from tespec.comparison.references import PAPER, number, published, text
from tespec.comparison.side_by_side import measured_cell
from tespec.comparison.table import Cell, Column, Group, Row, Table, with_best_bold
from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS

METRICS = {"miou": "mIoU ↑", "mean_class_acc": "mAcc ↑"}
DECIMALS = 3


@dataclass(frozen=True)
class AblationRow:
    """One row.

    Attributes:
        name: as in the paper's table.
        paper: published mIoU and mAcc in percent; None: not published.
        set: settings that differ from the default pre-training.
        scale: factors of settings, relative to those of the profile.
        default: whether it is the default pre-training.
    """

    name: str
    paper: tuple[float | None, ...] = (None,) * len(METRICS)
    set: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    default: bool = False

    def changes(self, facts: Mapping[str, Any]) -> list[str]:
        """`KEY=VALUE` changes to a recipe whose resolved settings are `facts`."""
        plain = [f"{key}={_text(value)}" for key, value in self.set.items()]
        return plain + [f"{key}={_text(_scaled(_at(facts, key), factor))}" for key, factor in self.scale.items()]


@dataclass(frozen=True)
class Ablation:
    """One table: its title, its label in the paper's source, what varies, and the task it is measured on."""

    name: str
    title: str
    label: str
    variable: str
    task: str
    rows: tuple[AblationRow, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        """What its rows change."""
        return tuple(dict.fromkeys(key for row in self.rows for key in (*row.set, *row.scale)))


def ablations() -> dict[str, Ablation]:
    """All of the paper's ablations by name, and those of this project behind them."""
    found: dict[str, Ablation] = {}
    for path in (PAPER / "ablations.yaml", CONFIGS / "ablations.yaml"):
        with published(path) as content:
            found |= {text(name): _ablation(name, facts) for name, facts in content.items()}
    return found


def read_ablation(name: str) -> Ablation:
    """One of them.

    Raises:
        UserError: there is none of that name.
    """
    known = ablations()
    if name not in known:
        raise UserError(f"ablation {name}", "no such table", f"choose from {', '.join(known)}")
    return known[name]


def ablation_table(
    ablation: Ablation,
    measured: Mapping[str, Sequence[Record]],
    notes: Sequence[str] = (),
    compared: bool = True,
    used: Mapping[str, str] | None = None,
) -> Table:
    """The paper's numbers and, where there are records of a row, their mean, deviation and difference from the paper.

    Args:
        ablation: the table.
        measured: records by the row's name, one for each seed.
        notes: what stands below.
        compared: False leaves the difference out, where data are not the paper's.
        used: by the row's name, the value it was measured with where that is not the paper's.
    """
    sources = ("paper", "measured", "difference") if compared else ("paper", "measured")
    columns = [Column((ablation.variable,), ablation.variable, number=False)]
    for metric, title in METRICS.items():
        for source in sources:
            facts = {"task": ablation.task, "source": source, "metric": metric}
            better = "higher" if source != "difference" else ""
            columns.append(Column((title, source), f"{metric} {source}", better, facts=facts))
    rows = [_row(row, measured.get(row.name, ()), compared, (used or {}).get(row.name)) for row in ablation.rows]
    chosen = [index for index, column in enumerate(columns) if column.better]
    groups = with_best_bold([Group("", tuple(rows))], columns, chosen)
    return Table(f"Ablation: {ablation.title} ({ablation.task.upper()})", tuple(columns), groups, notes=tuple(notes))


def _row(row: AblationRow, records: Sequence[Record], compared: bool, used: str | None) -> Row:
    said = (["default"] if row.default else []) + ([f"measured with {used}"] if used else [])
    cells = [Cell(row.name + (f" ({', '.join(said)})" if said else ""))]
    for metric, paper in zip(METRICS, row.paper, strict=True):
        values = [record["metrics"][metric] for record in records]
        cells.append(Cell() if paper is None else Cell(f"{paper:.{DECIMALS}f}", paper))
        if not values:
            cells += [Cell(), Cell()] if compared else [Cell()]
            continue
        cells.append(measured_cell(average(values), records, DECIMALS))
        if compared and paper is None:
            cells.append(Cell())
        elif compared and paper is not None:
            difference = sum(values) / len(values) - paper
            cells.append(Cell(f"{difference:+.{DECIMALS}f}", difference))
    return Row(tuple(cells), facts={"method": "tespec", "title": row.name})


def _ablation(name: str, facts: Mapping[str, Any]) -> Ablation:
    rows = tuple(_ablation_row(row) for row in facts["rows"])
    if not rows:
        raise ValueError("no rows")
    title, label, variable, task = (text(facts[key]) for key in ("title", "label", "variable", "task"))
    return Ablation(name, title, label, variable, task, rows)


def _ablation_row(facts: Mapping[str, Any]) -> AblationRow:
    published_numbers = {"paper": tuple(number(each) for each in facts["paper"])} if "paper" in facts else {}
    row = AblationRow(**(dict(facts) | published_numbers))
    text(row.name)
    if len(row.paper) != len(METRICS) or not isinstance(row.set, dict) or not isinstance(row.scale, dict):
        raise ValueError(f"{row.name}: not {len(METRICS)} numbers, or changes without names")
    for key, factor in row.scale.items():
        text(key), number(factor)
    for key in row.set:
        text(key)
    return row


def _at(facts: Mapping[str, Any], key: str) -> float:
    value: Any = facts
    for part in key.split("."):
        value = value[part]
    return float(value) if isinstance(value, float) else int(value)


def _scaled(value: float, factor: float) -> float:
    return round(value * factor) if isinstance(value, int) else value * factor


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
