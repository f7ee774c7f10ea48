"""What the paper claims of the methods, held against records: effect, interval and verdict, task by task and pooled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean

import yaml

from tespec.comparison.ablations import read_ablation
from tespec.comparison.statistics import HIGHER, LOWER, UNDECIDED, Interval, student_interval, welch_interval
from tespec.errors import UserError
from tespec.paths import CONFIGS
from tespec.typed import build

FILE = CONFIGS / "claims.yaml"
VERDICTS = {HIGHER: "holds", LOWER: "does not hold", UNDECIDED: "undecided"}
RULE = (
    "Effect: points of mIoU or mAP, of depth 100 times the logarithm of Abs, positive where the claim is right. "
    "Interval: 95 %, Student's t of the differences paired by seed; Welch's where fewer than two seeds are shared. "
    "Pooled: the mean over comparisons and tasks of each seed first, then as above. A claim holds where the interval "
    "lies above zero, does not hold where it lies below, and is undecided otherwise or with fewer than two seeds; the "
    "same pooled, and no claim holds while one of its comparisons, pooled over its tasks, does not. "
    "Intervals are not widened for the number of comparisons."
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
    """What is claimed, and what has to come out above zero if it is so.

    Attributes:
        name: one word.
        says: in words.
        where: in the paper.
        comparisons: all have to come out above zero.
        tasks: where they are compared; empty for ablations, whose tables say it.
    """

    name: str
    says: str
    where: str
    comparisons: tuple[Comparison, ...]
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What came out of a comparison on a task, or pooled.

    Attributes:
        title: of the comparison; "all" of a claim's pooled.
        task: its task; "" pooled over tasks.
        effect: in points, None where a cell has no score.
        interval: None for fewer than two seeds.
        seeds: number of pairs; of the cell with the fewest where they are not paired.
    """

    title: str
    task: str
    effect: float | None
    interval: Interval | None
    seeds: int

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return VERDICTS[UNDECIDED if self.interval is None else self.interval.side]


# Scores in points by seed, of a cell on a task.
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


def points(value: float, better: str) -> float:
    """A score as points: percent as they are, of an error the logarithm times -100."""
    return value if better == "higher" else -100.0 * math.log(value)


def tasks_of(claim: Claim, comparison: Comparison) -> tuple[str, ...]:
    """Where a comparison is made."""
    table, colon, _ = comparison.cells[0].partition(": ")
    return (_task_of(table),) if colon else claim.tasks


@cache
def _task_of(ablation: str) -> str:
    return read_ablation(ablation).task


def findings(claim: Claim, scores: Scores) -> list[Finding]:
    """What records say of a claim: each comparison on each task and pooled over its tasks; last, all of them pooled."""
    found: list[Finding] = []
    every: list[dict[int, float]] = []
    for title in dict.fromkeys(comparison.title for comparison in claim.comparisons):
        of_title: list[dict[int, float]] = []
        for comparison in (each for each in claim.comparisons if each.title == title):
            for task in tasks_of(claim, comparison):
                cells = [(1.0, scores(cell, task)) for cell in comparison.more]
                cells += [(-1.0, scores(cell, task)) for cell in comparison.less]
                found.append(_finding(title, task, cells))
                of_title.append(_paired(cells))
        if len(of_title) > 1:
            found.append(_pooled(title, of_title))
        every += of_title
    if len({finding.title for finding in found}) > 1:
        found.append(_pooled("all", every))
    return found


def decide(found: Sequence[Finding]) -> str:
    """The verdict on a claim: that of its last finding, which pools the others, if none of them speaks against it."""
    last = found[-1].verdict
    of_comparisons = {
        finding.title: finding.verdict for finding in found if not finding.task or finding.title not in _pools(found)
    }
    against = VERDICTS[LOWER] in of_comparisons.values()
    return VERDICTS[UNDECIDED] if last == VERDICTS[HIGHER] and against else last


def _pools(found: Sequence[Finding]) -> set[str]:
    return {finding.title for finding in found if not finding.task}


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


def _pooled(title: str, parts: Sequence[Mapping[int, float]]) -> Finding:
    """Over the parts that were measured; over the seeds that all of those have."""
    there = [part for part in parts if part]
    if not there:
        return Finding(title, "", None, None, 0)
    seeds = sorted(set.intersection(*(set(part) for part in there)))
    if not seeds:
        return Finding(title, "", mean(mean(part.values()) for part in there), None, 0)
    numbers = [mean(part[seed] for part in there) for seed in seeds]
    return Finding(title, "", mean(numbers), student_interval(numbers), len(numbers))
