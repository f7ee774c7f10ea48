"""The comparison table of semantic segmentation."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.basis import bases
from tespec.comparison.records import Record
from tespec.comparison.references import read_reference
from tespec.comparison.side_by_side import side_by_side
from tespec.comparison.table import Table

FRAMES = (("moving", "miou"), ("standing", "miou"))


def segmentation_table(records: Sequence[Record], columns: str = "both") -> Table:
    """The paper's segmentation table with what was measured beside it.

    Args:
        records: any records; those that are no evaluation of a task of the table are left out.
        columns: "both", "paper" or "measured".
    """
    reference = read_reference("segmentation")
    tasks = {task.name for task in reference.tasks}
    measured = [record for record in records if record["kind"] == "evaluation" and record["task"] in tasks]
    return side_by_side(reference, bases(measured), FRAMES, columns)
