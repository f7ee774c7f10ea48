"""Claims as comparisons of cells, and the rule that decides each of them on each task in that task's own metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tespec.comparison.ablations import AblationRow, read_ablation
from tespec.comparison.published import judged_on, published, table_of
from tespec.comparison.statistics import ALPHA, Estimate, Fit, holm, student_interval
from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS
from tespec.core.settings import build

FILE = CONFIGS / "contrasts.yaml"
HOLDS, CONTRARY, UNDECIDED = VERDICTS = ("holds", "contrary", "undecided")
NOT_MEASURED = "not measured"
ARCHITECTURES = ("recurrent", "feedforward")
ABLATED = "tespec"
MEMORY_UNUSED = "the memory control failed: it is not shown that these recurrent networks use their state"
MEMORY_UNKNOWN = "no memory control was run with networks trained alike"


@dataclass(frozen=True)
class Comparison:
    """Cells whose scores are added up, and as many cells whose scores are taken off; each as `parsed` reads it.

    Raises:
        UserError: there are not as many on both sides.
    """

    title: str
    more: tuple[str, ...]
    less: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.more) == len(self.less):
            raise UserError(f"comparison {self.title!r}", "has not as many cells in less as in more", f"mend {FILE}")

    @property
    def cells(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.more, *self.less)


@dataclass(frozen=True)
class Claim:
    """What is claimed: on a task it holds where each of its comparisons is above 0.

    Attributes:
        name: one word.
        says: in words.
        where: in the paper.
        comparisons: cells held against each other; of an order of several, each step.
        tasks: where they are compared; empty for ablations, whose tables say it.
    """

    name: str
    says: str
    where: str
    comparisons: tuple[Comparison, ...]
    tasks: tuple[str, ...] = ()

    def by_task(self, evidence: Mapping[str, Evidence] | None = None) -> dict[str, list[Comparison]]:
        """Its comparisons on each task.

        Those of an ablation are on its own task. Where none of them was measured there, and one was on another task
        (`judged_on`), all of them are there; but not those that another ablation has there of its own.
        """
        known = evidence or {}
        tables: dict[str, list[Comparison]] = {}
        for comparison in self.comparisons:
            table, colon, _ = comparison.cells[0].partition(": ")
            tables.setdefault(table if colon else "", []).append(comparison)
        found = {task: tables[""] for task in self.tasks if "" in tables}
        ablated = [(_task_of(table), comparisons) for table, comparisons in tables.items() if table]

        def measured(task: str, comparisons: Sequence[Comparison]) -> bool:
            return task in known and any(set(each.cells) <= known[task].cells.keys() for each in comparisons)

        for own, comparisons in sorted(ablated, key=lambda each: not measured(*each)):
            new = {}
            for task in judged_on(own, known):
                there = {_networks(each) for each in found.get(task, [])}
                new[task] = [each for each in comparisons if _networks(each) not in there]
            task = next((task for task, each in new.items() if measured(task, each)), own)
            found[task] = [*found.get(task, []), *new[task]]
        return found


def _networks(comparison: Comparison) -> str:
    """What is compared, whichever table a row of an ablation stands in."""
    cells = [[parsed(cell) for cell in side] for side in (comparison.more, comparison.less)]
    return str(
        [[(each.of, each.backbone, each.row and (each.row.set, each.row.scale)) for each in side] for side in cells]
    )


@cache
def _task_of(ablation: str) -> str:
    return read_ablation(ablation).task


def read_claims() -> tuple[Claim, ...]:
    """All claims of configs/contrasts.yaml.

    Raises:
        UserError: the file is not as it has to be, or names a task or a cell that there is not.
    """
    with published(FILE) as content:
        claims = tuple(build(Claim, facts, f"claim {facts['name']}") for facts in content)
    for claim in claims:
        for task, comparisons in claim.by_task().items():
            if not table_of(task):
                raise UserError(f"claim {claim.name}", f"task {task!r} stands in no table", f"mend {FILE}")
            for cell in (cell for comparison in comparisons for cell in comparison.cells):
                parsed(cell)
    return claims


@dataclass(frozen=True)
class CellOf:
    """A cell of a comparison: method, architecture, backbone ("" for any) and row of an ablation."""

    method: str
    arch: str
    backbone: str = ""
    row: AblationRow | None = None

    @property
    def of(self) -> tuple[str, str]:
        """Method and architecture."""
        return self.method, self.arch


@cache
def parsed(cell: str) -> CellOf:
    """What METHOD/ARCHITECTURE, METHOD/ARCHITECTURE/BACKBONE or TABLE: ROW (of an ablation) names.

    Raises:
        UserError: it is none of them.
    """
    table, colon, name = cell.partition(": ")
    if colon:
        row = next((row for row in read_ablation(table).rows if row.name == name), None)
        if row is None:
            raise UserError(f"cell {cell!r}", "no such row", "see results/paper/ablations.yaml")
        return CellOf(ABLATED, "recurrent", row=row)
    method, _, rest = cell.partition("/")
    arch, _, backbone = rest.partition("/")
    if arch not in ARCHITECTURES:
        raise UserError(f"cell {cell!r}", "is not METHOD/ARCHITECTURE", f"mend {FILE}")
    return CellOf(method, arch, backbone)


# The rule.


@dataclass(frozen=True)
class Evidence:
    """What was measured of a task on one basis.

    Attributes:
        fitted: its scores as gains: the higher, the better.
        cells: for each cell of a comparison that was measured, its name in `fitted`.
        floor: gain of the label prior; None where it was not measured, minus infinity where there can be none.
        sign: that makes a gain the metric again.
        decimals: of the metric.
        unclear: methods and architectures with several pre-trainings that are described in the settings of an older
            version, so that it cannot be said which is the method's own.
        memory: whether the memory control passed: where not, it is not shown that recurrent networks use their state.
            None where it was not measured; True as well where architectures are never compared.
    """

    fitted: Fit
    cells: Mapping[str, str]
    floor: float | None
    sign: float = 1.0
    decimals: int = 3
    unclear: frozenset[tuple[str, str]] = frozenset()
    memory: bool | None = True


@dataclass(frozen=True)
class Part:
    """A comparison on a task.

    Attributes:
        title: of the comparison.
        estimate: of its effect; None where there is none.
        seeds: of the cell that has fewest.
        lacking: what is missing for a decision, whatever the scores are; "" where nothing is.
        cells: that lack it.
        no_evidence: why these scores decide nothing; "" where they may.
        caveat: what a verdict that rests on them has to add; "" where nothing.
    """

    title: str
    estimate: Estimate | None = None
    seeds: int = 0
    lacking: str = ""
    cells: tuple[str, ...] = ()
    no_evidence: str = ""
    caveat: str = ""

    @property
    def p_above(self) -> float:
        """One-sided p of the null hypothesis that the effect is 0 or less."""
        return 1.0 if self.no_evidence or self.estimate is None else self.estimate.p_above()

    @property
    def p_below(self) -> float:
        """One-sided p of the null hypothesis that the effect is 0 or more."""
        return 1.0 if self.no_evidence or self.estimate is None else self.estimate.p_below()


@dataclass(frozen=True)
class Decision:
    """What a page says of a claim on a task.

    Attributes:
        verdict: one of `VERDICTS`.
        reason: one short sentence.
        part: the comparison that decided; the weakest one where nothing was decided.
        p: of the verdict, or of the nearer one, adjusted for all claims of the page; None where there was no test.
        level: of the first step of the adjustment; None where there was no test.
    """

    verdict: str
    reason: str
    part: Part
    p: float | None = None
    level: float | None = None

    @property
    def detectable(self) -> float | None:
        """The effect that these seeds would have shown with a probability of 80 %, had no other claim been shown."""
        return detectable(self.part, self.level)


def detectable(part: Part, level: float | None) -> float | None:
    """The effect that a test of a comparison at `level` finds with a probability of 80 %."""
    return None if part.estimate is None or level is None else part.estimate.detectable(level=level)


def part_of(comparison: Comparison, evidence: Evidence | None) -> Part:
    """A comparison on a task, of which nothing was measured where there is no evidence."""
    known = {} if evidence is None else evidence.cells
    missing = [cell for cell in dict.fromkeys(comparison.cells) if cell not in known]
    if evidence is None or missing:
        unclear = evidence is not None and all(parsed(cell).of in evidence.unclear for cell in missing)
        said = "made by recipes of an older version, which cannot be told apart" if unclear else NOT_MEASURED
        return Part(comparison.title, lacking=said, cells=tuple(missing))
    weights = Counter(known[cell] for cell in comparison.more)
    weights.subtract(known[cell] for cell in comparison.less)
    estimate = evidence.fitted.estimate(weights)
    counts = {cell: len(evidence.fitted.scores[known[cell]]) for cell in comparison.cells}
    seeds, lacking, no_evidence, caveat = min(counts.values()), "", "", ""
    of: tuple[str, ...] = ()
    if seeds < 2:
        lacking, of = "one seed, and two are needed", tuple(cell for cell, count in counts.items() if count < 2)
    elif estimate is None:
        lacking, of = "the cells share no seed", tuple(counts)
    elif not estimate.freedom:
        lacking = "no variance over seeds"
    elif evidence.floor is None:
        lacking = "floor not measured (run.py --reference prior)"
    else:
        no_evidence = _at_the_floor(comparison, evidence, evidence.floor)
        if not (no_evidence or evidence.memory) and _across_architectures(comparison):
            no_evidence, caveat = ("", MEMORY_UNKNOWN) if evidence.memory is None else (MEMORY_UNUSED, "")
    return Part(comparison.title, estimate, seeds, lacking, of, no_evidence, caveat)


def _at_the_floor(comparison: Comparison, evidence: Evidence, floor: float) -> str:
    """The side that does not reach above the floor, "" where the comparison stands above it.

    One of two cells has to, by the lower end of its interval; all of them where there are more.
    """
    if floor == -math.inf:
        return ""
    below = {}
    for cell in comparison.cells:
        gains = list(evidence.fitted.scores[evidence.cells[cell]].values())
        interval = student_interval(gains)
        if interval is None or interval.low <= floor:
            below[cell] = (evidence.fitted.mean(evidence.cells[cell]), interval)
    if len(below) < (len(comparison.cells) if len(comparison.cells) == 2 else 1):
        return ""
    cell = max(below, key=lambda cell: below[cell][0])
    gain, interval = below[cell]
    shown = f"{evidence.sign * gain:.{evidence.decimals}f}"
    if interval is not None:
        ends = sorted((evidence.sign * interval.low, evidence.sign * interval.high))
        shown += f" [{ends[0]:.{evidence.decimals}f}, {ends[1]:.{evidence.decimals}f}]"
    return f"{cell} is at the floor: {shown}, floor {evidence.sign * floor:.{evidence.decimals}f}"


def _across_architectures(comparison: Comparison) -> bool:
    more, less = (sorted(parsed(cell).arch for cell in side) for side in (comparison.more, comparison.less))
    return more != less


def decide(questions: Sequence[Sequence[Part]], alpha: float = ALPHA) -> list[Decision]:
    """Decide all questions of a page; all of its verdicts are right with a probability of 1 - alpha at least.

    Each question is a conjunction: its parts have to be above 0, all of them. It is tested both ways: that it holds by
    intersection-union (the largest p of its parts), that a part is below 0 by Bonferroni over its parts. Holm's rule
    corrects for all these tests. Where something is lacking for a part, the question is undecided and not tested. Where
    scores are no evidence (at the floor), the part's p is 1, but the question counts as tested: what is left out
    because of its scores has to be paid for.
    """
    tested = [parts for parts in questions if not any(part.lacking for part in parts)]
    ps = [p for parts in tested for p in (_p_holds(parts), _p_contrary(parts))]
    adjusted = iter(holm(ps))
    level = alpha / max(len(ps), 1)
    decisions = []
    for parts in questions:
        if lacking := [part for part in parts if part.lacking]:
            decisions.append(Decision(UNDECIDED, _what_is_lacking(lacking), lacking[0]))
        else:
            decisions.append(_decision(parts, next(adjusted), next(adjusted), alpha, level))
    return decisions


def _what_is_lacking(parts: Sequence[Part]) -> str:
    cells: dict[str, dict[str, None]] = {}
    for part in parts:
        cells.setdefault(part.lacking, {}).update(dict.fromkeys(part.cells))
    return "; ".join(f"{said}: {', '.join(names)}" if names else said for said, names in cells.items())


def _p_holds(parts: Sequence[Part]) -> float:
    return max(part.p_above for part in parts)


def _p_contrary(parts: Sequence[Part]) -> float:
    return min(1.0, len(parts) * min(part.p_below for part in parts))


def _decision(parts: Sequence[Part], holds: float, contrary: float, alpha: float, level: float) -> Decision:
    if contrary < alpha:
        lowest = min(parts, key=lambda part: part.p_below)
        return Decision(
            CONTRARY, _with_caveats(f"{lowest.title}: significantly below 0", [lowest]), lowest, contrary, level
        )
    weakest = max(parts, key=lambda part: part.p_above)
    if holds < alpha:
        reason = (
            f"{weakest.title}: significantly above 0"
            if len(parts) == 1
            else f"all {len(parts)} comparisons are significantly above 0"
        )
        return Decision(HOLDS, _with_caveats(reason, parts), weakest, holds, level)
    return Decision(UNDECIDED, weakest.no_evidence or _not_significant(weakest), weakest, min(holds, contrary), level)


def _not_significant(part: Part) -> str:
    """That a comparison is not significant; and why, where its own interval of 95 % leaves out 0."""
    for p, side in ((part.p_above, "above"), (part.p_below, "below")):
        if p < ALPHA / 2:
            return f"{part.title}: significantly {side} 0 alone, not after correction for all tests of the page"
    return f"{part.title}: not significantly different from 0"


def _with_caveats(reason: str, parts: Sequence[Part]) -> str:
    return "; ".join(dict.fromkeys([reason, *(part.caveat for part in parts if part.caveat)]))
