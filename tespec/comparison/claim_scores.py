"""The scores that claims are about: from records, and from the paper's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tespec.comparison.ablations import METRICS, AblationRow, read_ablation
from tespec.comparison.basis import Basis, bases, metric
from tespec.comparison.claims import Scores
from tespec.comparison.effects import PRIMARY
from tespec.comparison.recipes import agrees, recipe_of
from tespec.comparison.records import Record
from tespec.comparison.references import Reference, read_reference
from tespec.config import as_facts, pretraining_settings
from tespec.errors import UserError

ABLATED = "tespec"


def measured_scores(records: Sequence[Record]) -> Scores:
    """Scores by seed of evaluations; of a task, only those on the basis with the newest record."""
    chosen = newest_bases(records)

    def scores(cell: str, task: str) -> Mapping[int, float]:
        if task not in chosen:
            return {}
        method, arch, row = parsed(cell)
        name, better = primary(task)
        found: dict[int, float] = {}
        for record in sorted((*chosen[task].records, *chosen[task].variants), key=lambda each: each["written"]):
            value = metric(record, name)
            fits = (record["method_name"], record["arch"]) == (method, arch) and _is_of_row(record, row)
            if fits and value is not None:
                found[record["seed"]] = _gain(value, better)
        return found

    return scores


def newest_bases(records: Sequence[Record]) -> dict[str, Basis]:
    """The basis of each task that holds its newest evaluation."""
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    found = sorted(bases(evaluations), key=lambda basis: max(record["written"] for record in basis.records))
    return {basis.task: basis for basis in found}


def published_scores() -> Scores:
    """The paper's scores, each a single number under seed 0."""

    def scores(cell: str, task: str) -> Mapping[int, float]:
        method, arch, row = parsed(cell)
        if row is not None:
            value = row.paper[list(METRICS).index("miou")]
        else:
            value = _published(table_of(task), method, arch == "recurrent", task)
        return {} if value is None else {0: _gain(value, primary(task)[1])}

    return scores


def _gain(value: float, better: str) -> float:
    """A score of which more is better."""
    return value if better == "higher" else -value


@cache
def parsed(cell: str) -> tuple[str, str, AblationRow | None]:
    """Method, architecture and row of an ablation of a cell as configs/claims.yaml writes it.

    Raises:
        UserError: there is no such cell.
    """
    table, colon, name = cell.partition(": ")
    if colon:
        row = next((row for row in read_ablation(table).rows if row.name == name), None)
        if row is None:
            raise UserError(f"claims, {cell}", "no such row", "see results/paper/ablations.yaml")
        return ABLATED, "recurrent", row
    method, slash, arch = cell.partition("/")
    if not slash or arch not in ("recurrent", "feedforward"):
        raise UserError(f"claims, {cell}", "is not METHOD/ARCHITECTURE", "mend configs/claims.yaml")
    return method, arch, None


@cache
def primary(task: str) -> tuple[str, str]:
    """Metric that a task is judged by, and whether the higher or the lower number is better."""
    reference = read_reference(table_of(task))
    each = next(each for each in reference.metrics if each.name == PRIMARY[table_of(task)])
    return each.name, each.better


@cache
def table_of(task: str) -> str:
    """Name of the table that a task stands in.

    Raises:
        UserError: it stands in none.
    """
    for name in PRIMARY:
        if task in {each.name for each in read_reference(name).tasks}:
            return name
    raise UserError(f"claims, task {task}", "stands in no table", "mend configs/claims.yaml")


def _is_of_row(record: Record, row: AblationRow | None) -> bool:
    """Whether a record's weights come from the recipe of its method, changed as a row of an ablation says."""
    found = recipe_of(record)
    if found is None:
        return row is None
    default = _recipe(str(found["name"]), record["profile"])
    if default is None:
        return False
    changes = tuple(row.changes(default)) if row is not None else ()
    wanted = _recipe(str(found["name"]), record["profile"], changes)
    return wanted is not None and agrees(found, wanted)


@cache
def _recipe(name: str, profile: str, changes: tuple[str, ...] = ()) -> dict[str, Any] | None:
    try:
        return as_facts(pretraining_settings(name, profile, changes))
    except UserError:
        return None


@cache
def _published(table: str, method: str, recurrent: bool, task: str) -> float | None:
    """A published number; that without test-time augmentation where there are two."""
    reference: Reference = read_reference(table)
    rows = [row for row in reference.rows if (row.method, row.recurrent) == (method, recurrent)]
    for row in sorted(rows, key=lambda row: row.test_time_augmentation):
        value = row.scores.get((task, PRIMARY[table]))
        if value is not None:
            return value
    return None
