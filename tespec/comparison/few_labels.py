"""Scores by the share of labels that a network learns from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tespec.comparison.basis import (
    ALL_LABELS,
    Average,
    RowKey,
    average,
    bases,
    metric,
    same_but_for_labels,
    share_of,
)
from tespec.comparison.evidence import floor_of, newest_bases, of_split, sign_of
from tespec.comparison.identity import TEST
from tespec.comparison.published import Scheme, scheme_of
from tespec.comparison.records import Record
from tespec.comparison.side_by_side import measured_cell
from tespec.comparison.table import Cell, Column, Group, Row, Table


@dataclass(frozen=True)
class LabelCurve:
    """Scores of one method and architecture on a task by the share of labels.

    Attributes:
        task: its name.
        arch: "recurrent" or "feedforward".
        title: of the method.
        scheme: of the task's metric.
        points: records of each share, rising; one for each seed.
        floor: of the label prior, which counts all labels; None where it was not measured.
    """

    task: str
    arch: str
    title: str
    scheme: Scheme
    points: Mapping[float, Sequence[Record]]
    floor: float | None

    def score(self, share: float) -> Average | None:
        """Mean over seeds at a share; None where there is none."""
        return average([metric(record, self.scheme.main.name) for record in self.points.get(share, ())])


def label_curves(records: Sequence[Record], split: str = TEST) -> list[LabelCurve]:
    """A curve for each method and architecture that was trained with a part of the labels, by task.

    Args:
        records: any; the newest basis of each task counts, of all labels where any learn from all, and what differs
            from it in the share of labels alone.
        split: of the data; records of others take no part.
    """
    chosen = of_split(records, split)
    of_share: dict[float, list[Record]] = defaultdict(list)
    for record in chosen:
        if record["kind"] == "evaluation":
            of_share[share_of(record)].append(record)
    found = []
    for task, basis in sorted(newest_bases(chosen).items()):
        scheme = scheme_of(task, basis.records)
        floor = floor_of(basis, chosen, scheme)
        cells: dict[RowKey, dict[float, list[Record]]] = defaultdict(dict)
        for share, members in sorted(of_share.items()):
            for other in bases([record for record in members if record["task"] == task]):
                for key, runs in other.cells().items():
                    like = basis.cells().get(key)
                    if like and same_but_for_labels(runs[0], like[0]):
                        cells[key][share] = runs
        for key, points in sorted(cells.items()):
            if min(points) < ALL_LABELS:
                title = " ".join(next(iter(points.values()))[0]["method"]["title"].split())
                known = None if floor is None else sign_of(scheme.main) * floor
                found.append(LabelCurve(task, key[1], title, scheme, points, known))
    return found


def label_table(records: Sequence[Record], split: str = TEST) -> Table | None:
    """A row for each curve, a column for each share; None where nothing was trained with a part of the labels."""
    curves = label_curves(records, split)
    if not curves:
        return None
    shares = sorted({share for curve in curves for share in curve.points})
    texts = [Column((name,), name, number=False) for name in ("Method", "Network")]
    columns = [*texts, *(Column((f"{share:.0%}",), f"{share:g}") for share in shares)]
    groups = []
    for task in dict.fromkeys(curve.task for curve in curves):
        members = [curve for curve in curves if curve.task == task]
        scheme = members[0].scheme
        floor = "" if members[0].floor is None else f", floor {members[0].floor:.{scheme.decimals}f}"
        heading = f"{scheme.title_of(task)}, {scheme.main.title}{floor}"
        groups.append(Group(heading, tuple(_row(curve, shares) for curve in members)))
    return Table("Few labels", tuple(columns), tuple(groups))


def _row(curve: LabelCurve, shares: Sequence[float]) -> Row:
    main, decimals = curve.scheme.main.name, curve.scheme.decimals
    runs = [curve.points.get(share, ()) for share in shares]
    cells = (measured_cell([metric(each, main) for each in members], members, decimals) for members in runs)
    return Row((Cell(curve.title), Cell(curve.arch), *cells), facts={"task": curve.task, "arch": curve.arch})
