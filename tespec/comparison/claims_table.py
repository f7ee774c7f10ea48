"""The table of the claims: each comparison on each task with its interval, and the paper's own difference beside it."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.claims import (
    NO_VERDICT,
    RULE,
    Finding,
    findings,
    measured_scores,
    newest_bases,
    primary,
    published_scores,
    read_claims,
    table_of,
)
from tespec.comparison.effects import interval_cell
from tespec.comparison.records import Record
from tespec.comparison.references import read_reference
from tespec.comparison.table import Cell, Column, Group, Row, Table

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


def _row(ours: Finding, paper: Finding) -> Row:
    name, _ = primary(ours.task)
    reference = read_reference(table_of(ours.task))
    title = next(each.title for each in reference.tasks if each.name == ours.task)
    metric = next(each.title for each in reference.metrics if each.name == name)
    basis = {"task": ours.task, "metric": name, "title": ours.title}
    labels = Cell(ours.title), Cell(title), Cell(metric)
    return Row((*labels, *_cells(ours, paper, reference.decimals)), facts=basis)


def _cells(ours: Finding, paper: Finding, decimals: int) -> list[Cell]:
    theirs = Cell() if paper.effect is None else Cell(f"{paper.effect:+.{decimals}f}", paper.effect)
    if ours.effect is None:
        return [Cell(), Cell(), Cell(), theirs]
    interval = ours.interval
    ends = None if interval is None else (interval.low, interval.high)
    return [
        Cell(f"{ours.effect:+.{decimals}f}", ours.effect, runs=ours.seeds, interval=ends),
        interval_cell(interval, decimals),
        Cell(str(ours.seeds), ours.seeds),
        theirs,
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
