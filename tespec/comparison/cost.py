"""The table of sizes and times: the paper's numbers next to those of the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tespec.comparison.frame import select
from tespec.comparison.published import NONE, read_published
from tespec.comparison.tables import PUBLISHED, Table, assembled, selected

NAME = "cost"
PRETRAINING = "pretraining"
NOTES = (
    "Published: pre-training on four RTX6000, fine-tuning on one or two, inference of one window "
    "on one.",
    "Measured: mean over the runs of all methods with default settings, and their number. "
    "Inference of one window at a time.",
)


def cost_table(
    frame: pd.DataFrame, where: Mapping[str, str] = {}, *, measured: bool = False
) -> Table:
    """Make the table of parameters, training hours and inference times.

    Args:
        frame: DataFrame from `tespec.results`.
        where: filters by column of the frame, as in `make_tables`.
        measured: show only measured rows and columns, if there are any.

    Returns:
        The table; its columns are the pre-training and the tasks, each published and measured.
    """
    content = read_published(NAME)
    runs, left_out = select(frame, where, kinds=["evaluation", PRETRAINING])
    runs = runs.drop_duplicates("name")
    runs["task"] = runs["task"].mask(runs["kind"] == PRETRAINING, PRETRAINING)
    runs["source"] = runs["column"] + " on " + runs["machine"]
    numbers: list[dict[str, Any]] = []
    for position, row in enumerate(content["rows"]):
        group = row["group"]
        quantity = row["quantity"]
        shared = {
            "group": group,
            "label": row["title"],
            "quantity": quantity,
            "metric": "",
            "level": (),
        }
        shared |= {"place": (group, "", position), "bold": False, "level": ()}
        for task, value in row["values"].items():
            published = {"task": task, "source": PUBLISHED, "network": row.get("backbone", NONE)}
            numbers.append(shared | published | {"value": value, "text": f"{value:.1f}"})
        of_row = runs[runs["task"].isin(row["values"])].dropna(subset=quantity)
        for key in {"arch", "method"} & row.keys():
            of_row = of_row[of_row[key] == row[key]]
        for keys, values in of_row.groupby(["network", "task", "source"])[quantity]:
            facts = dict(zip(["network", "task", "source"], keys, strict=True))
            mean = values.mean()
            numbers.append(shared | facts | {"value": mean, "text": f"{mean:.3g} ({len(values)})"})
    table = assembled(
        content["title"],
        numbers,
        {"group": "Group", "label": "Quantity", "network": "Backbone"},
        content["columns"],
        {"": ""},
        notes=NOTES,
        data=(pd.DataFrame(numbers).assign(metric=lambda data: data["quantity"]), frame[:0]),
    )
    table = ((table.measured() if measured else None) or table)._replace(name=NAME)
    return selected(table, left_out, where, measured=measured)
