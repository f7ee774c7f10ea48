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
    "Published: pre-training on four RTX6000, fine-tuning on one or two, inference of one window on one.",
    "Measured: mean over all runs with default settings, on these machines: {}. Inference of one window at a time.",
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
    order = {column: number for number, column in enumerate(content["columns"])}
    pairs = set(long[["column", "source"]].itertuples(index=False, name=None))
    keys = sorted(pairs, key=lambda key: (order[key[0]], key[1] != PUBLISHED, key[1]))
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
    """One row per evaluation or pre-training with default settings, or as `where` says."""
    runs = frame[frame["kind"].isin(["evaluation", PRETRAINING])].drop_duplicates("name")
    for key, wanted in (
        {name: as_text(value) for name, value in DEFAULTS.items()} | dict(where)
    ).items():
        runs = runs[matches(runs[key], wanted)]
    runs = runs[runs["results_version"] == runs["results_version"].max()]
    settings = runs[["data", "profile", "results_version"]].to_dict("records")
    sources = [f"{MEASURED} ({setting_name(setting)})" for setting in settings]
    is_pretraining = runs["kind"] == PRETRAINING
    return runs.assign(
        source=pd.Series(sources, runs.index, dtype=object),
        column=runs["task"].mask(is_pretraining, PRETRAINING),
    )


def _values_by_row(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Numbers of the runs in long form: row of the table, column, source and value."""
    parts = []
    for row, fact in enumerate(rows.to_dict("records")):
        of_row = runs[runs["column"].isin(fact["values"])]
        for key in ("arch", "backbone", "method"):
            of_row = of_row[of_row[key] == fact[key]] if fact[key] else of_row
        part = of_row[["column", "source"]].assign(row=row, value=of_row[fact["quantity"]])
        parts.append(part.dropna(subset="value"))
    return pd.concat(parts, ignore_index=True)
