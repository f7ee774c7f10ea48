"""What records say of the cells of comparisons: the evidence by which claims and controls are decided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from tespec.comparison.basis import (
    BESIDE_SCORES,
    LABELS_LEARNED,
    OF_THE_NETWORK,
    Basis,
    agrees,
    bases,
    is_older,
    learns_all,
    metric,
    recipe_of,
    row_key,
    weights_key,
)
from tespec.comparison.contrasts import CellOf, Evidence, Part, parsed
from tespec.comparison.identity import canonical
from tespec.comparison.published import TABLES, Named, Scheme, scheme_of, table_of
from tespec.comparison.records import Record, code_of
from tespec.comparison.statistics import fit
from tespec.comparison.table import Cell
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.scores import without_state

# What a protocol says of the network and its training, and not of the rule that its scores follow.
OF_WHAT_IS_SCORED = (*OF_THE_NETWORK["protocol"], *LABELS_LEARNED["protocol"], *BESIDE_SCORES, "input")
STANDING = "standing"  # frames: those in which the camera stands


def of_split(records: Sequence[Record], split: str) -> list[Record]:
    """Records of one split."""
    return [record for record in records if record["split"] == split]


def newest_bases(records: Sequence[Record]) -> dict[str, Basis]:
    """The basis of each task that holds its newest evaluation; of those that learn from all labels, where any do."""
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    whole = {record["task"] for record in evaluations if learns_all(record)}
    evaluations = [each for each in evaluations if each["task"] not in whole or learns_all(each)]
    return {basis.task: basis for basis in bases_by_age(evaluations)}


def bases_by_age(records: Sequence[Record]) -> list[Basis]:
    """All bases, that with the newest record last."""
    return sorted(bases(records), key=lambda basis: max(record["written"] for record in basis.records))


def evidence_of(basis: Basis, records: Sequence[Record], cells: Sequence[str], *, by_recipe: bool = True) -> Evidence:
    """What a basis says of the cells of comparisons; all of its cells, ablations included, say how much scores vary.

    Args:
        basis: of a task.
        records: any records; the floor is found among them.
        cells: as `parsed` reads them.
        by_recipe: a cell's weights have to come from the unchanged recipe of its method, or from that of the row of an
            ablation; else a method is what stands in its row of the tables.
    """
    scheme = scheme_of(basis.task, basis.records)
    sign = sign_of(scheme.main)
    scores: dict[str, dict[int, float]] = {}
    newest: dict[str, Record] = {}
    every = (*basis.records, *basis.variants, *basis.superseded)
    for record in sorted(every, key=lambda record: (record["written"], record["name"])):
        value = metric(record, scheme.main.name)
        if value is not None:
            name = canonical([*row_key(record), weights_key(record)])
            scores.setdefault(name, {})[record["seed"]] = sign * value
            newest.pop(name, None)
            newest[name] = record
    older = Counter(row_key(record) for record in newest.values() if is_older(record))
    unclear = frozenset(key[:2] for key, count in older.items() if count > 1)
    rows = {record["name"] for record in basis.records}
    found = {
        cell: name  # of several backbones, or weights, the newest, which stand last
        for cell in cells
        for name, record in newest.items()
        if (_is(record, parsed(cell)) if by_recipe else record["name"] in rows and _is_named(record, parsed(cell)))
        and not (is_older(record) and row_key(record)[:2] in unclear)
    }
    floor = floor_of(basis, records, scheme)
    fitted = fit(scores, {name: record["arch"] for name, record in newest.items()})
    return Evidence(fitted, found, floor, sign, scheme.decimals, unclear)


def sign_of(main: Named) -> float:
    """What makes a number of a metric a gain: -1 for an error."""
    return -1.0 if main.better == "lower" else 1.0


def with_and_without_state(runs: Sequence[Record], scheme: Scheme) -> tuple[str, dict[int, tuple[float, float]]]:
    """Scores of networks by seed, as gains: with the state carried, and with it zeroed at each label.

    Args:
        runs: of one cell.
        scheme: of their metric.

    Returns:
        The group of frames that is scored: standing ones, "" for all where data does not say which stand; and the
        scores of those that have both.
    """
    sign, main = sign_of(scheme.main), scheme.main.name
    group = STANDING if any(STANDING in run["groups"] for run in runs) else ""
    pairs = {run["seed"]: (metric(run, main, group), metric(run, main, without_state(group))) for run in runs}
    return group, {
        seed: (sign * carried, sign * zeroed)
        for seed, (carried, zeroed) in pairs.items()
        if carried is not None and zeroed is not None
    }


def floor_of(basis: Basis, records: Sequence[Record], scheme: Scheme, group: str = "") -> float | None:
    """The floor in `Evidence`, of all frames or of a group: the prior is known for the kinds of tasks of the paper."""
    first = basis.records[0]
    if not table_of(basis.task) and first["config"].get("kind") not in TABLES:
        return -math.inf
    prior = matching_prior(first, records)
    value = None if prior is None else metric(prior, scheme.main.name, group)
    return None if value is None else sign_of(scheme.main) * value


def matching_prior(record: Record, records: Sequence[Record]) -> Record | None:
    """The newest label prior of all labels that was scored as a record: same data, split, profile, code and rules."""
    priors = [
        each
        for each in records
        if (each["kind"], each["method_name"]) == ("reference", "prior")
        and learns_all(each)
        and _scored_by(each) == _scored_by(record)
    ]
    return max(priors, key=lambda each: each["written"], default=None)


def _scored_by(record: Record) -> str:
    """Equal for records whose scores mean the same."""
    names = ("task", "data", "data_fingerprint", "profile", "split")
    rules = {key: value for key, value in record["protocol"].items() if key not in OF_WHAT_IS_SCORED}
    head = record["config"].get("head")  # holds which of its outputs are scored
    return canonical([*(dict(record)[name] for name in names), code_of(record), rules, head])


def _is_named(record: Record, wanted: CellOf) -> bool:
    method, arch, backbone = row_key(record)
    return (method, arch) == wanted.of and wanted.backbone in ("", backbone)


def _is(record: Record, wanted: CellOf) -> bool:
    """Whether its weights come from the recipe of a cell's method, changed as a row of an ablation says."""
    if not _is_named(record, wanted):
        return False
    found = recipe_of(record)
    if found is None:
        return wanted.row is None
    default = _recipe(str(found["name"]), record["profile"])
    if default is None:
        return False
    changes = tuple(wanted.row.changes(default)) if wanted.row is not None else ()
    recipe = _recipe(str(found["name"]), record["profile"], changes)
    return recipe is not None and agrees(found, recipe)


@cache
def _recipe(name: str, profile: str, changes: tuple[str, ...] = ()) -> dict[str, Any] | None:
    try:
        return as_facts(pretraining_settings(name, profile, changes))
    except UserError:
        return None


def effect_cells(part: Part, decimals: int, measured: bool) -> tuple[Cell, Cell]:
    """The effect of a comparison and its 95 % interval; `measured`: whether anything was, where there is no effect."""
    if part.estimate is None:
        return Cell(runs=0 if measured else None), Cell()
    interval, effect = part.estimate.interval(), part.estimate.effect
    shown = signed(effect, decimals)
    if interval is None:
        return Cell(shown, effect, runs=part.seeds), Cell()
    ends = f"[{signed(interval.low, decimals)}, {signed(interval.high, decimals)}]"
    return Cell(shown, effect, runs=part.seeds, interval=(interval.low, interval.high)), Cell(ends)


def signed(value: float, decimals: int) -> str:
    """A difference with its sign."""
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"  # 0 has no minus


def probability(p: float) -> str:
    """A p-value in three decimals."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
