"""The paper's ablations: what each row changes, its published numbers, and a table with measured ones beside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tespec.comparison.basis import Basis, average, bases, recipe_key, recipe_of
from tespec.comparison.identity import canonical
from tespec.comparison.published import PAPER, number, published, text
from tespec.comparison.records import Record
from tespec.comparison.side_by_side import measured_cell
from tespec.comparison.table import Cell, Column, Group, Row, Table, with_best_bold, without_empty
from tespec.core.config import as_facts, objective_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS

METRICS = {"miou": "mIoU ↑", "mean_class_acc": "mAcc ↑"}
DECIMALS = 3
# The method that is ablated, and the profile of its published numbers.
METHOD, PROFILE = "tespec", "paper"


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


@dataclass(frozen=True)
class Measured:
    """Records of an ablation on one basis: by the row's name, one for each seed."""

    basis: Basis
    arch: str
    rows: dict[str, list[Record]]


def measured_rows(ablation: Ablation, records: Sequence[Record]) -> list[Measured]:
    """What was measured of an ablation, by data, profile and architecture; two rows at least.

    Rows are changes to a default pre-training. Which one that is follows from the records: the one from which most
    other rows are changed, the newest of them where there are several.
    """
    candidates = [
        record
        for record in records
        if (record["kind"], record["method_name"], record["task"]) == ("evaluation", METHOD, ablation.task)
        and recipe_of(record) is not None
    ]
    found = []
    by_recipe = {record["name"]: recipe_key(record) for record in candidates}
    for arch in ("recurrent", "feedforward"):
        # Records of one seed and basis differ in what their weights were made by: a basis for each of them.
        of_arch = [record for record in candidates if record["arch"] == arch]
        for members in _alike(of_arch):
            best: dict[str, list[Record]] = {}
            for record in sorted(members, key=lambda record: record["written"]):
                rows = _rows_from(ablation, recipe_of(record) or {}, members, by_recipe)
                if rows is not None and len(rows) >= max(2, len(best)):
                    best = rows
            if best:
                used = [record for each in best.values() for record in each]
                found.append(Measured(bases(used)[0], arch, best))
    return found


def _alike(records: Sequence[Record]) -> list[list[Record]]:
    """Records of the same data, profile and fine-tuning."""
    shared: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        key = [record[name] for name in ("task", "data", "data_fingerprint", "profile", "config", "protocol", "code")]
        shared[canonical(key)].append(record)
    return list(shared.values())


def _rows_from(
    ablation: Ablation, default: Mapping[str, Any], records: Sequence[Record], by_recipe: Mapping[str, str]
) -> dict[str, list[Record]] | None:
    """Records of each row if `default` is the unchanged pre-training; None where a row cannot be made from it."""
    try:
        wanted = [canonical(changed(row, default)) for row in ablation.rows]
    except (KeyError, TypeError):
        return None
    # From a default that is a row's change itself, two rows would be one.
    if len(set(wanted)) < len(wanted):
        return None
    rows: dict[str, list[Record]] = {}
    in_order = sorted(records, key=lambda record: record["written"])
    for row, recipe in zip(ablation.rows, wanted, strict=True):
        newest = {record["seed"]: record for record in in_order if by_recipe[record["name"]] == recipe}
        if newest:
            rows[row.name] = [newest[seed] for seed in sorted(newest)]
    return rows


def changed(row: AblationRow, default: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a row's pre-training.

    Raises:
        KeyError: the default has no such setting, as when its objective is another one.
    """
    facts = dict(default)
    changes: dict[str, Any] = dict(row.set)
    if "objective" in changes:
        facts["objective"] = objective_facts(str(changes.pop("objective")), str(default["profile"]))
    for key, value in changes.items():
        facts = _with(facts, key.split("."), lambda old, new=value: type(old)(new) if isinstance(old, float) else new)
    for key, factor in row.scale.items():
        facts = _with(
            facts, key.split("."), lambda old, by=factor: round(old * by) if isinstance(old, int) else old * by
        )
    return facts


def _with(facts: Mapping[str, Any], path: Sequence[str], change: Any) -> dict[str, Any]:
    inner = facts[path[0]]
    return {**facts, path[0]: _with(inner, path[1:], change) if path[1:] else change(inner)}


def used_values(ablation: Ablation, measured: Measured) -> dict[str, str]:
    """By the name of a row, the values of what its table varies that it was measured with, where the paper's differ."""
    papers = as_facts(pretraining_settings(METHOD, PROFILE))
    found: dict[str, str] = {}
    for row in ablation.rows:
        recipe = recipe_of(measured.rows[row.name][0]) if row.name in measured.rows else None
        if recipe is None:
            continue
        published = changed(row, papers)
        pairs = ((_value(recipe, key), _value(published, key)) for key in ablation.settings)
        values = [_number(ours) for ours, theirs in pairs if ours is not None and ours != theirs]
        if values:
            found[row.name] = ", ".join(values)
    return found


def _value(facts: Mapping[str, Any], key: str) -> Any:
    """The setting of a dotted name; None where there is none, or a whole group."""
    value: Any = facts
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if isinstance(value, Mapping) else value


def _number(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,.10g}" if is_number else str(value)


def measured_table(ablation: Ablation, measured: Measured | None) -> Table:
    """The ablation with what was measured of it; the paper's numbers alone where nothing was."""
    if measured is None:
        return without_empty(ablation_table(ablation, {}, compared=False))
    basis = measured.basis
    seeds = sorted({record["seed"] for records in measured.rows.values() for record in records})
    word = "seeds" if len(seeds) > 1 else "seed"
    notes = [
        f"Measured: {measured.arch}, data {basis.data}, profile {basis.profile}, {word} {', '.join(map(str, seeds))}."
    ]
    if basis.data == "sample":
        notes.append("The sample world is small and synthetic: such numbers compare rows, not with the paper's.")
    uneven = [name for name, records in measured.rows.items() if len(records) < len(seeds)]
    if uneven:
        notes.append(f"Fewer seeds: {', '.join(uneven)}.")
    used = used_values(ablation, measured)
    return ablation_table(ablation, measured.rows, notes, compared=basis.data != "sample", used=used)
