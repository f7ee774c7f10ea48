"""Measured numbers held against the paper's: which leave the tolerance that their task's config states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tespec.comparison.basis import average, bases, learns_all, metric
from tespec.comparison.identity import TEST
from tespec.comparison.published import TABLES, read_published
from tespec.comparison.records import Record
from tespec.comparison.rows import by_entry, entries_of, is_published_anew
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
    """All measured numbers that have a published one.

    They are of all labels of real data, scored on its test split, under the paper's profile.
    """
    fitting = [
        record
        for record in records
        if (record["kind"], record["profile"], record["split"]) == ("evaluation", PROFILE, TEST)
        and record["data"] != "sample"
        and learns_all(record)
    ]
    return [each for name in TABLES for each in _of_table(name, fitting)]


def _of_table(name: str, records: Sequence[Record]) -> list[Deviation]:
    scheme = read_published(name)
    tasks = {task.name: tolerances(task.name) for task in scheme.tasks}
    found = []
    used = [basis for basis in bases(records) if basis.task in tasks]
    entries, _ = entries_of(scheme, used)
    for basis in used:
        for index, members in sorted(by_entry(basis, entries, scheme).items()):
            entry = entries[index]
            if entry.published is None or not is_published_anew(entry, members):
                continue
            for each in scheme.metrics:
                published = entry.published.scores.get((basis.task, each.name))
                mean = average([metric(record, each.name) for record in members])
                if published is not None and mean is not None:
                    title = f"{entry.facts['title']} ({entry.facts['arch']}) on {basis.task}, {each.name}"
                    allowed = tasks[basis.task][each.name]
                    found.append(Deviation(title, mean.value, published, allowed, mean.runs))
    return found
