"""The table of sizes and times: the paper's numbers next to those of the records."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from tespec.comparison.frame import notes_on, select
from tespec.comparison.published import NONE, read_published
from tespec.comparison.tables import DATA, PUBLISHED, Layout, Number, Table, arranged, selected

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
    numbers: list[Number] = []
    for order, row in enumerate(content["rows"]):
        quantity = row["quantity"]
        facts = {"block": 0, "group": row["group"], "order": order, "label": row["title"]}
        facts |= {"metric": "", "level": "", "bold": False, "is_grey": False, "quantity": quantity}
        facts |= {
            "source": PUBLISHED,
            "column": PUBLISHED,
            "network": row.get("backbone", NONE),
            "is_measured": False,
        }
        numbers += [
            facts | {"task": task, "value": value, "text": f"{value:.1f}"}
            for task, value in row["values"].items()
        ]
        of_row = runs[runs["task"].isin(row["values"])]
        for key in {"arch", "method"} & row.keys():
            of_row = of_row[of_row[key] == row[key]]
        means = of_row.groupby(["network", "task", "column"])[quantity].agg(["mean", "count"])
        numbers += [
            facts
            | mean
            | {
                "value": mean["mean"],
                "source": mean["column"],
                "is_measured": True,
                "text": f"{mean['mean']:.3g} ({mean['count']})",
            }
            for mean in means[means["count"] > 0].reset_index().to_dict("records")
        ]
    shown = [number for number in numbers if number["is_measured"]] if measured else []
    labels = {"group": "Group", "label": "Quantity", "network": "Backbone"}
    layout = Layout(content["title"], labels, content["columns"], {"": ""})
    data = pd.DataFrame(numbers).assign(metric=lambda rows: rows["quantity"])
    data = data.reindex(columns=DATA)
    table = arranged(layout, shown or numbers, [*NOTES, *notes_on(frame, left_out)], data)
    return selected(table._replace(name=NAME), where, measured=measured)
