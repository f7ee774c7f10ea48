"""Comparison tables: published numbers and records, grouped by cell and pivoted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tespec.comparison import statistics
from tespec.comparison.frame import (
    COLUMNS,
    DEFAULTS,
    MEASURED,
    ORIGIN,
    PROTOCOL,
    ROW,
    SETTING,
    as_text,
    column_names,
    matches,
    select,
    setting_name,
)
from tespec.comparison.published import (
    ABLATED,
    BEYOND,
    METRICS,
    PAPER,
    TABLES,
    Ablation,
    published_frame,
    read_ablations,
    read_published,
    task_titles,
    titles_of,
)
from tespec.comparison.records import PER_MICRO_BATCH
from tespec.core.errors import UserError
from tespec.core.settings import suggest

OWN = "task_"  # name prefix of tables of tasks that are not in the paper
PUBLISHED = "published"
NONE = "-"
LABELS = {
    "group": "Group",
    "title": "Method",
    "backbone": "Backbone",
    "arch": "Recurrent",
    "pretraining_data": "Pre-training",
}
RECURRENT = {"recurrent": "yes", "feedforward": "no"}
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
SIGNS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ"  # marks of machines
CELLS = (
    "Measured: mean ± standard deviation over {} and their number (3 of 5: other cells have 5). "
    "Bold: the best measured mean."
)
SEEDS = "seeds"
RUNS = "runs (fine-tuning seeds × pre-training seeds)"
PARTIAL = (
    'Brackets such as "2 of 3 classes" mark means over only some of the classes, recordings or '
    "frames."
)
ACCUMULATED = f"accumulate=N: {PER_MICRO_BATCH} use one of N micro-batches, not the whole batch."
GAINS = (
    "Gain: mean difference over seeds, paired by seed; positive is better, also for error metrics. "
    "n: number of pairs.",
    "p: paired t-test, two-sided; Holm: corrected for all tests of this table. "
    "Bold: p (Holm) below 0.05.",
)
SINGLE = (
    "If all seeds of a method start from one pre-training, its interval excludes the variance "
    "between pre-trainings."
)
SEVERAL = (
    "For multiple pre-trainings, interval and p include the variance between them, pooled over a "
    "column's methods."
)


class Table(NamedTuple):
    """Table to display."""

    title: str  # caption
    # texts; the index contains the row labels, the columns have levels task, metric and source
    cells: pd.DataFrame
    bold: pd.DataFrame  # whether each cell is bold
    notes: tuple[str, ...]  # lines below the table
    data: pd.DataFrame  # numbers behind the table, one per row
    main: str = ""  # title of the main metric
    rules: tuple[int, ...] = ()  # positions of rows that have a rule above them
    grey: tuple[int, ...] = ()  # positions of rows in grey text
    name: str = ""  # of the files

    def measured(self, *, measured_only: bool = True) -> Table | None:
        """Select the measured rows and columns, and the published columns unless `measured_only`.

        Returns:
            The smaller table, without notes on marks that it lacks; None if nothing is measured.
        """
        columns = [column for column in self.cells.columns if MEASURED in str(column[2:])]
        rows = (self.cells[columns] != NONE).any(axis=1).to_numpy()
        if not rows.any():
            return None
        if not measured_only:
            # Columns of the same tasks, or all if an ablation is measured on a task without
            # published ones.
            tasks = {column[0] for column in columns}
            of_tasks = [column for column in self.cells.columns if column[0] in tasks]
            columns = of_tasks if len(of_tasks) > len(columns) else list(self.cells.columns)
        cells = self.cells.loc[rows, columns]
        labels = str(list(cells.index))
        rules = {int(rows[:rule].sum()) for rule in self.rules} - {0, int(rows.sum())}
        return self._replace(
            cells=cells,
            bold=self.bold.loc[rows, columns],
            notes=tuple(note for note in self.notes if note[1:2] != " " or note[0] in labels),
            rules=tuple(sorted(rules)),
            grey=tuple(int(rows[:row].sum()) for row in self.grey if rows[row]),
        )


def make_tables(
    frame: pd.DataFrame,
    *,
    only: Sequence[str] = (),
    measured: bool = False,
    where: Mapping[str, str] = {},
    by: str = "",
) -> list[Table]:
    """Make tables of measured and published numbers.

    Args:
        frame: DataFrame from `tespec.results`.
        only: names of tables; empty: all comparison tables, ablations and tables of custom tasks.
        measured: show only measured rows and columns.
        where: filters by column of the frame, with `*` and `?` as in file names; they replace
            `DEFAULTS`.
        by: column of the frame, one of `LEVELS`, whose values become an additional level of the
            columns.

    Raises:
        UserError: a table, column or value does not exist, a requested table is empty, or all
            tables are.
    """
    chosen, left_out = select(frame, where, by)
    varied, _ = select(frame, where, by, ("variant", "pretraining_overrides"))
    varied = varied[(varied["method"] == ABLATED) & varied["metric"].isin(METRICS)]
    published = published_frame()
    for key in PROTOCOL:
        if key != by:
            published = published[matches(published[key], where.get(key, as_text(DEFAULTS[key])))]
    levels = [by] if by else []
    tasks = chosen.loc[chosen["kind"] == "evaluation", "task"].unique()
    custom = sorted(OWN + task for task in set(tasks) - set(task_titles()))
    compare = partial(
        _comparison, published=published, chosen=chosen, by=levels, measured_only=measured
    )
    makers: dict[str, Callable[[], Table | None]] = {
        **{name: partial(compare, name) for name in TABLES},
        **{
            f"ablation_{name}": partial(_ablation, ablation, varied, levels)
            for name, ablation in read_ablations().items()
        },
        **{re.sub(r"[^\w-]+", "_", name): partial(compare, name) for name in custom},
    }
    for name in set(only) - set(makers):
        raise UserError(f"--only {name}", "no such table", suggest(name, makers))
    remedy = f"run `tespec run` first{''.join(f' ({note})' for note in left_out)}"
    tables = []
    for name in only or makers:
        table = makers[name]()
        table = table.measured() if table and measured else table
        if table:
            data = table.data.assign(table=name)
            tables.append(table._replace(name=name, notes=(*table.notes, *left_out), data=data))
        elif only:
            raise UserError(f"--only {name}", "has no measured results", remedy)
    if not tables:
        raise UserError("tables", "no evaluations to show", remedy)
    return tables


def gains_table(frame: pd.DataFrame, baseline: str, where: Mapping[str, str] = {}) -> Table:
    """Compare all methods with a baseline on the main metric of each task.

    Differences are paired by seed within architecture, network and column of the comparison tables.
    P-values are Holm-corrected over the table. Multiple pre-trainings of a method are averaged, and
    their variance is included. Each version of a method that `where` admits has its own row,
    compared with the newest version of the baseline.

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
    chosen, left_out = select(frame, where)
    chosen = chosen[(chosen["kind"] == "evaluation") & chosen["main"]]
    remedy = f"evaluate a method with `tespec run`{''.join(f' ({note})' for note in left_out)}"
    if chosen.empty:
        raise UserError(
            f"--gains {baseline}",
            "the selection has no main metric over all frames",
            f"leave out --where {' '.join(where)}" if where else remedy,
        )
    change = ["variant", "pretraining_overrides"]
    versions = [name for name in ORIGIN if name in where]
    chosen = chosen.assign(
        column=column_names(chosen, change, versions),
        value=chosen["value"].where(chosen["better"] != "lower", -chosen["value"]),
    ).sort_values(["task", "column", "arch", "title", *change], kind="stable")
    if baseline not in set(chosen["method"]):
        raise UserError(
            f"--gains {baseline}",
            "no evaluation of this method",
            suggest(baseline, chosen["method"].unique()),
        )
    setting = ["task", *(name for name in SETTING if name not in change)]
    pair = [*setting, "arch", "network", "tta"]
    cells_of = dict(list(chosen.groupby([*pair, "method", *change, *versions], sort=False)))
    scores = {key: statistics.scores_by_pretraining(runs) for key, runs in cells_of.items()}
    # The baseline of a pair is its newest version, by its default pre-training if it has one.
    order = sorted(
        cells_of, key=lambda key: (key[len(pair) + 2] == "", cells_of[key]["written"].max())
    )
    bases = {key[: len(pair)]: key for key in order if key[len(pair) :][:2] == (baseline, "")}
    columns = {key: key[: len(setting)] for key in scores}
    spreads = {
        column: statistics.spread_of(scores[key] for key in scores if columns[key] == column)
        for column in set(columns.values())
    }
    rows = []
    has_single = False
    for key, runs in cells_of.items():
        base = bases.get(key[: len(pair)])
        if key == base:
            continue
        first = runs.iloc[0]
        gain = statistics.UNKNOWN._replace(note=f"no {baseline} with {first['backbone']}")
        if base:
            gain = statistics.gain_over(scores[key], scores[base], spreads[columns[key]])
            has_single |= any(
                cell.shape[1] == 1 and statistics.NO_PRETRAINING not in cell
                for cell in (scores[key], scores[base])
            )
            if set(runs["machine"]) != set(cells_of[base]["machine"]):
                gain = gain._replace(note=", ".join(filter(None, [gain.note, "another machine"])))
        facts = first[["task", "column", "method", *change, "title", "arch", "backbone"]].to_dict()
        rows.append(facts | {"baseline": baseline, "metric": first["metric"], **gain._asdict()})
    if not rows:
        raise UserError(f"--gains {baseline}", "no other method to compare with it", remedy)
    data = pd.DataFrame(rows)
    data["p_holm"] = statistics.holm(data["p"])
    cells = pd.DataFrame(
        {
            "Task": data["task"].replace(task_titles()),
            "Data": data["column"].str.removeprefix(f"{MEASURED} ").str.strip("()"),
            "Method": [
                ", ".join(filter(None, texts)) for texts in data[["title", *change]].to_numpy()
            ],
            "Recurrent": data["arch"].map(RECURRENT),
            "Backbone": data["backbone"],
            "Metric": data["metric"].map(_metric_titles(chosen)),
            "gain": _texts(data["mean"], "+.3f"),
            "95 % interval": [
                NONE if pd.isna(low) else f"[{low:+.3f}, {high:+.3f}]"
                for low, high in zip(data["low"], data["high"], strict=True)
            ],
            "p": _texts(data["p"], ".2g"),
            "p (Holm)": _texts(data["p_holm"], ".2g"),
            "n": data["n"].astype(str)
            + data["note"].map(lambda note: f" ({note})" if note else ""),
        }
    ).set_index(["Task", "Data", "Method", "Recurrent", "Backbone", "Metric"])
    bold = pd.DataFrame(False, cells.index, cells.columns).assign(
        gain=(data["p_holm"] < statistics.ALPHA).to_numpy()
    )
    notes = [*GAINS, *([SINGLE] * has_single), *([SEVERAL] * any(spreads.values()))]
    return Table(
        f"Gains over {chosen.loc[chosen['method'] == baseline, 'title'].iloc[0]}",
        cells,
        bold,
        (*notes, *_accumulated(chosen), *left_out),
        data,
        rules=rules_between(data["task"]),
        name=f"gains_{baseline}",
    )


def _comparison(
    name: str, published: pd.DataFrame, chosen: pd.DataFrame, by: Sequence[str], measured_only: bool
) -> Table | None:
    """Comparison table of the paper, or "task_NAME" of another task with its metrics.

    A row whose measured pre-training learned from other data than the published one names both, or
    the measured one if `measured_only`. None if the table has no numbers.
    """
    if name in TABLES:
        paper = read_published(name)
        tasks, titles = titles_of(name)
    else:
        task = name.removeprefix(OWN)
        measured = chosen[chosen["task"] == task]
        scored = measured[measured["better"] != ""]
        paper = {"title": f"Task {task}", "decimals": 3, "marks": {}}
        tasks = {task: task}
        titles = _metric_titles(scored if len(scored) else measured)
    measured = chosen[chosen["task"].isin(tasks) & chosen["metric"].isin(titles)]
    published = published[published["table"] == name]
    # Rows of other publications without a number appear only in the long CSV.
    numbers = published[(published["source"] == PAPER) | published["value"].notna()]
    # Other publications report percentages with at most two decimals.
    is_short = (numbers["source"] != PAPER) & (numbers["unit"] == "%")
    short_texts = _texts(numbers["value"], f".{min(2, paper['decimals'])}f")
    settings = numbers[[key for key in PROTOCOL if key not in by]].to_dict("records")
    numbers = numbers.assign(
        row=numbers["order"],
        source=[
            f"{PUBLISHED} ({name})" if name else PUBLISHED for name in map(setting_name, settings)
        ],
        title=numbers["title"] + numbers["mark"],
        text=_texts(numbers["value"], f".{paper['decimals']}f").mask(is_short, short_texts),
    )
    scores, notes = _scores(measured, by)
    if numbers.empty and scores.empty:
        return None
    scores = _placed(scores, numbers)
    long = _stacked(numbers, scores, by)
    groups = scores.groupby("row")["pretraining_data"]
    measured_data = {row: ", ".join(names.unique()) for row, names in groups}
    pairs = [
        (data, measured_data.get(row, data))
        for row, data in zip(long["row"], long["pretraining_data"], strict=True)
    ]
    long["pretraining_data"] = [
        new if measured_only or new == data else f"{data} ({MEASURED}: {new})"
        for data, new in pairs
    ]
    rows = long.drop_duplicates("row").sort_values("row")
    rows["arch"] = rows["arch"].map(RECURRENT)
    cells, bold = _pivot(tasks, titles, rows["row"], long, by)
    cells.index = bold.index = pd.MultiIndex.from_frame(rows[list(LABELS)].rename(columns=LABELS))
    main = next((titles[metric] for metric in measured.loc[measured["main"], "metric"]), "")
    used = "".join(rows["title"])
    beyond = read_published(BEYOND)["marks"] if name in TABLES else {}
    marks = paper["marks"] | {mark: text for mark, text in beyond.items() if mark in used}
    notes = [*(f"{mark} {text}." for mark, text in marks.items()), *notes]
    return Table(
        paper["title"],
        cells,
        bold,
        tuple(notes),
        _data(published, measured),
        main,
        rules_between(rows["block"]),
    )


def _placed(scores: pd.DataFrame, numbers: pd.DataFrame) -> pd.DataFrame:
    """Assign a table row to the scores: `row`, `block`, `group` and `title`.

    Scores join the published row of the same method, else follow its published rows, else go into a
    separate group.
    """
    published = numbers.drop_duplicates("row").assign(kind="evaluation")
    ranked = published[published["ranked"].eq(True)]
    methods = scores.drop_duplicates(ROW)[[*ROW, "group", "title"]]
    methods = methods.sort_values(["kind", "group", "title", "arch"], ignore_index=True)
    methods["group"] = methods["group"].mask(methods["kind"] == "reference", "References")
    methods["block"] = 100 + pd.factorize(methods["group"])[0]
    shared = methods.groupby("title")["method"].transform("nunique") > 1
    methods["title"] = methods["title"].mask(
        shared, methods["title"] + " (" + methods["method"] + ")"
    )
    last = methods["method"].map(ranked.groupby("method")["row"].max())
    known = last.notna()
    for name in ("block", "group"):
        methods.loc[known, name] = last[known].map(published.set_index("row")[name])
    number = pd.Series(range(len(methods)))
    same = methods.merge(ranked[[*ROW, "row"]], how="left")["row"]
    after_last = last + (number + 1) / 1000
    methods["row"] = same.fillna(after_last).fillna(1000 * methods["block"] + number)
    return scores.drop(columns=["group", "title"]).merge(methods, how="left")


def _ablation(ablation: Ablation, varied: pd.DataFrame, by: Sequence[str]) -> Table | None:
    """Ablation table: published rows, and measured ones by variant; None without either."""
    variants = {variant: position for position, variant in enumerate(ablation.variants)}
    measured = varied[varied["variant"].isin(variants)]
    measured = measured[(measured["variant"] != "") | (measured["pretraining_overrides"] == "")]
    # Show the default row if another row was measured, and other tasks if the ablation's own task
    # was not.
    is_other = measured["variant"] != ""
    columns = measured.loc[is_other, ["task", "arch", "backbone", "column"]].drop_duplicates()
    if ablation.task in set(columns["task"]):
        columns = columns[columns["task"] == ablation.task]
    is_published = any(value is not None for row in ablation.rows for value in row.paper)
    if columns.empty and not is_published:
        return None
    measured = measured.merge(columns)
    # Empty columns cannot be added to the strings that pandas uses if pyarrow is installed.
    if not measured.empty:
        # A row names only the variant, so the column names the rest.
        measured["column"] += measured["arch"].map(
            {"recurrent": "", "feedforward": ", feed-forward"}
        )
        several = measured.groupby(["task", "column"])["backbone"].transform("nunique") > 1
        measured["column"] += (", " + measured["backbone"]).where(several, "")
        groups = measured.groupby(["variant", "task", "column", *by])
        measured["column"] += groups["pretraining_overrides"].transform(_differing)
    scores, notes = _scores(measured, by)
    published = [
        (position, variant, ablation.task, metric, value)
        for (variant, position), row in zip(variants.items(), ablation.rows, strict=True)
        for metric, value in zip(METRICS, row.paper, strict=True)
        if is_published
    ]
    numbers = pd.DataFrame(published, columns=["row", "variant", "task", "metric", "value"])
    numbers = numbers.assign(
        method=ABLATED,
        source=PUBLISHED,
        bold=numbers["variant"] == "",
        text=_texts(numbers["value"], ".3f"),
    )
    long = _stacked(numbers, scores.assign(row=scores["variant"].map(variants)), by)
    _, titles = titles_of("segmentation")
    known = task_titles()
    tasks = {task: known.get(task, task) for task in long["task"].unique()}
    cells, bold = _pivot(tasks, titles, range(len(ablation.rows)), long, by)
    names = [f"{row.name} (default)" if row.default else row.name for row in ablation.rows]
    cells.index = bold.index = pd.Index(names, name=ablation.variable)
    title = f"Ablation: {ablation.title}"
    return Table(title, cells, bold, tuple(notes), _data(numbers, measured), titles[METRICS[0]])


def _differing(overrides: pd.Series[str]) -> pd.Series[str]:
    """Select the settings of each text that some texts lack, as ", KEY=VALUE"; "" for none."""
    settings = overrides.map(lambda text: re.split(r", (?=[\w.]+=)", text))
    common = set.intersection(*map(set, settings)) | {""}
    return settings.map(lambda texts: "".join(f", {text}" for text in texts if text not in common))


def _scores(measured: pd.DataFrame, by: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Average the runs of each cell of a table.

    Returns:
        One row per cell, with its text and whether it is bold, and notes that explain the texts.
    """
    keys = [*ROW, "variant", "pretraining_overrides", "task", "metric", "column", *by]
    groups = measured.groupby([*dict.fromkeys(keys)], sort=False, dropna=False)
    firsts = {
        name: (name, "first") for name in ("unit", "better", "title", "group", "pretraining_data")
    }
    scores = groups.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        n=("value", "size"),
        seeds=("seed", "nunique"),
        pretrainings=("pretraining_seed", "nunique"),
        finite=("value", "count"),
        partial=("partial", "max"),
        machines=("machine", "unique"),
        **firsts,
    ).reset_index()
    is_ranked = scores["kind"] == "evaluation"
    columns = [scores[name] for name in ("task", "metric", "column", *by)]
    # Methods without pre-training have one run per seed, others one per seed and pre-training.
    kinds = [*columns, scores["pretrainings"] > 0]
    most = scores["n"].where(is_ranked).groupby(kinds).transform("max")
    most = most.clip(lower=scores["seeds"].where(is_ranked).groupby(columns).transform("max"))
    most = most.where(is_ranked, scores["n"])
    means = scores["mean"].where(is_ranked & (scores["finite"] == scores["n"]))
    means = means.where(scores["better"] != "lower", -means).where(scores["better"] != "")
    comparable = means.groupby(columns)
    bold = means.eq(comparable.transform("max")) & (comparable.transform("count") > 1)
    names = [name for name, _ in Counter(scores["machines"].explode().dropna()).most_common()]
    marks = {
        name: SIGNS[n] if n < len(SIGNS) else f" [{n + 1}]" for n, name in enumerate(names[1:])
    }
    rows: Any = scores.assign(most=most).itertuples()
    texts = [_cell(row) + "".join(marks.get(name, "") for name in row.machines) for row in rows]
    notes = []
    if len(scores):
        notes.append(CELLS.format(RUNS if (scores["n"] > scores["seeds"]).any() else SEEDS))
    if marks:
        marked = "; ".join(f"{mark} {name}" for name, mark in marks.items())
        notes.append(f"Measured on different machines: {marked.strip()}; unmarked: {names[0]}.")
    notes += [PARTIAL] if (scores["partial"] != "").any() else []
    notes += _accumulated(measured)
    return scores.assign(source=scores["column"], text=texts, bold=bold), notes


def _accumulated(measured: pd.DataFrame) -> list[str]:
    """Note on results of gradient accumulation, which column names mark; empty without any."""
    changed = pd.concat([measured["overrides"], measured["pretraining_overrides"]]).astype(str)
    return [ACCUMULATED] if changed.str.contains("accumulate=").any() else []


def _cell(score: Any) -> str:
    """Format a score as "34.47 ± 0.25 (5)", or "(3 of 5, ...)" with fewer runs or other caveats."""
    if score.finite < score.n:
        return f"not finite ({score.n - score.finite} of {score.n})"
    count = str(score.n) if score.n == score.most else f"{score.n} of {score.most:.0f}"
    count = ", ".join(filter(None, [count, score.partial]))
    small = ".2e" if 0 < abs(score.mean) < 0.01 else ".3f"
    digits = ".2f" if score.unit == "%" else small
    return f"{score.mean:{digits}}{f' ± {score.std:{digits}}' if score.n > 1 else ''} ({count})"


def _stacked(
    published: pd.DataFrame, measured: pd.DataFrame, by: Sequence[str] = ()
) -> pd.DataFrame:
    """Concatenate published and measured numbers; missing values of `by` are empty strings."""
    published = published.assign(**{name: "" for name in by if name not in published})
    return pd.concat([part for part in (published, measured) if len(part)], ignore_index=True)


def _pivot(
    tasks: Mapping[str, str],
    titles: Mapping[str, str],
    rows: Iterable[float],
    long: pd.DataFrame,
    by: Sequence[str],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pivot cells to wide frames of texts and bold flags, with `rows` and columns in order."""
    names = ["task", "metric", "source", *by]
    order = [*tasks, *titles]
    keys = sorted(
        set(long[names].itertuples(index=False, name=None)),
        key=lambda key: (
            order.index(key[0]),
            order.index(key[1], len(tasks)),
            not key[2].startswith(PUBLISHED),
            *key[2:],
        ),
    )
    wide: Any = long.pivot(index="row", columns=names, values=["text", "bold"])
    columns = pd.MultiIndex.from_tuples(keys, names=names)
    cells = wide["text"].reindex(index=list(rows), columns=columns).fillna(NONE)
    bold = wide["bold"].reindex(index=list(rows), columns=columns).eq(True)
    headers = [(tasks[task], titles[metric], *map(as_text, rest)) for task, metric, *rest in keys]
    cells.columns = bold.columns = pd.MultiIndex.from_tuples(headers)
    return cells, bold


def _data(published: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Numbers behind a table: published ones, then one row per record and metric."""
    columns = ["table", "source", *COLUMNS, "mark", "citation", "tta", "bold"]
    return _stacked(published, measured[COLUMNS].assign(source=MEASURED)).reindex(columns=columns)


def _metric_titles(frame: pd.DataFrame) -> dict[str, str]:
    """Titles of metrics with unit and arrow, the main metric first."""
    ordered = frame.sort_values("main", ascending=False, kind="stable").drop_duplicates("metric")
    units = ordered["unit"].map(lambda unit: f" ({unit})" if unit not in ("", "%") else "")
    titles = (
        ordered["metric_title"].astype(str).str.rstrip(" ↑↓")
        + units
        + ordered["better"].map(ARROWS)
    )
    return dict(zip(ordered["metric"], titles, strict=True))


def rules_between(groups: pd.Series[Any]) -> tuple[int, ...]:
    """Positions where a new group begins."""
    return tuple(int(start) for start in np.flatnonzero(groups.ne(groups.shift())) if start)


def _texts(values: pd.Series[float], digits: str) -> pd.Series[str]:
    return values.map(lambda value: NONE if pd.isna(value) else f"{value:{digits}}").astype(object)
