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
LABELS = {"group": "Group", "title": "Method", "backbone": "Backbone", "arch": "Recurrent",
          "pretraining_data": "Pre-training"}  # fmt: skip
RECURRENT = {"recurrent": "yes", "feedforward": "no"}
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
SIGNS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ"  # marks of machines
CELLS = (
    "Measured: mean ± standard deviation over {} and their number (3 of 5: other cells have 5). "
    "Bold: the best measured mean."
)
SEEDS, RUNS = "seeds", "runs (fine-tuning seeds × pre-training seeds)"
PARTIAL = 'Brackets such as "2 of 3 classes" mark means over only some of the classes, recordings or frames.'
ACCUMULATED = f"accumulate=N: {PER_MICRO_BATCH} use one of N micro-batches, not the whole batch."
GAINS = (
    "Gain: mean difference over seeds, paired by seed; positive is better, also for error metrics. n: number of pairs.",
    "p: paired t-test, two-sided; Holm: corrected for all tests of this table. Bold: p (Holm) below 0.05.",
)
SINGLE = "If all seeds of a method start from one pre-training, its interval excludes the variance between pre-trainings."
SEVERAL = "For multiple pre-trainings, interval and p include the variance between them, pooled over a column's methods."


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
    name: str = ""  # of the files

    def measured(self, *, alone: bool = True) -> Table | None:
        """Keep the measured rows and columns, and the published columns unless `alone`; None if nothing is measured."""
        columns = [column for column in self.cells.columns if MEASURED in str(column[2:])]
        rows = (self.cells[columns] != NONE).any(axis=1).to_numpy()
        if not rows.any():
            return None
        if not alone:
            # Columns of the same tasks, or all if an ablation is measured on a task without
            # published ones.
            tasks = {column[0] for column in columns}
            beside = [column for column in self.cells.columns if column[0] in tasks]
            columns = beside if len(beside) > len(columns) else list(self.cells.columns)
        rules = {int(rows[:rule].sum()) for rule in self.rules} - {0, int(rows.sum())}
        cells, bold = self.cells.loc[rows, columns], self.bold.loc[rows, columns]
        notes = tuple(
            note for note in self.notes if note[1:2] != " " or note[0] in str(list(cells.index))
        )
        return self._replace(cells=cells, bold=bold, notes=notes, rules=tuple(sorted(rules)))


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
        only: names of tables; empty: all comparison tables, ablations and tables of the user's own
            tasks.
        measured: keep only measured rows and columns.
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
    published, levels = published_frame(), [by] if by else []
    for key in PROTOCOL:
        if key != by:
            published = published[matches(published[key], where.get(key, as_text(DEFAULTS[key])))]
    tasks = chosen.loc[chosen["kind"] == "evaluation", "task"].unique()
    own = sorted(OWN + task for task in set(tasks) - set(task_titles()))
    makers: dict[str, Callable[[], Table | None]] = {
        **{
            name: partial(_comparison, name, published, chosen, levels, measured) for name in TABLES
        },
        **{
            f"ablation_{name}": partial(_ablation, one, varied, levels)
            for name, one in read_ablations().items()
        },
        **{
            re.sub(r"[^\w-]+", "_", name): partial(
                _comparison, name, published, chosen, levels, measured
            )
            for name in own
        },
    }
    for name in set(only) - set(makers):
        raise UserError(f"--only {name}", "no such table", suggest(name, makers))
    remedy = f"run `tespec run` first{''.join(f' ({note})' for note in left_out)}"
    found = []
    for name in only or makers:
        table = makers[name]()
        table = table.measured() if table and measured else table
        if table:
            data = table.data.assign(table=name)
            found.append(table._replace(name=name, notes=(*table.notes, *left_out), data=data))
        elif only:
            raise UserError(f"--only {name}", "has no measured results", remedy)
    if not found:
        raise UserError("tables", "no evaluations to show", remedy)
    return found


def gains_table(frame: pd.DataFrame, baseline: str, where: Mapping[str, str] = {}) -> Table:
    """Compare all methods with a baseline on the main metric of each task; gains above 0 are better.

    Differences are paired by seed within architecture, network and column of the comparison tables.
    P-values are Holm-corrected over the table. Multiple pre-trainings of a method are averaged, and
    their variance is included. Each version of a method that `where` admits has its own row,
    compared with the newest version of the baseline.

    Raises:
        UserError: the baseline, or any other method, has no evaluation, or `where` has an unknown
            column or value.
    """
    chosen, left_out = select(frame, where)
    chosen = chosen[(chosen["kind"] == "evaluation") & chosen["main"]]
    hidden = "".join(f" ({note})" for note in left_out)
    if chosen.empty:
        remedy = (
            f"leave out --where {' '.join(where)}"
            if where
            else f"evaluate a method with `tespec run`{hidden}"
        )
        raise UserError(
            f"--gains {baseline}", "the selection has no main metric over all frames", remedy
        )
    value = chosen["value"].where(chosen["better"] != "lower", -chosen["value"])
    change, versions = (
        ["variant", "pretraining_overrides"],
        [name for name in ORIGIN if name in where],
    )
    chosen = chosen.assign(column=column_names(chosen, change, versions), value=value)
    chosen = chosen.sort_values(["task", "column", "arch", "title", *change], kind="stable")
    if baseline not in set(chosen["method"]):
        known = [*chosen["method"].unique()]
        raise UserError(
            f"--gains {baseline}", "no evaluation of this method", suggest(baseline, known)
        )
    setting = ["task", *(name for name in SETTING if name not in change)]
    pair = [*setting, "arch", "network", "tta"]
    cells_of = dict(list(chosen.groupby([*pair, "method", *change, *versions], sort=False)))
    scores = {key: statistics.scores_by_pretraining(members) for key, members in cells_of.items()}
    # Each is compared with the newest version of the baseline, by its default pre-training if there
    # is one.
    order = sorted(
        cells_of, key=lambda key: (key[len(pair) + 2] == "", cells_of[key]["written"].max())
    )
    bases = {key[: len(pair)]: key for key in order if key[len(pair) :][:2] == (baseline, "")}
    spreads = {
        place: statistics.spread_of(
            each for key, each in scores.items() if key[: len(setting)] == place
        )
        for place in {key[: len(setting)] for key in scores}
    }
    rows, has_single = [], False
    for key, members in cells_of.items():
        base, first = bases.get(key[: len(pair)]), members.iloc[0]
        if key == base:
            continue
        gain = statistics.UNKNOWN._replace(note=f"no {baseline} with {first['backbone']}")
        if base:
            both = scores[key], scores[base]
            gain = statistics.gain_over(*both, spreads[key[: len(setting)]])
            has_single |= any(
                each.shape[1] == 1 and statistics.NO_PRETRAINING not in each for each in both
            )
            if set(members["machine"]) != set(cells_of[base]["machine"]):
                gain = gain._replace(note=", ".join(filter(None, [gain.note, "another machine"])))
        facts = {
            name: first[name]
            for name in ("task", "column", "method", *change, "title", "arch", "backbone")
        }
        rows.append(facts | {"baseline": baseline, "metric": first["metric"], **gain._asdict()})
    if not rows:
        raise UserError(
            f"--gains {baseline}",
            "no other method to compare with it",
            f"evaluate one with `tespec run`{hidden}",
        )
    data = pd.DataFrame(rows)
    data["p_holm"] = statistics.holm(data["p"])
    low, high = (_texts(data[name], "+.3f") for name in ("low", "high"))
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
            "95 % interval": ("[" + low + ", " + high + "]").where(low != NONE, NONE),
            "p": _texts(data["p"], ".2g"),
            "p (Holm)": _texts(data["p_holm"], ".2g"),
            "n": data["n"].astype(str) + data["note"].map(lambda why: f" ({why})" if why else ""),
        }
    ).set_index(["Task", "Data", "Method", "Recurrent", "Backbone", "Metric"])
    bold = pd.DataFrame(False, cells.index, cells.columns).assign(
        gain=(data["p_holm"] < statistics.ALPHA).to_numpy()
    )
    title = f"Gains over {chosen.loc[chosen['method'] == baseline, 'title'].iloc[0]}"
    notes = [*GAINS, *([SINGLE] * has_single), *([SEVERAL] * any(spreads.values()))]
    notes += [*_accumulated(chosen), *left_out]
    return Table(
        title,
        cells,
        bold,
        tuple(notes),
        data,
        rules=rules_between(data["task"]),
        name=f"gains_{baseline}",
    )


def _comparison(
    name: str, published: pd.DataFrame, chosen: pd.DataFrame, by: Sequence[str], alone: bool
) -> Table | None:
    """Comparison table of the paper, or "task_NAME" of another task with its own metrics; None without any numbers.

    A row whose measured pre-training saw other data than the published one names both, or its own
    if shown `alone`.
    """
    if name in TABLES:
        paper, (tasks, titles) = read_published(name), titles_of(name)
    else:
        task = name.removeprefix(OWN)
        measured = chosen[chosen["task"] == task]
        scored = measured[measured["better"] != ""]
        paper, tasks = {"title": f"Task {task}", "decimals": 3, "marks": {}}, {task: task}
        titles = _metric_titles(scored if len(scored) else measured)
    measured = chosen[chosen["task"].isin(tasks) & chosen["metric"].isin(titles)]
    published = published[published["table"] == name]
    # Rows of other publications without a number appear only in the long CSV.
    numbers = published[(published["source"] == PAPER) | published["value"].notna()]
    # Other publications report percentages with at most two decimals.
    fewer = (numbers["source"] != PAPER) & (numbers["unit"] == "%")
    texts, cut = (
        _texts(numbers["value"], f".{digits}f")
        for digits in (paper["decimals"], min(2, paper["decimals"]))
    )
    names = map(
        setting_name, numbers[[key for key in PROTOCOL if key not in by]].to_dict("records")
    )
    sources = [f"{PUBLISHED} ({setting})" if setting else PUBLISHED for setting in names]
    title = numbers["title"] + numbers["mark"]
    numbers = numbers.assign(
        row=numbers["order"], source=sources, title=title, text=texts.mask(fewer, cut)
    )
    scores, notes = _scores(measured, by)
    if numbers.empty and scores.empty:
        return None
    placed = _placed(scores, numbers)
    long = _stacked(numbers, placed, by)
    learned = {
        row: ", ".join(dict.fromkeys(names))
        for row, names in placed.groupby("row")["pretraining_data"]
    }
    pairs = [
        (name, learned.get(row, name))
        for row, name in zip(long["row"], long["pretraining_data"], strict=True)
    ]
    long["pretraining_data"] = [
        data if alone or data == name else f"{name} ({MEASURED}: {data})" for name, data in pairs
    ]
    rows = (
        long.drop_duplicates("row")
        .sort_values("row")
        .assign(arch=lambda rows: rows["arch"].map(RECURRENT))
    )
    cells, bold = _pivot(tasks, titles, rows["row"], long, by)
    cells.index = bold.index = pd.MultiIndex.from_frame(rows[list(LABELS)].rename(columns=LABELS))
    main = next((titles[each] for each in measured.loc[measured["main"], "metric"]), "")
    used = "".join(rows["title"])
    beyond = read_published(BEYOND)["marks"] if name in TABLES else {}
    marks = paper["marks"] | {sign: said for sign, said in beyond.items() if sign in used}
    notes = [*(f"{sign} {said}." for sign, said in marks.items()), *notes]
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
    methods["row"] = same.fillna(last + (number + 1) / 1000).fillna(
        1000 * methods["block"] + number
    )
    return scores.drop(columns=["group", "title"]).merge(methods, how="left")


def _ablation(ablation: Ablation, varied: pd.DataFrame, by: Sequence[str]) -> Table | None:
    """Ablation table: published rows, and measured ones by variant; None without either."""
    variants = {variant: position for position, variant in enumerate(ablation.variants)}
    measured = varied[varied["variant"].isin(variants)]
    measured = measured[(measured["variant"] != "") | (measured["pretraining_overrides"] == "")]
    # Show the default row if another row was measured, and other tasks if the ablation's own task
    # was not.
    places = measured.loc[
        measured["variant"] != "", ["task", "arch", "backbone", "column"]
    ].drop_duplicates()
    places = (
        places[places["task"] == ablation.task] if ablation.task in set(places["task"]) else places
    )
    is_published = any(value is not None for row in ablation.rows for value in row.paper)
    if places.empty and not is_published:
        return None
    measured = measured.merge(places)
    if (
        not measured.empty
    ):  # empty columns cannot be added to the strings that pandas uses if pyarrow is installed
        # A row names only the variant, so the column names the rest.
        measured["column"] += measured["arch"].map(
            {"recurrent": "", "feedforward": ", feed-forward"}
        )
        several = measured.groupby(["task", "column"])["backbone"].transform("nunique") > 1
        measured["column"] += (", " + measured["backbone"]).where(several, "")
        alike = measured.groupby(["variant", "task", "column", *by])
        measured["column"] += alike["pretraining_overrides"].transform(_differing)
    scores, notes = _scores(measured, by)
    published = [
        {
            "row": position,
            "variant": variant,
            "task": ablation.task,
            "metric": metric,
            "value": value,
        }
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
    titles = titles_of("segmentation")[1]
    of_tasks = task_titles()
    tasks = {task: of_tasks.get(task, task) for task in long["task"].unique()}
    cells, bold = _pivot(tasks, titles, range(len(ablation.rows)), long, by)
    names = [f"{row.name} (default)" if row.default else row.name for row in ablation.rows]
    cells.index = bold.index = pd.Index(names, name=ablation.variable)
    title = f"Ablation: {ablation.title}"
    return Table(title, cells, bold, tuple(notes), _data(numbers, measured), titles[METRICS[0]])


def _differing(overrides: pd.Series[str]) -> pd.Series[str]:
    """Keep the settings of each text that not all of them have, as ", KEY=VALUE"; "" for none."""
    settings = overrides.map(lambda text: re.split(r", (?=[\w.]+=)", text))
    common = set.intersection(*map(set, settings)) | {""}
    return settings.map(
        lambda each: "".join(f", {setting}" for setting in each if setting not in common)
    )


def _scores(measured: pd.DataFrame, by: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """One row per measured cell of a table, with its text and whether it is bold, and notes that explain them."""
    keys = dict.fromkeys(
        [*ROW, "variant", "pretraining_overrides", "task", "metric", "column", *by]
    )
    groups = measured.groupby([*keys], sort=False, dropna=False)
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
    best, count = (means.groupby(columns).transform(name) for name in ("max", "count"))
    bold = means.eq(best) & (count > 1)
    names = [name for name, _ in Counter(scores["machines"].explode().dropna()).most_common()]
    signs = {
        name: SIGNS[n] if n < len(SIGNS) else f" [{n + 1}]" for n, name in enumerate(names[1:])
    }
    rows: Any = scores.assign(most=most).itertuples()
    texts = [_cell(row) + "".join(signs.get(name, "") for name in row.machines) for row in rows]
    notes = (
        [CELLS.format(RUNS if (scores["n"] > scores["seeds"]).any() else SEEDS)]
        if len(scores)
        else []
    )
    if signs:
        said = "; ".join(f"{sign} {name}" for name, sign in signs.items())
        notes.append(f"Measured on different machines: {said.strip()}; unmarked: {names[0]}.")
    notes += [PARTIAL] if (scores["partial"] != "").any() else []
    notes += _accumulated(measured)
    return scores.assign(source=scores["column"], text=texts, bold=bold), notes


def _accumulated(measured: pd.DataFrame) -> list[str]:
    """Note on results of gradient accumulation, which column names mark; empty without any."""
    changed = pd.concat([measured["overrides"], measured["pretraining_overrides"]]).astype(str)
    return [ACCUMULATED] if changed.str.contains("accumulate=").any() else []


def _cell(score: Any) -> str:
    """Format a score as "34.47 ± 0.25 (5)", or "(3 of 5)" if other cells have more runs, followed by any caveats."""
    if score.finite < score.n:
        return f"not finite ({score.n - score.finite} of {score.n})"
    count = str(score.n) if score.n == score.most else f"{score.n} of {score.most:.0f}"
    count = ", ".join(filter(None, [count, score.partial]))
    digits = (
        ".2f"
        if score.unit == "%"
        else ".3f"
        if abs(score.mean) >= 0.01 or score.mean == 0
        else ".2e"
    )
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
    """Pivot cells to wide frames of texts and bold flags, with rows by position and columns in order."""
    names = ["task", "metric", "source", *by]
    columns, metrics = list(tasks), list(titles)
    keys = sorted(
        set(long[names].itertuples(index=False, name=None)),
        key=lambda key: (
            columns.index(key[0]),
            metrics.index(key[1]),
            not key[2].startswith(PUBLISHED),
            *key[2:],
        ),
    )
    wide: Any = long.pivot(index="row", columns=names, values=["text", "bold"])
    order = pd.MultiIndex.from_tuples(keys, names=names)
    cells = wide["text"].reindex(index=list(rows), columns=order).fillna(NONE)
    bold = wide["bold"].reindex(index=list(rows), columns=order).eq(True)
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
    return tuple(int(place) for place in np.flatnonzero(groups.ne(groups.shift())) if place)


def _texts(values: pd.Series[float], digits: str) -> pd.Series[str]:
    return values.map(lambda value: NONE if pd.isna(value) else f"{value:{digits}}").astype(object)
