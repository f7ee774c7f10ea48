"""The paper's three comparison tables, with what was measured beside them."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.basis import bases
from tespec.comparison.records import Record
from tespec.comparison.references import read_reference
from tespec.comparison.side_by_side import side_by_side
from tespec.comparison.table import Table

# Metric that is shown apart for frames of a moving and of a standing camera, by table.
APART = {"detection": "map", "segmentation": "miou", "depth": "abs"}
TABLES = tuple(APART)


def published_table(name: str, records: Sequence[Record], columns: str = "both") -> Table:
    """One of the paper's tables with what was measured beside it.

    Args:
        name: one of `TABLES`.
        records: any records; those that are no evaluation of a task of the table are left out.
        columns: "both", "paper" or "measured".
    """
    reference = read_reference(name)
    tasks = {task.name for task in reference.tasks}
    measured = [record for record in records if record["kind"] == "evaluation" and record["task"] in tasks]
    frames = tuple((group, APART[name]) for group in ("moving", "standing"))
    return side_by_side(reference, bases(measured), frames, columns)
