"""What the paper claims of the methods, as comparisons: effect and interval on each task, in that task's own metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean

import yaml

from tespec.comparison.ablations import read_ablation
from tespec.comparison.statistics import Interval, student_interval, welch_interval
from tespec.errors import UserError
from tespec.paths import CONFIGS
from tespec.typed import build

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
