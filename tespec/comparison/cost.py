"""The table of sizes and times: the paper's numbers next to those of the records."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from tespec.comparison.frame import DEFAULTS, MEASURED, as_text, matches, setting_name
from tespec.comparison.published import read_published
from tespec.comparison.tables import NONE, PUBLISHED, Table, rules_between

NAME = "cost"
PRETRAINING = "pretraining"
NOTES = (
    "Published: pre-training on four RTX6000, fine-tuning on one or two, inference of one window "
    "on one.",
    "Measured: mean over all runs with default settings, on these machines: {}. Inference of one "
    "window at a time.",
)


def cost_table(frame: pd.DataFrame, where: Mapping[str, str] = {}) -> Table:
    """Make the table of parameters, training hours and inference times.

    Args:
        frame: DataFrame from `tespec.results`.
        where: filters by column of the frame, as in `make_tables`.

    Returns:
        The table; its columns are the pre-training and the tasks, each published and measured.
    """
    content = read_published(NAME)
    rows = pd.DataFrame(content["rows"]).fillna("")
    published = pd.concat(
        pd.DataFrame({"row": row, "column": list(values), "value": list(values.values())})
        for row, values in enumerate(rows["values"])
    ).assign(source=PUBLISHED)
    runs = _measured_runs(frame, where)
    measured = _values_by_row(runs, rows)
    means = measured.groupby(["row", "column", "source"])["value"].mean().reset_index()
    published["text"] = published["value"].map("{:.1f}".format)
    means["text"] = means["value"].map("{:.3g}".format)
    long = pd.concat([part for part in (published, means) if len(part)], ignore_index=True)
    wide = long.pivot(index="row", columns=["column", "source"], values="text")
    order = list(content["columns"])
    pairs = set(long[["column", "source"]].itertuples(index=False, name=None))
    keys = sorted(pairs, key=lambda key: (order.index(key[0]), key[1] != PUBLISHED, key[1]))
    cells = wide.reindex(index=rows.index, columns=pd.MultiIndex.from_tuples(keys)).fillna(NONE)
    titles = [(content["columns"][column], "", source) for column, source in keys]
    cells.columns = pd.MultiIndex.from_tuples(titles)
    labels = rows[["group", "title"]].rename(columns={"group": "Group", "title": "Quantity"})
    cells.index = pd.MultiIndex.from_frame(labels)
    bold = pd.DataFrame(False, cells.index, cells.columns)
    machines = ", ".join(runs["machine"].unique()) or "none yet"
    data = long.merge(rows[["group", "title", "quantity"]], left_on="row", right_index=True)
    return Table(
        content["title"],
        cells,
        bold,
        (NOTES[0], NOTES[1].format(machines)),
        data.drop(columns=["row", "text"]),
        rules=rules_between(rows["group"]),
        name=NAME,
    )


def _measured_runs(frame: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Select evaluations and pre-trainings by `where` and `DEFAULTS`, one row each."""
    runs = frame[frame["kind"].isin(["evaluation", PRETRAINING])].drop_duplicates("name")
    for key, value in (DEFAULTS | dict(where)).items():
        runs = runs[matches(runs[key], as_text(value))]
    runs = runs[runs["results_version"] == runs["results_version"].max()]
    settings = runs[["data", "profile", "results_version"]].to_dict("records")
    sources = [f"{MEASURED} ({setting_name(setting)})" for setting in settings]
    return runs.assign(
        source=pd.Series(sources, runs.index, dtype=object),
        column=runs["task"].mask(runs["kind"] == PRETRAINING, PRETRAINING),
    )


def _values_by_row(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Numbers of the runs in long form: row of the table, column, source and value."""
    parts = []
    for row, facts in enumerate(rows.to_dict("records")):
        selected = runs[runs["column"].isin(facts["values"])]
        for key in ("arch", "backbone", "method"):
            selected = selected[selected[key] == facts[key]] if facts[key] else selected
        values = selected[facts["quantity"]]
        parts.append(selected[["column", "source"]].assign(row=row, value=values))
    return pd.concat(parts, ignore_index=True).dropna(subset="value")
