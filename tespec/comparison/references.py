"""Floor and ceiling of each task: the label prior, and the network that sees the true frame."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.basis import Basis, bases
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


def of_references(records: Sequence[Record], basis: Basis) -> list[Record]:
    """Floors and ceilings beside a basis: of its task, data, profile and split, the newest of each kind."""
    where = (basis.task, basis.data, basis.records[0]["data_fingerprint"], basis.profile, basis.split)
    beside = [
        record
        for record in records
        if is_reference(record)
        and tuple(dict(record)[name] for name in ("task", "data", "data_fingerprint", "profile", "split")) == where
    ]
    chosen: list[Record] = []
    for name in TITLES:
        found = bases([record for record in beside if record["method_name"] == name])
        for newest in sorted(found, key=lambda each: max(record["written"] for record in each.records))[-1:]:
            chosen += newest.records
    return chosen
