"""What was shown: the page on which claims, or the gains over a baseline, are decided by what records hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tespec.comparison.ablations import METRICS, read_ablation
from tespec.comparison.basis import Basis, row_key
from tespec.comparison.contrasts import (
    NOT_MEASURED,
    VERDICTS,
    Claim,
    Comparison,
    Decision,
    Part,
    decide,
    detectable,
    parsed,
    part_of,
    read_claims,
)
from tespec.comparison.controls import memory_passed
from tespec.comparison.evidence import (
    effect_cells,
    evidence_of,
    newest_bases,
    of_split,
    probability,
    sign_of,
    signed,
)
from tespec.comparison.identity import TEST
from tespec.comparison.published import Scheme, read_published, scheme_of, table_of
from tespec.comparison.records import Record
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.core.errors import UserError


def published_effect(comparison: Comparison, task: str) -> float | None:
    """A comparison by the paper's own scores; None where it has not all of them."""
    gains = [_published(cell, task) for cell in comparison.cells]
    known = [gain for gain in gains if gain is not None]
    count = len(comparison.more)
    return sum(known[:count]) - sum(known[count:]) if len(known) == len(gains) else None


@cache
def _published(cell: str, task: str) -> float | None:
    """A published score as a gain; that without test-time augmentation where there are two."""
    wanted = parsed(cell)
    if not table_of(task):
        return None
    scheme = read_published(table_of(task))
    if wanted.row is not None:
        own = read_ablation(cell.partition(": ")[0]).task == task
        values: list[float | None] = [wanted.row.paper[list(METRICS).index(scheme.main.name)]] if own else []
    else:
        kind = wanted.method, wanted.arch == "recurrent"
        rows = [row for row in scheme.rows if (row.method, row.recurrent) == kind]
        rows = [row for row in rows if wanted.backbone in ("", row.backbone)]
        ordered = sorted(rows, key=lambda row: row.test_time_augmentation)
        values = [row.scores.get((task, scheme.main.name)) for row in ordered]
    return next((sign_of(scheme.main) * value for value in values if value is not None), None)


# The page.

RULE = (
    "A claim holds on a task where each of its comparisons is significantly above 0, is contrary where one is below, "
    "and is undecided elsewhere. Tests are one-sided, in the task's own metric, with the variance of all cells of the "
    "task that have the architectures compared, or that of the compared cells where it is larger; Holm's rule corrects "
    "for all claims and tasks of the page (family-wise error 5 %). Effect, 95 % interval and seeds are those of the "
    "weakest comparison, positive in the claim's favour; p is adjusted. Detectable: the effect that this many seeds "
    "would show with a probability of 80 %."
)
FLOOR = (
    "Floor: the label prior. A comparison decides nothing where neither cell is above it by the lower end of its 95 % "
    "interval; of four cells, all have to be."
)
MEMORY_NOTE = (
    "Where the memory control failed (--controls), it is not shown that recurrent networks use their state, and a "
    "comparison of them with feed-forward ones decides nothing."
)
PAPER_NOTE = (
    "Paper: the same comparison from its tables, without test-time augmentation where it has both; single numbers, "
    "which decide nothing."
)
TEXTS = ("Task", "Metric", "verdict", "weakest comparison", "95 % interval", "why")
COLUMNS = (*TEXTS[:4], "effect", "95 % interval", "seeds", "p", "detectable", "paper", "why")
SOURCES = {"effect": "measured", "paper": "paper"}


@dataclass(frozen=True)
class Question:
    """A claim on a task: its comparisons, and what was measured of each."""

    claim: Claim
    task: str
    scheme: Scheme
    comparisons: Sequence[Comparison]
    parts: Sequence[Part]


def claims_table(records: Sequence[Record], split: str = TEST) -> Table:
    """The claims of configs/contrasts.yaml, decided.

    Args:
        records: any; evaluations are judged, references give the floors.
        split: of the data; records of others take no part.
    """
    return _page("What was shown: the claims", read_claims(), records, split, by_recipe=True)


def baseline_table(records: Sequence[Record], baseline: str, split: str = TEST) -> Table:
    """Whether each method beats `baseline` with the same architecture, decided on each task that has both.

    Raises:
        UserError: no evaluation of the baseline is among the records.
    """
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    if baseline not in (there := sorted({record["method_name"] for record in evaluations})):
        raise UserError(f"--baseline {baseline}", "has no record", f"choose from {', '.join(there) or 'none yet'}")
    tasks: dict[tuple[str, str, str], list[str]] = {}
    titles = {}
    for task, basis in sorted(newest_bases(of_split(records, split)).items()):
        cells = {row_key(record): record for record in (*basis.records, *basis.variants)}
        for key, record in cells.items():
            titles[key[0]] = " ".join(record["method"]["title"].split())
            if key[0] != baseline and any(each[:2] == (baseline, key[1]) for each in cells):
                tasks.setdefault(key, []).append(task)
    several = {key[:2] for key, count in Counter(key[:2] for key in tasks).items() if count > 1}
    claims = []
    for key in sorted(tasks):
        method, arch, backbone = key
        cell = f"{method}/{arch}/{backbone}" if key[:2] in several else f"{method}/{arch}"
        comparison = Comparison(f"over {titles[baseline]}", (cell,), (f"{baseline}/{arch}",))
        says = f"{titles[method]} beats {titles[baseline]}"
        claims.append(Claim(cell, says, cell.partition("/")[2], (comparison,), tuple(tasks[key])))
    return _page(
        f"What was shown: gains over {titles.get(baseline, baseline)}", claims, records, split, by_recipe=False
    )


def _page(title: str, claims: Sequence[Claim], records: Sequence[Record], split: str, *, by_recipe: bool) -> Table:
    every, records = records, of_split(records, split)
    found = newest_bases(records)
    memory = memory_passed(every, found)
    cells = sorted({cell for claim in claims for each in claim.comparisons for cell in each.cells})
    evidence = {
        task: replace(evidence_of(basis, records, cells, by_recipe=by_recipe), memory=memory.get(task))
        for task, basis in found.items()
    }
    questions = []
    for claim in claims:
        for task, comparisons in claim.by_task(evidence).items():
            scheme = scheme_of(task, found[task].records if task in found else ())
            parts = [part_of(each, evidence.get(task)) for each in comparisons]
            questions.append(Question(claim, task, scheme, comparisons, parts))
    decided = list(zip(questions, decide([question.parts for question in questions]), strict=True))
    groups = []
    for claim in claims:
        members = [(question, decision) for question, decision in decided if question.claim is claim]
        heading = _heading(claim, [decision for _, decision in members])
        groups.append(Group(heading, tuple(_row(*each) for each in members)))
    columns = [
        Column((name,), name, number=name not in TEXTS, facts={"source": SOURCES[name]} if name in SOURCES else {})
        for name in COLUMNS
    ]
    lines = tuple(line for each in decided if each[0].task in found for line in _lines(*each, found[each[0].task]))
    notes = (
        RULE,
        FLOOR,
        *((MEMORY_NOTE,) if False in memory.values() else ()),
        PAPER_NOTE,
        *(_measured_on(task, found[task], records) for task in sorted(found)),
    )
    return Table(title, tuple(columns), tuple(groups), notes=notes, lines=lines)


def _heading(claim: Claim, decisions: Sequence[Decision]) -> str:
    counts = Counter(decision.verdict for decision in decisions)
    tasks = f"{len(decisions)} task{'s' if len(decisions) > 1 else ''}"
    verdicts = ", ".join(f"{verdict} on {counts[verdict]}" for verdict in VERDICTS)
    return f"{claim.says} ({claim.where}). Of {tasks}: {verdicts}"


def _row(question: Question, decision: Decision) -> Row:
    scheme, part, decimals = question.scheme, decision.part, question.scheme.decimals
    comparison = question.comparisons[[each is part for each in question.parts].index(True)]
    # A row that says what is missing beside what was measured is one of measured numbers.
    measured = any(each.estimate is not None or each.lacking not in ("", NOT_MEASURED) for each in question.parts)
    texts = scheme.title_of(question.task), scheme.main.title, decision.verdict, part.title
    paper, detected = published_effect(comparison, question.task), decision.detectable
    return Row(
        (
            *map(Cell, texts),
            *effect_cells(part, decimals, measured),
            Cell(str(part.seeds), part.seeds) if part.seeds else Cell(),
            Cell() if decision.p is None else Cell(probability(decision.p), decision.p),
            Cell() if detected is None else Cell(f"{detected:.{decimals}f}", detected),
            Cell() if paper is None else Cell(signed(paper, decimals), paper),
            Cell(decision.reason),
        ),
        facts={"claim": question.claim.name, "task": question.task, "verdict": decision.verdict},
    )


def _lines(question: Question, decision: Decision, basis: Basis) -> list[dict[str, Any]]:
    """The long CSV: a line for each comparison; p, verdict and reason are those of its claim on its task."""
    lines, main = [], question.scheme.main
    for comparison, part in zip(question.comparisons, question.parts, strict=True):
        interval = None if part.estimate is None else part.estimate.interval()
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        lines.append(
            {"claim": question.claim.name, "comparison": part.title, "task": question.task, "data": basis.data}
            | {"profile": basis.profile, "metric": main.name, "unit": main.unit}
            | {"effect": None if part.estimate is None else part.estimate.effect, "low_95": low, "high_95": high}
            | {"seeds": part.seeds or None, "p": decision.p, "detectable": detectable(part, decision.level)}
            | {"paper": published_effect(comparison, question.task)}
            | {"verdict": decision.verdict, "reason": decision.reason}
        )
    return lines


def _measured_on(task: str, basis: Basis, records: Sequence[Record]) -> str:
    """Where a task was measured, and how much of it was measured elsewhere."""
    first = basis.records[0]
    data = "the sample world" if basis.data == "sample" else basis.data
    seeds = ", ".join(map(str, basis.seeds))
    used = len(basis.records) + len(basis.superseded) + len(basis.variants)  # older code of a plug-in is other code
    others = sum((record["kind"], record["task"]) == ("evaluation", task) for record in records) - used
    left_out = f"; {others} run{'s' if others > 1 else ''} on other data, settings or code left out" if others else ""
    made_of = f"{data} ({first['data_fingerprint']}), profile {basis.profile}, code {first['code']}"
    return f"{task}: {made_of}; seeds {seeds}{left_out}."
