"""The table of sizes and times: the paper's numbers next to those of the records."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from tespec.comparison.frame import notes_on, select
from tespec.comparison.published import NONE, read_published
from tespec.comparison.tables import (
    CSV_COLUMNS,
    PUBLISHED,
    Layout,
    Number,
    Table,
    arrange,
    state_selection,
)

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
    runs["column"] += " on " + runs["machine"]
    keys = ["network", "task", "column"]
    numbers: list[Number] = []
    for order, row in enumerate(content["rows"]):
        facts = {"block": 0, "group": row["group"], "order": order, "label": row["title"]}
        facts |= {"metric": "", "level": (), "quantity": row["quantity"], "is_measured": False}
        published = facts | {"network": row.get("backbone", NONE), "column": PUBLISHED}
        for task, value in row["values"].items():
            numbers.append(published | {"task": task, "value": value, "text": f"{value:.1f}"})
        of_row = runs[runs["task"].isin(row["values"])].dropna(subset=row["quantity"])
        for key in {"arch", "method"} & row.keys():
            of_row = of_row[of_row[key] == row[key]]
        for names, values in of_row.groupby(keys)[row["quantity"]]:
            mean = {"value": values.mean(), "text": f"{values.mean():.3g} ({len(values)})"}
            mean |= zip(keys, names, strict=True)
            numbers.append(facts | mean | {"is_measured": True})
    data = pd.DataFrame(numbers)
    data = data.assign(metric=data["quantity"], source=data["column"]).reindex(columns=CSV_COLUMNS)
    shown = [number for number in numbers if number["is_measured"] or not measured] or numbers
    labels = {"group": "Group", "label": "Quantity", "network": "Backbone"}
    layout = Layout(content["title"], labels, content["columns"], {"": ""})
    table = arrange(layout, shown, [*NOTES, *notes_on(frame, left_out)], data)
    return state_selection(table._replace(name=NAME), where, measured=measured)
