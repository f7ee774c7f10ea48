"""Measured numbers held against the paper's: which leave the tolerance that their task's config states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tespec.comparison.basis import average, bases, metric
from tespec.comparison.published import TABLES, read_reference
from tespec.comparison.records import Record
from tespec.comparison.rows import by_line, lines_of
from tespec.core.config import tolerances

PROFILE = "paper"


@dataclass(frozen=True)
class Deviation:
    """A measured mean beside the published number.

    Attributes:
        name: method, architecture, task and metric.
        measured: mean over seeds.
        paper: as published.
        tolerance: how far apart they may be.
        runs: number of seeds.
    """

    name: str
    measured: float
    paper: float
    tolerance: float
    runs: int

    @property
    def within(self) -> bool:
        """Whether the two are no further apart than allowed."""
        return abs(self.measured - self.paper) <= self.tolerance

    def __str__(self) -> str:
        """One line."""
        verdict = "within" if self.within else "OUTSIDE"
        return (
            f"{self.name}: measured {self.measured:.3f} (n = {self.runs}), paper {self.paper:.3f}, "
            f"difference {self.measured - self.paper:+.3f}, {verdict} ± {self.tolerance:g}"
        )


def deviations(records: Sequence[Record]) -> list[Deviation]:
    """All measured numbers that have a published one: real data under the paper's profile alone."""
    fitting = [
        record
        for record in records
        if (record["kind"], record["profile"]) == ("evaluation", PROFILE) and record["data"] != "sample"
    ]
    return [each for name in TABLES for each in _of_table(name, fitting)]


def _of_table(name: str, records: Sequence[Record]) -> list[Deviation]:
    reference = read_reference(name)
    tasks = {task.name: tolerances(task.name) for task in reference.tasks}
    found = []
    used = [basis for basis in bases(records) if basis.task in tasks]
    lines, _ = lines_of(reference, used)
    for basis in used:
        for index, members in sorted(by_line(basis, lines, reference).items()):
            line = lines[index]
            if line.published is None:
                continue
            for each in reference.metrics:
                paper = line.published.scores.get((basis.task, each.name))
                mean = average([metric(record, each.name) for record in members])
                if paper is not None and mean is not None:
                    title = f"{line.facts['title']} ({line.facts['arch']}) on {basis.task}, {each.name}"
                    allowed = tasks[basis.task][each.name]
                    found.append(Deviation(title, mean.value, paper, allowed, mean.runs))
    return found
