"""The table of sizes and times: the paper's numbers next to those of the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tespec.comparison.frame import DEFAULTS, MEASURED, as_text, matches, setting_name
from tespec.comparison.published import read_published
from tespec.comparison.tables import (
    PUBLISHED,
    Number,
    Row,
    Table,
    assemble,
    rules_between,
    selected,
    skipped,
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
    runs = _measured_runs(frame, where)
    numbers = []
    data = []
    blocks: dict[str, int] = {}
    for position, facts in enumerate(content["rows"]):
        block = (blocks.setdefault(facts["group"], len(blocks)), facts["group"])
        quantity = facts["quantity"]
        shared = {"group": facts["group"], "title": facts["title"], "quantity": quantity}
        labels = (facts["group"], facts["title"], facts.get("backbone", "-"))
        for column, value in facts["values"].items():
            row = Row(block, (position,), labels)
            numbers.append(Number(row, (column, "", PUBLISHED), f"{value:.1f}", False))
            data.append(shared | {"column": column, "source": PUBLISHED, "value": value})
        of_row = runs[runs["column"].isin(facts["values"])].dropna(subset=quantity)
        for key in {"arch", "method"} & facts.keys():
            of_row = of_row[of_row[key] == facts[key]]
        for keys, values in of_row.groupby(["network", "column", "source"])[quantity]:
            network, column, source = keys
            row = Row(block, (position, network), (*labels[:2], network))
            text = f"{values.mean():.3g} ({len(values)})"
            numbers.append(Number(row, (column, "", source), text, False))
            data.append(shared | {"column": column, "source": source, "value": values.mean()})
    is_measured = [number for number in numbers if number.column[2] != PUBLISHED]
    shown = is_measured if measured and is_measured else numbers
    names = ["Group", "Quantity", "Backbone"]
    cells, bold, rows = assemble(shown, names, content["columns"], {"": ""})
    table = Table(
        content["title"],
        cells,
        bold,
        NOTES,
        pd.DataFrame(data),
        rules=rules_between([row.block for row in rows]),
        name=NAME,
    )
    return selected(table, skipped(frame), where, measured=measured)


def _measured_runs(frame: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Select evaluations and pre-trainings by `where` and `DEFAULTS`, one row each."""
    runs = frame[frame["kind"].isin(["evaluation", PRETRAINING])].drop_duplicates("name")
    for key, value in (DEFAULTS | dict(where)).items():
        runs = runs[matches(runs[key], as_text(value))]
    runs = runs[runs["results_version"] == runs["results_version"].max()]
    settings: list[dict[Any, Any]] = runs.to_dict("records")
    sources = [f"{MEASURED} ({setting_name(run)}) on {run['machine']}" for run in settings]
    return runs.assign(
        source=pd.Series(sources, runs.index, dtype=object),
        column=runs["task"].mask(runs["kind"] == PRETRAINING, PRETRAINING),
    )
