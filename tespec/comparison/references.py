"""Floor and ceiling of each task, apart from every method: the label prior and the network that sees the true frame."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.basis import bases, metric
from tespec.comparison.published import scheme_of
from tespec.comparison.records import Record
from tespec.comparison.table import Cell, Column, Group, Row, Table

REFERENCE = "reference"  # kind of their records
TITLES = {"prior": "Floor: no input", "frame": "Ceiling: true frame"}
ABOUT = (
    "Floor: the most likely labels by the training set, the same for every frame. Ceiling: the feed-forward network, "
    "trained by the same settings, sees the camera's true frame in place of the events."
)
FRAMES = ("", "moving", "standing")
NOTE = (
    "References are no methods and stand in none of the paper's tables. Prior: the most likely labels by the training "
    "set, the same for every test frame. True grey frame: the same feed-forward network and head, trained by the same "
    "settings, sees the camera's frame in place of the events."
)


def is_reference(record: Record) -> bool:
    """Whether a record is the floor or the ceiling of its task."""
    return record["kind"] == REFERENCE and record["method_name"] in TITLES


def of_references(records: Sequence[Record]) -> list[Record]:
    """Floors and ceilings alone; of a task, those of each kind on its newest basis."""
    newest = {}
    for name in TITLES:
        found = [record for record in records if is_reference(record) and record["method_name"] == name]
        for basis in sorted(bases(found), key=lambda basis: max(record["written"] for record in basis.records)):
            newest[basis.task, name] = basis
    return [record for basis in newest.values() for record in basis.records]


def references_table(records: Sequence[Record]) -> Table | None:
    """Floor and upper reference of each task in its first metric, over all frames and over those of each group."""
    from tespec.comparison.side_by_side import measured_cell

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
        for method in TITLES:
            members = [record for record in found if (record["task"], record["method_name"]) == (task, method)]
            if not members:
                continue
            cells = [Cell(task), Cell(members[0]["method"]["title"]), Cell(scheme.main.title)]
            for frames in FRAMES:
                values = [metric(record, scheme.main.name, frames) for record in members]
                cells.append(measured_cell(values, members, scheme.decimals))
            rows.append(Row(tuple(cells), facts={"method": method, "task": task}))
    return Table("References: floor and upper reference", tuple(columns), (Group("", tuple(rows)),), notes=(NOTE,))
