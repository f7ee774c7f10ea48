"""What the paper claims of the methods, as comparisons: effect and interval on each task, in that task's own metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import Any

import yaml

from tespec.comparison.ablations import METRICS, AblationRow, read_ablation
from tespec.comparison.basis import Basis, agrees, bases, metric, recipe_of
from tespec.comparison.effects import interval_cell
from tespec.comparison.published import Scheme, read_published, table_of
from tespec.comparison.records import Record
from tespec.comparison.statistics import Interval, student_interval, welch_interval
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS
from tespec.core.settings import build

FILE = CONFIGS / "claims.yaml"
RULE = (
    "Effect: difference of the scores in the task's own metric (points of mIoU or mAP, metres of Abs), positive where "
    "the claim is right. Interval: 95 %, Student's t of the differences paired by seed; Welch's where fewer than two "
    "seeds are shared."
)
NO_VERDICT = (
    "No verdicts: a rule that decides each comparison on each task, corrected for the number of claims, is still to be "
    "built."
)


@dataclass(frozen=True)
class Comparison:
    """Cells whose scores are added up, and cells whose scores are taken off."""

    title: str
    more: tuple[str, ...]
    less: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.more, *self.less)


@dataclass(frozen=True)
class Claim:
    """What is claimed, and the comparisons that come out above zero on each task if it is so.

    Attributes:
        name: one word.
        says: in words.
        where: in the paper.
        comparisons: cells held against each other.
        tasks: where they are compared; empty for ablations, whose tables say it.
    """

    name: str
    says: str
    where: str
    comparisons: tuple[Comparison, ...]
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What came out of a comparison on a task.

    Attributes:
        title: of the comparison.
        task: its task.
        effect: in the task's metric, positive where the claim is right; None where a cell has no score.
        interval: None for fewer than two seeds.
        seeds: number of pairs; of the cell with the fewest where they are not paired.
    """

    title: str
    task: str
    effect: float | None
    interval: Interval | None
    seeds: int


# Scores by seed of a cell on a task, the higher the better.
Scores = Callable[[str, str], Mapping[int, float]]


def read_claims() -> tuple[Claim, ...]:
    """All claims of configs/claims.yaml.

    Raises:
        UserError: the file is not as it has to be.
    """
    try:
        content = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(FILE, f"not a readable YAML file ({type(error).__name__})", "restore it") from error
    if not isinstance(content, list) or not all(isinstance(facts, dict) for facts in content):
        raise UserError(FILE, "holds no list of claims", "restore it")
    return tuple(build(Claim, facts, f"claims, {facts.get('name')}") for facts in content)


def tasks_of(claim: Claim, comparison: Comparison) -> tuple[str, ...]:
    """Where a comparison is made."""
    table, colon, _ = comparison.cells[0].partition(": ")
    return (_task_of(table),) if colon else claim.tasks


@cache
def _task_of(ablation: str) -> str:
    return read_ablation(ablation).task


def findings(claim: Claim, scores: Scores) -> list[Finding]:
    """What scores say of each comparison of a claim on each of its tasks."""
    found = []
    for comparison in claim.comparisons:
        for task in tasks_of(claim, comparison):
            cells = [(1.0, scores(cell, task)) for cell in comparison.more]
            cells += [(-1.0, scores(cell, task)) for cell in comparison.less]
            found.append(_finding(comparison.title, task, cells))
    return found


def _paired(cells: Sequence[tuple[float, Mapping[int, float]]]) -> dict[int, float]:
    """The sum of a comparison by seed, for the seeds that all cells have."""
    seeds = set.intersection(*(set(values) for _, values in cells))
    return {seed: sum(sign * values[seed] for sign, values in cells) for seed in sorted(seeds)}


def _finding(title: str, task: str, cells: Sequence[tuple[float, Mapping[int, float]]]) -> Finding:
    if not all(values for _, values in cells):
        return Finding(title, task, None, None, 0)
    paired = list(_paired(cells).values())
    if len(paired) > 1 or all(len(values) == 1 for _, values in cells):
        numbers = paired or [sum(sign * mean(values.values()) for sign, values in cells)]
        return Finding(title, task, mean(numbers), student_interval(numbers), len(numbers))
    effect = sum(sign * mean(values.values()) for sign, values in cells)
    interval = welch_interval([(sign, list(values.values())) for sign, values in cells])
    return Finding(title, task, effect, interval, min(len(values) for _, values in cells))


ABLATED = "tespec"


def measured_scores(records: Sequence[Record]) -> Scores:
    """Scores by seed of evaluations; of a task, only those on the basis with the newest record."""
    chosen = newest_bases(records)

    def scores(cell: str, task: str) -> Mapping[int, float]:
        if task not in chosen:
            return {}
        method, arch, row = parsed(cell)
        main = scheme_in(task).main
        found: dict[int, float] = {}
        for record in sorted((*chosen[task].records, *chosen[task].variants), key=lambda each: each["written"]):
            value = metric(record, main.name)
            fits = (record["method_name"], record["arch"]) == (method, arch) and _is_of_row(record, row)
            if fits and value is not None:
                found[record["seed"]] = _gain(value, main.better)
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
            value = _published(method, arch == "recurrent", task)
        return {} if value is None else {0: _gain(value, scheme_in(task).main.better)}

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
def scheme_in(task: str) -> Scheme:
    """The paper's table that a task of a claim stands in.

    Raises:
        UserError: it stands in none.
    """
    if name := table_of(task):
        return read_published(name)
    raise UserError(f"claims, task {task}", "stands in no table", "mend configs/claims.yaml")


@cache
def _published(method: str, recurrent: bool, task: str) -> float | None:
    """A published number; that without test-time augmentation where there are two."""
    scheme = scheme_in(task)
    rows = [row for row in scheme.rows if (row.method, row.recurrent) == (method, recurrent)]
    for row in sorted(rows, key=lambda row: row.test_time_augmentation):
        value = row.scores.get((task, scheme.main.name))
        if value is not None:
            return value
    return None


PAPER_NOTE = (
    "Paper: the same from its tables, without test-time augmentation where it has both; single numbers, so that they "
    "have no interval."
)


def claims_table(records: Sequence[Record]) -> Table:
    """Effect and interval of each comparison on each task, by claim."""
    measured, published = measured_scores(records), published_scores()
    columns = [Column((title,), title, number=False) for title in ("Comparison", "Task", "Metric")]
    columns += [
        Column(("effect",), "effect", facts={"source": "measured"}),
        Column(("95 % interval",), "interval", number=False),
        Column(("seeds",), "seeds"),
        Column(("paper",), "paper", facts={"source": "paper"}),
    ]
    groups = []
    for claim in read_claims():
        both = zip(findings(claim, measured), findings(claim, published), strict=True)
        groups.append(Group(f"{claim.says} ({claim.where})", tuple(_row(*each) for each in both)))
    notes = (NO_VERDICT, RULE, PAPER_NOTE, *_bases(records))
    return Table("Claims, comparison by comparison", tuple(columns), tuple(groups), notes=notes)


def _row(ours: Finding, theirs: Finding) -> Row:
    scheme = scheme_in(ours.task)
    basis = {"task": ours.task, "metric": scheme.main.name, "title": ours.title}
    labels = Cell(ours.title), Cell(scheme.title_of(ours.task)), Cell(scheme.main.title)
    return Row((*labels, *_cells(ours, theirs, scheme.decimals)), facts=basis)


def _cells(ours: Finding, theirs: Finding, decimals: int) -> list[Cell]:
    published = Cell() if theirs.effect is None else Cell(f"{theirs.effect:+.{decimals}f}", theirs.effect)
    if ours.effect is None:
        return [Cell(), Cell(), Cell(), published]
    interval = ours.interval
    ends = None if interval is None else (interval.low, interval.high)
    return [
        Cell(f"{ours.effect:+.{decimals}f}", ours.effect, runs=ours.seeds, interval=ends),
        interval_cell(interval, decimals),
        Cell(str(ours.seeds), ours.seeds),
        published,
    ]


def _bases(records: Sequence[Record]) -> list[str]:
    """Where each task was measured, a line each."""
    notes = []
    for task, basis in sorted(newest_bases(records).items()):
        first = basis.records[0]
        data = "the sample world" if basis.data == "sample" else basis.data
        seeds = ", ".join(map(str, basis.seeds))
        made_of = f"{data} ({first['data_fingerprint']}), profile {basis.profile}, code {first['code']}"
        notes.append(f"{task}: {made_of}; seeds {seeds}.")
    return notes
