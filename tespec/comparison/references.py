"""Floor and ceiling of each task, apart from every method: the label prior and the network that sees the true frame."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.basis import average, bases, metric
from tespec.comparison.published import scheme_of
from tespec.comparison.records import Record
from tespec.comparison.side_by_side import measured_cell
from tespec.comparison.table import Cell, Column, Group, Row, Table

ORDER = ("prior", "frame")
FRAMES = ("", "moving", "standing")
NOTE = (
    "References are no methods and stand in none of the paper's tables. Prior: the most likely labels by the training "
    "set, the same for every test frame. True grey frame: the same feed-forward network and head, trained by the same "
    "settings, sees the camera's frame in place of the events."
)


def of_references(records: Sequence[Record]) -> list[Record]:
    """References alone; of a task, those on its newest basis."""
    found = [record for record in records if record["kind"] == "reference"]
    newest = {}
    for basis in sorted(bases(found), key=lambda basis: max(record["written"] for record in basis.records)):
        newest[basis.task, basis.records[0]["method_name"]] = basis
    return [record for basis in newest.values() for record in basis.records]


def references_table(records: Sequence[Record]) -> Table | None:
    """Floor and upper reference of each task in its first metric, over all frames and over those of each group."""
    found = of_references(records)
    tasks = sorted({record["task"] for record in found})
    if not tasks:
        return None
    columns = [Column((title,), title, number=False) for title in ("Task", "Reference", "Metric")]
    columns += [
        Column((frames or "all frames",), frames or "all", facts={"source": "measured", "metric": frames or "all"})
        for frames in FRAMES
    ]
    rows = []
    for task in tasks:
        scheme = scheme_of(task, found)
        for method in ORDER:
            members = [record for record in found if (record["task"], record["method_name"]) == (task, method)]
            if not members:
                continue
            cells = [Cell(task), Cell(members[0]["method"]["title"]), Cell(scheme.main.title)]
            for frames in FRAMES:
                values = [metric(record, scheme.main.name, frames) for record in members]
                cells.append(measured_cell(average(values), members, scheme.decimals))
            rows.append(Row(tuple(cells), facts={"method": method, "task": task}))
    return Table("References: floor and upper reference", tuple(columns), (Group("", tuple(rows)),), notes=(NOTE,))
