"""The paper's ablations: what each row changes, its published numbers, and a table with measured ones beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field, StrictBool, StrictStr
from pydantic.dataclasses import dataclass

from tespec.comparison.basis import SETTINGS, Basis, bases, recipe_key, recipe_of
from tespec.comparison.identity import TEST, canonical
from tespec.comparison.published import PAPER, Amount, judged_on, published
from tespec.comparison.records import Record, code_of
from tespec.comparison.rows import made_from, network_of
from tespec.comparison.side_by_side import BOLD, MARKS, difference_cell, measured_cell, split_title
from tespec.comparison.table import Cell, Column, Group, Row, Table, undecided, with_best_bold
from tespec.core.config import as_facts, objective_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS

METRICS = {"miou": "mIoU ↑", "mean_class_acc": "mAcc ↑"}
DECIMALS = 3
# The method that is ablated, and the profile of its published numbers.
METHOD, PROFILE = "tespec", "paper"
BACKBONE = "Swin-T/7"


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

    name: StrictStr
    paper: tuple[Amount | None, Amount | None] = (None, None)
    set: dict[StrictStr, Any] = field(default_factory=dict)
    scale: dict[StrictStr, Amount] = field(default_factory=dict)
    default: StrictBool = False

    def settings(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What it changes of a recipe whose resolved settings are `facts`: new values by dotted names.

        Raises:
            KeyError: there is no such setting, as when the objective is another one.
        """
        return self.set | {key: _scaled(_at(facts, key), factor) for key, factor in self.scale.items()}

    def changes(self, facts: Mapping[str, Any]) -> list[str]:
        """The same as `KEY=VALUE` texts."""
        return [f"{key}={_text(value)}" for key, value in self.settings(facts).items()]


@dataclass(frozen=True)
class Ablation:
    """One table: its title, its label in the paper's source, what varies, and the task it is measured on."""

    name: StrictStr
    title: StrictStr
    label: StrictStr
    variable: StrictStr
    task: StrictStr
    rows: Annotated[tuple[AblationRow, ...], Field(min_length=1)]

    @property
    def has_published(self) -> bool:
        """Whether the paper has numbers of it."""
        return any(value is not None for row in self.rows for value in row.paper)

    @property
    def settings(self) -> tuple[str, ...]:
        """What its rows change."""
        return tuple(dict.fromkeys(key for row in self.rows for key in (*row.set, *row.scale)))


def ablations() -> dict[str, Ablation]:
    """All of the paper's ablations by name, and those of this project behind them."""
    found: dict[str, Ablation] = {}
    for path in (PAPER / "ablations.yaml", CONFIGS / "ablations.yaml"):
        with published(path) as content:
            found |= {name: Ablation(name=name, **facts) for name, facts in content.items()}
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


def _at(facts: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted name.

    Raises:
        KeyError: there is none.
    """
    value: Any = facts
    for part in key.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(key)
        value = value[part]
    return value


def _put(facts: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The settings with another value at a place that they have."""
    old = facts[path[0]]
    if path[1:]:
        return {**facts, path[0]: _put(old, path[1:], value)}
    return {**facts, path[0]: float(value) if isinstance(old, float) else value}


def _scaled(value: float, factor: float) -> float:
    return round(value * factor) if isinstance(value, int) else value * factor


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Measured(NamedTuple):
    """Records of an ablation on one basis: by the row's name, one for each seed."""

    basis: Basis
    arch: str
    rows: dict[str, list[Record]]


def measured_rows(ablation: Ablation, records: Sequence[Record]) -> list[Measured]:
    """What was measured of an ablation, by architecture, data and profile, the newest first; two rows at least.

    Where they were not measured on its own task, another one of the same table stands in.
    Rows are changes to a default pre-training. Which one that is follows from the records: the one from which most
    other rows are changed, of this ablation and then of all; the newest of them where there are several.
    """
    made_here = [
        record
        for record in records
        if (record["kind"], record["method_name"]) == ("evaluation", METHOD) and recipe_of(record) is not None
    ]
    tasks = judged_on(ablation.task, {record["task"] for record in made_here})
    of_tasks = (_measured_on(ablation, [each for each in made_here if each["task"] == task]) for task in tasks)
    return next(filter(None, of_tasks), [])


def _measured_on(ablation: Ablation, records: Sequence[Record]) -> list[Measured]:
    """What was measured of an ablation by evaluations of one task."""
    found = []
    by_recipe = {record["name"]: recipe_key(record) for record in records}
    for arch in ("recurrent", "feedforward"):
        # Records of one seed and basis differ in what their weights were made by: a basis for each of them.
        for members in _alike([record for record in records if record["arch"] == arch]):
            recipes = {record["name"]: recipe_of(record) or {} for record in members}
            best = _most_rows(ablation, recipes, members, by_recipe)
            if best:
                used = [record for each in best.values() for record in each]
                found.append(Measured(bases(used)[0], arch, best))
    return found


def pretrained_rows(ablation: Ablation, records: Sequence[Record]) -> dict[str, list[Record]]:
    """Pre-trainings of an ablation's rows, one for each seed, by the row's name; see `measured_rows`.

    They are of the same data, profile and code: those that have the most rows, the newest where several have as many.
    """
    made = [record for record in records if (record["kind"], record["method_name"]) == ("pretraining", METHOD)]
    alike: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(made, key=lambda record: record["written"]):
        alike[canonical([record["data_fingerprint"], record["profile"], code_of(record)])].append(record)
    rows = [_pretrained_rows(ablation, members) for members in alike.values()]
    return max(reversed(rows), key=len, default={})


def _pretrained_rows(ablation: Ablation, made: Sequence[Record]) -> dict[str, list[Record]]:
    """Those of the same data, profile and code."""
    # The same settings as in the weights that it wrote.
    recipes = {
        record["name"]: {name: record["config"][name] for name in SETTINGS if name in record["config"]}
        for record in made
    }
    return _most_rows(ablation, recipes, made, {name: canonical(recipe) for name, recipe in recipes.items()})


def _most_rows(
    ablation: Ablation,
    recipes: Mapping[str, Mapping[str, Any]],
    records: Sequence[Record],
    by_recipe: Mapping[str, str],
) -> dict[str, list[Record]]:
    """Records of each row, of the default with the most rows; two at least, or none.

    A change of the objective leaves nothing of the old one's settings, so that every row of another ablation would do
    as the default of that one; but other ablations have the fewer rows the further it is from theirs.

    Args:
        ablation: whose rows are wanted.
        recipes: settings of each record's pre-training, by the record's name.
        records: of one data, fine-tuning and architecture.
        by_recipe: the same settings as texts.
    """
    newest = {by_recipe[record["name"]]: record for record in sorted(records, key=lambda record: record["written"])}
    every = list(ablations().values())
    best: dict[str, list[Record]] = {}
    best_order = (2, 0, "")
    for record in newest.values():
        rows = _rows_from(ablation, recipes[record["name"]], records, by_recipe) or {}
        if len(rows) < best_order[0]:
            continue
        others = (_rows_from(each, recipes[record["name"]], records, by_recipe) for each in every)
        order = (len(rows), sum(len(found or ()) for found in others), record["written"])
        if order >= best_order:
            best, best_order = rows, order
    return best


def _alike(records: Sequence[Record]) -> list[list[Record]]:
    """Records of the same data, profile and fine-tuning; those with the newest record first."""
    shared: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        key = [record[name] for name in ("task", "data", "data_fingerprint", "profile", "config", "protocol", "split")]
        shared[canonical([*key, code_of(record)])].append(record)
    return sorted(shared.values(), key=lambda members: max(each["written"] for each in members), reverse=True)


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
    for key, value in row.settings(default).items():
        if key == "objective":
            facts[key] = objective_facts(str(value), str(default["profile"]))
        else:
            facts = _put(facts, key.split("."), value)
    return facts


def used_values(ablation: Ablation, measured: Measured) -> dict[str, str]:
    """By the name of a row, the values of what its table varies that it was measured with, where the paper's differ."""
    papers = as_facts(pretraining_settings(METHOD, PROFILE))
    found: dict[str, str] = {}
    for row in ablation.rows:
        recipe = recipe_of(measured.rows[row.name][0]) if row.name in measured.rows else None
        if recipe is None:
            continue
        published = changed(row, papers)
        pairs = ((_at(recipe, key), _at(published, key)) for key in ablation.settings if _has_value(recipe, key))
        values = [_shown(ours) for ours, theirs in pairs if ours != theirs]
        if values:
            found[row.name] = ", ".join(values)
    return found


def _has_value(facts: Mapping[str, Any], key: str) -> bool:
    """Whether there is a setting of a dotted name that is no group of settings."""
    try:
        return not isinstance(_at(facts, key), Mapping)
    except KeyError:
        return False


def _shown(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,.10g}" if is_number else str(value)


def measured_table(ablation: Ablation, measured: Measured | None) -> Table:
    """The paper's numbers, where it has any, with what was measured of each row: mean, deviation and difference.

    Numbers of other data than the paper's, or of another split, have no difference. A row that was measured with
    another value than the paper's says so.
    """
    basis = measured.basis if measured else None
    compared = (
        basis is not None
        and (basis.task, basis.split, basis.profile) == (ablation.task, TEST, PROFILE)
        and basis.data != "sample"
    )
    sources = [source for source, there in (
        ("paper", ablation.has_published),
        ("measured", basis is not None),
        ("difference", compared),
    ) if there]  # fmt: skip
    columns = [Column((ablation.variable,), ablation.variable, number=False)]
    for metric, title in METRICS.items():
        for source in sources:
            facts = {"task": ablation.task, "source": source, "metric": metric, "unit": "%", "split": TEST}
            if basis and source != "paper":
                facts |= {"task": basis.task, "data": basis.data, "profile": basis.profile, "split": basis.split}
            better = "higher" if source != "difference" else ""
            columns.append(Column((title, source), f"{metric} {source}", better, facts=facts))
    used = used_values(ablation, measured) if measured else {}
    rows = [_row(row, sources, measured.rows.get(row.name, ()) if measured else (), used.get(row.name, ""))
            for row in ablation.rows]  # fmt: skip
    groups = with_best_bold([Group("", tuple(rows))], columns)
    silent = [column.headers[0].rstrip(" ↑") for index, column in enumerate(columns) if undecided(groups, index)]
    notes = [*([BOLD] if measured else ()), *(_notes(measured) if measured else ())]
    if basis and basis.task != ablation.task:
        notes.append(f"Measured on {basis.task.upper()}, which stands in for {ablation.task.upper()}.")
    if silent:
        notes.append(f"Nothing can be told apart in {', '.join(silent)}.")
    title = f"Ablation: {ablation.title} ({ablation.task.upper()})"
    return Table(title, tuple(columns), groups, MARKS, tuple(notes), f"ablation_{ablation.name}")


def _row(row: AblationRow, sources: Sequence[str], records: Sequence[Record], used: str) -> Row:
    said = (["default"] if row.default else []) + ([f"measured with {used}"] if used else [])
    cells = [Cell(row.name + (f" ({', '.join(said)})" if said else ""))]
    made = {"backbone": network_of(records[0]), "pretraining": made_from(records[0])} if records else {}
    for metric, paper in zip(METRICS, row.paper, strict=True):
        # The paper sets the row of its default in bold.
        published = Cell() if paper is None else Cell(f"{paper:.{DECIMALS}f}", paper, bold=row.default)
        ours = replace(measured_cell([each["metrics"].get(metric) for each in records], records, DECIMALS), facts=made)
        shown = {"paper": published, "measured": ours, "difference": difference_cell(ours, paper, DECIMALS)}
        cells += [shown[source] for source in sources]
    facts = {"method": METHOD, "title": cells[0].text, "arch": records[0]["arch"] if records else "recurrent"}
    facts |= {"backbone": BACKBONE, "pretraining": str(row.set.get("dataset", "1mpx"))}
    return Row(tuple(cells), facts=facts)


def _notes(measured: Measured) -> list[str]:
    """What was measured, and with which seeds."""
    basis = measured.basis
    seeds = sorted({record["seed"] for records in measured.rows.values() for record in records})
    networks = ", ".join(sorted({network_of(record) for records in measured.rows.values() for record in records}))
    first = basis.records[0]
    data = f"data {basis.data} ({first['data_fingerprint']})"
    words = [f"{measured.arch} {networks}", data, f"profile {basis.profile}", f"code {first['code']}"]
    words += [f"{split_title(basis.split)} split"] if basis.split != TEST else []
    counted = f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"
    notes = [f"Measured: {', '.join([*words, counted])}."]
    if basis.data == "sample":
        notes.append("The sample world is small and synthetic: such numbers compare rows, not with the paper's.")
    uneven = [name for name, records in measured.rows.items() if len(records) < len(seeds)]
    if uneven:
        notes.append(f"Fewer seeds: {', '.join(uneven)}.")
    return notes
