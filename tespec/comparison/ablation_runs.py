"""Which records measure which rows of an ablation: those whose weights were made by a row's pre-training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tespec.comparison.ablations import Ablation, AblationRow, ablation_table
from tespec.comparison.basis import Basis, bases
from tespec.comparison.identity import canonical
from tespec.comparison.recipes import recipe_key, recipe_of
from tespec.comparison.records import Record
from tespec.comparison.table import Table, without_empty
from tespec.core.config import as_facts, objective_facts, pretraining_settings

METHOD, PAPER = "tespec", "paper"  # the method that is ablated, and the profile of its published numbers


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
    papers = as_facts(pretraining_settings(METHOD, PAPER))
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
