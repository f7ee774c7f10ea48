"""Floor and ceiling of each task: the label prior, and the network that sees the true frame."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.basis import bases
from tespec.comparison.records import Record

REFERENCE = "reference"  # kind of their records
TITLES = {"prior": "Floor: no input", "frame": "Ceiling: true frame"}
ABOUT = (
    "Floor: the most likely labels by the training set, the same for every frame. Ceiling: the feed-forward network, "
    "trained by the same settings, sees the camera's true frame in place of the events."
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
