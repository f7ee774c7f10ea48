"""Tables of the claims: one with a verdict for each, one with all comparisons behind it."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.claim_scores import measured_scores, newest_bases, published_scores
from tespec.comparison.claims import RULE, VERDICTS, Claim, Finding, Scores, decide, findings, read_claims
from tespec.comparison.records import Record
from tespec.comparison.robustness import verdicts_without
from tespec.comparison.statistics import UNDECIDED, Interval
from tespec.comparison.table import MISSING, Cell, Column, Group, Row, Table

PAPER_NOTE = "Paper: the same from its tables; single numbers, so that they have a direction alone."


def claims_tables(records: Sequence[Record]) -> tuple[Table, Table]:
    """The claims with their verdicts, and every comparison behind them."""
    measured, published = measured_scores(records), published_scores()
    both = [(claim, findings(claim, measured), findings(claim, published)) for claim in read_claims()]
    notes = (RULE, PAPER_NOTE, *_needed(both, measured), *_bases(records))
    return _short(both, notes), _long(both, notes)


def _short(both: Sequence[tuple[Claim, list[Finding], list[Finding]]], notes: tuple[str, ...]) -> Table:
    columns = [Column(("Claim",), "claim", number=False), *_columns()]
    rows = [
        Row((Cell(claim.says), *_cells(found[-1], paper[-1], decide(found))), facts={"claim": claim.name})
        for claim, found, paper in both
    ]
    return Table("The paper's claims", tuple(columns), (Group("", tuple(rows)),), notes=notes)


def _long(both: Sequence[tuple[Claim, list[Finding], list[Finding]]], notes: tuple[str, ...]) -> Table:
    columns = [*(Column((title,), title, number=False) for title in ("Comparison", "Task")), *_columns()]
    groups = []
    for claim, found, paper in both:
        rows = []
        for ours, theirs in zip(found, paper, strict=True):
            last = ours is found[-1]
            verdict = decide(found) if last else ours.verdict
            labels = Cell(ours.title), Cell(ours.task or "pooled")
            facts = {"claim": claim.name, "comparison": ours.title, "task": ours.task}
            rows.append(Row((*labels, *_cells(ours, theirs, verdict)), facts=facts))
        groups.append(Group(f"{claim.says} ({claim.where})", tuple(rows)))
    return Table("The paper's claims, comparison by comparison", tuple(columns), tuple(groups), notes=notes)


def _columns() -> list[Column]:
    return [
        Column(("effect",), "effect", facts={"metric": "points", "source": "measured"}),
        Column(("95 % interval",), "interval", number=False),
        Column(("seeds",), "seeds", facts={"metric": "seeds", "source": "measured"}),
        Column(("verdict",), "verdict", number=False),
        Column(("paper",), "paper", facts={"metric": "points", "source": "paper"}),
    ]


def _cells(ours: Finding, paper: Finding, verdict: str) -> list[Cell]:
    theirs = Cell() if paper.effect is None else Cell(f"{paper.effect:+.2f}", paper.effect)
    if ours.effect is None:
        return [Cell(), Cell(), Cell(), Cell("not measured"), theirs]
    interval = ours.interval
    return [
        Cell(f"{ours.effect:+.2f}", ours.effect, runs=ours.seeds),
        Cell(MISSING if interval is None else _between(interval)),
        Cell(str(ours.seeds), ours.seeds),
        Cell(verdict if interval is not None else VERDICTS[UNDECIDED]),
        theirs,
    ]


def _needed(both: Sequence[tuple[Claim, list[Finding], list[Finding]]], scores: Scores) -> list[str]:
    """Tasks without which a verdict would be another, a line each."""
    return [
        f"{claim.says}: {verdict} without {task}, pooled {others.effect:+.2f}"
        + (f" ({_between(others.interval)})." if others.interval else ".")
        for claim, found, _ in both
        for task, others, verdict in verdicts_without(claim, decide(found), scores)
    ]


def _between(interval: Interval) -> str:
    return f"{interval.low:+.2f} to {interval.high:+.2f}"


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
