"""Tables of gains over a baseline, and of the agreement of two evaluations."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from tespec.comparison import statistics
from tespec.comparison.frame import COLUMN, MEASURED, OF_EVALUATION, notes_on, remarks, select
from tespec.comparison.published import task_titles
from tespec.comparison.records import REPORTED
from tespec.comparison.tables import (
    ACCUMULATED,
    NONE,
    RECURRENT,
    Table,
    metric_titles,
    state_selection,
)
from tespec.core.errors import UserError
from tespec.core.settings import suggest

BASELINE = "scratch"  # of rankings, which leave it out
NETWORK = ["task", "metric", "column", "arch", "backbone"]  # runs that are compared with each other
LABELS = ["Task", "Data", "Method", "Backbone", "Recurrent", "Pre-training", "Metric"]
GAIN_NOTES = (
    "Gain: difference of means over the same fine-tuning seeds, within one network; positive is "
    "better, also for error metrics. n: number of common seeds.",
    "95 % interval and p: Student's t; the variance is estimated from all methods of the network. "
    "p (Holm): corrected for all tests of this table with the same evaluation. "
    "Bold: p (Holm) below 0.05.",
)
RANK_NOTE = (
    "tau-b: agreement of the two rankings, 1 for the same order and 0 for none, with its p and the "
    "95 % interval of the tau of the true means; ceiling: the mean tau of two measurements with "
    "equal true rankings at this noise, so that a tau near it is as good as these runs can show."
)


def gains_table(frame: pd.DataFrame, baseline: str, where: Mapping[str, str] = {}) -> Table:
    """Compare all methods with a baseline on the main metric of each task.

    Methods are compared by `statistics.gains` within network and column of the comparison tables.
    Each row of these tables is a method, also versions that `where` admits; they are compared with
    the highest version of the baseline.

    Args:
        frame: DataFrame from `tespec.results`.
        baseline: registered name of a method.
        where: filters by column of the frame, as in `make_tables`.

    Returns:
        One row per method and column; a gain above 0 is better, also for error metrics.

    Raises:
        UserError: the baseline, or any other method, has no evaluation, or `where` has an unknown
            column or value.
    """
    runs, hidden = _main_scores(frame, where, f"--gains {baseline}")
    if baseline not in set(runs["method"]):
        what = "no evaluation of this method"
        raise UserError(f"--gains {baseline}", what, suggest(baseline, runs["method"].unique()))
    rows = []
    for _, network in runs.groupby(NETWORK):
        methods = network.drop_duplicates("row")
        is_base = methods["method"] == baseline
        bases = methods[is_base].sort_values(["pretraining_overrides", "method_version"])
        # Without changed settings, if it has such runs, and of the highest version.
        bases = bases[bases["pretraining_overrides"] == bases["pretraining_overrides"].min()]
        base = bases["row"].iloc[-1] if len(bases) else None
        machines = network.groupby("row")["machine"].agg(set)
        gains = statistics.gains(network.assign(method=network["row"]), base)
        for facts in methods[methods["row"] != base].to_dict("records"):
            gain = gains[facts["row"]]
            notes = [gain.note if base else f"no {baseline} with {facts['network']}"]
            if len(bases) > 1:
                notes.append(f"over {base}".replace("\n", ", ").removesuffix(", -"))
            both = network[network["row"].isin([facts["row"], base])]
            notes += remarks([*both["status"]], sum(both["tta"]))
            if base and machines[base] != machines[facts["row"]]:
                notes.append("another machine")
            others = {"baseline": baseline, "is_reported": REPORTED in [*both["status"]]}
            others["note"] = "; ".join(filter(None, notes))
            rows.append(facts | gain._asdict() | others)
    if not rows:
        remedy = f"evaluate a method with `tespec run`{''.join(f' ({note})' for note in hidden)}"
        raise UserError(f"--gains {baseline}", "no other method to compare with it", remedy)
    data = pd.DataFrame(rows)
    data["p_holm"] = data.groupby("evaluation")["p"].transform(statistics.holm)
    cells = pd.DataFrame(
        {
            "Task": data["task"].replace(task_titles()),
            "Data": data["column"].str.removeprefix(f"{MEASURED} (").str.removesuffix(")"),
            "Method": data["label"],
            "Backbone": data["network"],
            "Recurrent": data["arch"].replace(RECURRENT),
            "Pre-training": data["pretraining_data"],
            "Metric": data["metric"].replace(metric_titles(runs)),
            "gain": data["mean"].map("{:+.3f}".format),
            "95 % interval": [*map("[{:+.3f}, {:+.3f}]".format, data["low"], data["high"])],
            "p": data["p"].map("{:.2g}".format),
            "p (Holm)": data["p_holm"].map("{:.2g}".format),
            "n": [f"{row['n']} ({row['note']})" if row["note"] else str(row["n"]) for row in rows],
        }
    ).set_index(LABELS)
    cells = cells.replace(["nan", "+nan", "[+nan, +nan]"], NONE)
    bold = pd.DataFrame(False, cells.index, cells.columns)
    is_bold = (data["p_holm"] < statistics.ALPHA) & ~data["is_reported"]
    bold["gain"] = is_bold.to_numpy()
    changed = runs["overrides"] + runs["pretraining_overrides"]
    accumulated = [ACCUMULATED] if changed.str.contains("accumulate=").any() else []
    title = runs.loc[runs["method"] == baseline, "title"].iloc[0]
    columns = [
        *["task", "column", "evaluation", "method", "label", "title", "arch", "backbone"],
        *["network", "pretraining_data", "pretraining_overrides", "baseline", "metric"],
        *["mean", "low", "high", "p", "dof", "n", "note", "p_holm"],
    ]
    table = Table(
        f"Gains over {title}",
        cells,
        bold,
        notes=(*GAIN_NOTES, *accumulated, *hidden),
        data=data[columns],
        blocks=tuple((task, "") for task in data["task"]),
        grey=(False,) * len(data),
        name=f"gains_{baseline}",
    )
    return state_selection(table, where)


def compare_evaluations(
    frame: pd.DataFrame, evaluations: tuple[str, str], where: Mapping[str, str] = {}
) -> list[str]:
    """Compare the rankings of the methods by two evaluations, such as full and frozen.

    Args:
        frame: DataFrame from `tespec.results`.
        evaluations: values of the column `evaluation`.
        where: filters by column of the frame, as in `make_tables`.

    Returns:
        One line per task, data and network that has both, and notes.

    Raises:
        UserError: no network has both evaluations, or `where` has an unknown column or value.
    """
    from tespec.comparison.ranking import MIN_METHODS, compare_rankings

    option = f"--rank {','.join(evaluations)}"
    runs, hidden = _main_scores(frame, {"evaluation": "*", **where}, option)
    runs["method"] = runs["row"].mask(runs["method"] == BASELINE, BASELINE)
    settings = [name for name in COLUMN if name not in OF_EVALUATION]
    lines = []
    for _, network in runs.groupby(["task", "metric", *settings, "arch", "backbone"]):
        first, second = (network[network["evaluation"] == name] for name in evaluations)
        if len(first) and len(second):
            facts = first.iloc[0]
            column = facts["column"].removeprefix(f"{MEASURED} ")
            ranking = compare_rankings(first, second, BASELINE)
            name = f"{facts['task']}, {facts['network']}, {facts['arch']} {column}"
            name += f" against {evaluations[1]}"
            if ranking.methods < MIN_METHODS:
                lines.append(f"{name}: {ranking.note}")
                continue
            lines.append(
                f"{name}: tau-b {ranking.tau:.3f} [{ranking.low:.3f}, {ranking.high:.3f}], "
                f"p {ranking.p:.2g}, ceiling {ranking.ceiling:.3f}, "
                f"reliability {' and '.join(f'{part:.2f}' for part in ranking.reliability)}, "
                f"{ranking.methods} methods"
                f"{f' ({ranking.note})' if ranking.note else ''}"
            )
    if not lines:
        known = ", ".join(sorted(runs["evaluation"].unique()))
        raise UserError(option, "no network has both evaluations", f"there are: {known}")
    return [*lines, RANK_NOTE, *hidden]


def _main_scores(
    frame: pd.DataFrame, where: Mapping[str, str], option: str
) -> tuple[pd.DataFrame, list[str]]:
    """Select the main scores of evaluations, with columns as for `statistics.gains`.

    `row` is a method's row in the tables, and above is better in `value`.
    """
    chosen, left_out = select(frame, where)
    hidden = notes_on(frame, left_out)
    runs = chosen[(chosen["kind"] == "evaluation") & chosen["main"]]
    if runs.empty:
        remedy = "evaluate a method with `tespec run`" + "".join(f" ({note})" for note in hidden)
        if given := where.keys() - {"evaluation"}:  # which --rank sets itself
            remedy = f"leave out --where {' '.join(sorted(given))}"
        raise UserError(option, "the selection has no main metric over all frames", remedy)
    seeds = runs["pretraining_seed"].astype(object)
    files = runs["weights"].where(runs["weights"] != "", None)
    runs = runs.assign(
        row=runs["label"] + "\n" + runs["pretraining_data"],
        pretraining=seeds.where(seeds.notna(), files),
        value=runs["value"].where(runs["better"] != "lower", -runs["value"]),
    )
    return runs.sort_values(["task", "column", "arch", "label"], kind="stable"), hidden
