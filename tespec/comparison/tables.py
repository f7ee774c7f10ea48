"""The comparison tables: the published frame and the frame of records, grouped by cell and pivoted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from tespec.comparison.ablations import DECIMALS, METHOD, METRICS, Ablation, read_ablations, variant_name
from tespec.comparison.frame import COLUMNS
from tespec.comparison.published import (
    PAPER,
    TABLES,
    plain_tables,
    published_frame,
    read_beyond,
    read_paper,
    table_of,
)
from tespec.comparison.selection import DEFAULTS, MEASURED, ROW, SETTING, as_text, column_names, near, select
from tespec.comparison.statistics import ALPHA, holm, paired_gain
from tespec.core.errors import UserError

OWN = "task_"  # prefix of the table of a task that the paper does not have
PUBLISHED = "published"
NONE = "-"
LABELS = ["Group", "Method", "Backbone", "Recurrent", "Pre-training"]
RECURRENT = {"recurrent": "yes", "feedforward": "no"}
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
SIGNS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ"
CELLS = "Measured: mean ± standard deviation over seeds, in brackets their number. Bold: the best measured mean."
UNHEALTHY = "rank fell"
COLLAPSED = (
    "rank fell: in a pre-training that it started from, the rank of the last stage's features fell or stayed low."
)
PARTIAL = "Means that leave out classes, recordings or frames name in brackets how many they are over."


class Table(NamedTuple):
    """A table as it is shown.

    Attributes:
        name: of its files.
        title: above it.
        cells: texts; the index holds the labels of the rows, the columns have levels task, metric and source.
        bold: the same shape: whether a cell is set in bold.
        notes: below it.
        data: the numbers behind it, a row each.
        main: title of the metric that methods are judged by.
        rules: positions of rows before which a rule is drawn.
    """

    name: str
    title: str
    cells: pd.DataFrame
    bold: pd.DataFrame
    notes: tuple[str, ...]
    data: pd.DataFrame
    main: str = ""
    rules: tuple[int, ...] = ()

    def measured(self, *, alone: bool = True) -> Table | None:
        """Its rows with measured numbers, and the measured columns, alone or with those beside them; None without."""
        columns = [column for column in self.cells.columns if MEASURED in str(column[2:])]
        rows = (self.cells[columns] != NONE).any(axis=1).to_numpy()
        if not rows.any():
            return None
        if not alone:
            # Of the same tasks; an ablation may have been measured on another one than the paper's.
            beside = [column for column in self.cells.columns if column[0] in {measured[0] for measured in columns}]
            columns = beside if len(beside) > len(columns) else list(self.cells.columns)
        positions = [position for position, kept in enumerate(rows) if kept]
        rules = {sum(kept < rule for kept in positions) for rule in self.rules} - {0, len(positions)}
        cells, bold = self.cells.loc[rows, columns], self.bold.loc[rows, columns]
        notes = tuple(note for note in self.notes if note[1:2] != " " or note[0] in str(list(cells.index)))
        return self._replace(cells=cells, bold=bold, notes=notes, rules=tuple(sorted(rules)))


def make_tables(
    frame: pd.DataFrame,
    *,
    only: Sequence[str] = (),
    measured: bool = False,
    where: Mapping[str, str] | None = None,
    by: str = "",
) -> list[Table]:
    """Tables of a frame of records beside the paper's numbers.

    Args:
        frame: of `tespec.results`.
        only: names of tables; none: the comparison tables, ablations and tables of the user's own tasks.
        measured: measured rows and columns alone.
        where: wanted values by column of the frame, `*` and `?` as in file names; they replace `DEFAULTS`.
        by: column of the frame, one of `LEVELS`, whose values become one more level of the columns.

    Raises:
        UserError: there is no such table, column or value, or nothing was measured of a table that was asked for.
    """
    chosen, left_out = select(frame, where or {}, by)
    varied = select(frame, where or {}, by, ("variant", "pretraining_overrides")).frame
    varied = varied[(varied["method"] == METHOD) & varied["metric"].isin(METRICS)]
    scores, ablated, published = _scores(chosen, by), _scores(varied, by), published_frame()
    for key in ("label_fraction", "frozen"):
        if key != by:
            published = published[published[key].map(as_text) == (where or {}).get(key, as_text(DEFAULTS[key]))]
    tasks = sorted(task for task in chosen.loc[chosen["kind"] == "evaluation", "task"].unique() if not table_of(task))
    makers: dict[str, Callable[[], Table | None]] = {
        **{name: partial(_comparison, name, published, chosen, scores, by) for name in TABLES},
        **{f"ablation_{name}": partial(_ablation, one, varied, ablated, by) for name, one in read_ablations().items()},
        **{
            OWN + re.sub(r"[^\w-]+", "_", task): partial(_own_table, task, published.iloc[:0], chosen, scores, by)
            for task in tasks
        },
        **{name: partial(_plain, name) for name in plain_tables()},
    }
    for name in only:
        if name not in makers:
            raise UserError(f"--only {name}", "no such table", near(name, makers))
    remedy = f"use `tespec run` first{''.join(f' ({note})' for note in left_out)}"
    found = []
    for name in only or (name for name in makers if name not in plain_tables()):
        table = makers[name]()
        table = table.measured() if table and measured else table
        if table:
            notes = table.notes if name in plain_tables() else (*table.notes, *left_out)
            found.append(table._replace(name=name, notes=notes, data=table.data.assign(table=name)))
        elif only:
            raise UserError(f"--only {name}", "nothing was measured of it", remedy)
    if not found:
        raise UserError("tables", "no evaluation to show", remedy)
    return found


def gains_table(frame: pd.DataFrame, baseline: str, where: Mapping[str, str] | None = None) -> Table:
    """Gains of all methods over one on the main metric of each task, from above 0 on better.

    Differences are paired by seed, and by pre-training seed where both have one, within architecture, backbone and
    column of the comparison tables; p is Holm-corrected over the table.

    Raises:
        UserError: there is no evaluation of such a method.
    """
    chosen, left_out = select(frame, where or {})
    chosen = chosen[(chosen["kind"] == "evaluation") & chosen["main"]]
    chosen = chosen.assign(column=column_names(chosen, ("variant", "pretraining_overrides")))
    chosen = chosen.sort_values(["task", "column", "arch", "title", "variant"], kind="stable")
    if baseline not in set(chosen["method"]):
        raise UserError(f"--gains {baseline}", "no evaluation of such a method", near(baseline, chosen["method"]))
    # A variant of a method's pre-training is compared with a baseline without one.
    setting = [name for name in SETTING if name not in ("variant", "pretraining_overrides")]
    pair = ["task", *setting, "arch", "backbone", "tta"]
    bases = dict(list(chosen[(chosen["method"] == baseline) & (chosen["variant"] == "")].groupby(pair)))
    rows = []
    for key, members in chosen.groupby([*pair, "method", "variant"], sort=False):
        first = members.iloc[0]
        if first["method"] == baseline and not first["variant"]:
            continue
        base = bases.get(key[: len(pair)])
        sign = -1.0 if first["better"] == "lower" else 1.0
        gain = paired_gain(() if base is None else [sign * each for each in _differences(members, base)])
        if base is None:
            gain = gain._replace(note=f"no {baseline} with {first['backbone']}")
        elif set(members["machine"]) != set(base["machine"]):
            gain = gain._replace(note="another machine")
        facts = {name: first[name] for name in ("task", "column", "method", "variant", "title", "arch", "backbone")}
        rows.append(facts | {"baseline": baseline, "metric": first["metric"], **gain._asdict()})
    if not rows:
        raise UserError(f"--gains {baseline}", "no other method to compare with it", "run.py --method evaluates one")
    data = pd.DataFrame(rows)
    data["p_holm"] = holm(data["p"].tolist())
    index = {
        "Task": data["task"].map(_task_title),
        "Data": data["column"].str.removeprefix(f"{MEASURED} ").str.strip("()"),
        "Method": data["title"] + data["variant"].map(lambda name: f", {name}" if name else ""),
        "Recurrent": data["arch"].map(RECURRENT),
        "Backbone": data["backbone"],
        "Metric": [_metric_titles(chosen)[name] for name in data["metric"]],
    }
    cells = pd.DataFrame(
        {
            "gain": data["mean"].map(lambda value: _number(value, "+.3f")),
            "95 % interval": [
                NONE if pd.isna(low) else f"[{low:+.3f}, {high:+.3f}]"
                for low, high in zip(data["low"], data["high"], strict=True)
            ],
            "p": data["p"].map(lambda value: _number(value, ".2g")),
            "p (Holm)": data["p_holm"].map(lambda value: _number(value, ".2g")),
            "n": [f"{n} ({why})" if why else str(n) for n, why in zip(data["n"], data["note"], strict=True)],
        }
    )
    cells.index = pd.MultiIndex.from_frame(pd.DataFrame(index))
    bold = pd.DataFrame(False, cells.index, cells.columns)
    bold["gain"] = (data["p_holm"] < ALPHA).to_numpy()
    notes = [
        "Gain: mean difference over seeds, paired by seed; above 0 is better, also of errors. n: number of pairs.",
        "p: paired t-test, two-sided; Holm: corrected for all tests of this table. Bold: p (Holm) below 0.05.",
    ]
    rules = tuple(position for position in range(1, len(data)) if data["task"][position] != data["task"][position - 1])
    title = f"Gains over {chosen.loc[chosen['method'] == baseline, 'title'].iloc[0]}"
    return Table(f"gains_{baseline}", title, cells, bold, (*notes, *left_out), data, rules=rules)


def _differences(members: pd.DataFrame, base: pd.DataFrame) -> list[float]:
    both = members["pretraining_seed"].notna().all() and base["pretraining_seed"].notna().all()
    keys = ["seed", "pretraining_seed"] if both else ["seed"]
    # Pre-training seeds that only one of them has are averaged: a seed is one pair.
    ours, theirs = (each.groupby(keys)["value"].mean() for each in (members, base))
    paired = pd.concat([ours, theirs], axis=1, join="inner", keys=["ours", "theirs"])
    return (paired["ours"] - paired["theirs"]).tolist()


def _comparison(name: str, published: pd.DataFrame, chosen: pd.DataFrame, scores: pd.DataFrame, by: str) -> Table:
    """A comparison table of the paper."""
    paper = read_paper(name)
    published = published[published["table"] == name]
    # Other publications give percentages with two decimals at most.
    fewer = (published["source"] != PAPER) & (published["unit"] == "%")
    texts = _texts(published["value"], paper.decimals), _texts(published["value"], min(2, paper.decimals))
    published = published.assign(text=pd.Series(texts[0], published.index).mask(fewer, texts[1]))
    tasks = {task.name: task.title for task in paper.tasks}
    titles = {metric.name: metric.title for metric in paper.metrics}
    table = _methods(paper.title, tasks, titles, published, chosen, scores, by)
    used = "".join(table.cells.index.get_level_values("Method"))
    marks = paper.marks | {sign: said for sign, said in read_beyond().marks.items() if sign in used}
    return table._replace(notes=(*(f"{sign} {said}." for sign, said in marks.items()), *table.notes))


def _own_table(task: str, nothing: pd.DataFrame, chosen: pd.DataFrame, scores: pd.DataFrame, by: str) -> Table:
    """The table of a task that the paper does not have: its own metrics, measured."""
    measured = chosen[chosen["task"] == task]
    scored = measured[measured["better"] != ""]
    titles = _metric_titles(scored if len(scored) else measured)
    return _methods(f"Task {task}", {task: task}, titles, nothing.assign(text=""), chosen, scores, by)


def _methods(
    title: str,
    tasks: Mapping[str, str],
    titles: Mapping[str, str],
    published: pd.DataFrame,
    chosen: pd.DataFrame,
    scores: pd.DataFrame,
    by: str,
) -> Table:
    """A table with a row for each method, architecture and backbone."""
    measured = chosen[chosen["task"].isin(tasks) & chosen["metric"].isin(titles)]
    # A row of another publication without a published number is in the long CSV alone.
    numbers = published[(published["source"] == PAPER) | published["value"].notna()]
    numbers = numbers.assign(row=numbers["order"], source=PUBLISHED)
    rows: dict[float, tuple[Any, ...]] = {
        row.order: (row.block, row.group, row.title + row.mark, row.backbone, RECURRENT[row.arch], row.pretraining_data)
        for row in _rows(numbers.drop_duplicates("order"))
    }
    scores, machines = _ranked(scores[scores["task"].isin(tasks) & scores["metric"].isin(titles)], by)
    places = _place(scores, numbers, rows)
    scores = scores.assign(row=[places[key] for key in scores[ROW].itertuples(index=False, name=None)])
    cells, bold = _pivot(tasks, titles, sorted(rows), numbers, scores, by)
    labels = [rows[row] for row in sorted(rows)]
    index = pd.MultiIndex.from_tuples([label[1:] for label in labels], names=LABELS)
    cells.index = bold.index = index
    rules = tuple(place for place in range(1, len(labels)) if labels[place][0] != labels[place - 1][0])
    main = next((titles[each] for each in measured.loc[measured["main"], "metric"]), "")
    notes = (CELLS, *machines) if len(scores) else ()
    return Table("", title, cells, bold, notes, _data(published, measured), main, rules)


def _place(scores: pd.DataFrame, numbers: pd.DataFrame, rows: dict[float, tuple[Any, ...]]) -> dict[Hashable, float]:
    """Position of each measured row: the published one, behind the method's published rows, or in a group of its own.

    Adds rows that are not published to `rows`.
    """
    ranked = numbers[numbers["ranked"].eq(True)].drop_duplicates("order").assign(kind="evaluation")
    published = ranked.set_index(ROW)["order"]
    places: dict[Hashable, float] = {}
    methods = scores.drop_duplicates(ROW).sort_values(["kind", "group", "title", "arch"])
    methods.loc[methods["kind"] == "reference", "group"] = "References"
    groups = {name: 100 + number for number, name in enumerate(methods["group"].unique())}
    for number, score in enumerate(_rows(methods)):
        key = tuple(getattr(score, name) for name in ROW)
        shared = (methods["title"] == score.title) & (methods["method"] != score.method)
        title = f"{score.title} ({score.method})" if shared.any() else score.title
        label = (title, score.backbone, RECURRENT[score.arch], score.pretraining_data)
        behind = published[published.index.get_level_values("method") == score.method]
        if key in published.index:
            places[key] = published[key]
        elif len(behind):
            places[key] = behind.max() + (number + 1) / 1000
            rows[places[key]] = (*rows[behind.max()][:2], *label)
        else:
            places[key] = 1000 * groups[score.group] + number
            rows[places[key]] = (groups[score.group], score.group, *label)
    return places


def _ablation(ablation: Ablation, varied: pd.DataFrame, scores: pd.DataFrame, by: str) -> Table | None:
    """An ablation: published rows, and measured ones by the name of their variant; None without either."""
    variants = {variant_name(ablation, row): position for position, row in enumerate(ablation.rows)}
    scores = scores[scores["variant"].isin(variants)]
    scores = scores[(scores["variant"] != "") | (scores["pretraining_overrides"] == "")]
    # The default row is shown where another row was measured; other tasks where the ablation's own was not.
    places = scores.loc[scores["variant"] != "", ["task", "arch", "column"]].drop_duplicates()
    places = places[places["task"] == ablation.task] if ablation.task in set(places["task"]) else places
    if places.empty and not ablation.has_published:
        return None
    measured = varied[varied["variant"].isin(variants)].merge(places)
    scores = scores.merge(places)
    scores["column"] += scores["arch"].map({"recurrent": "", "feedforward": ", feed-forward"})
    scores, machines = _ranked(scores, by)
    published = [
        {"row": position, "variant": variant, "task": ablation.task, "metric": metric, "value": value}
        for (variant, position), row in zip(variants.items(), ablation.rows, strict=True)
        for metric, value in zip(METRICS, row.paper, strict=True)
        if ablation.has_published
    ]
    numbers = pd.DataFrame(published, columns=["row", "variant", "task", "metric", "value"])
    numbers = numbers.assign(
        method=METHOD, source=PUBLISHED, bold=numbers["variant"] == "", text=_texts(numbers["value"], DECIMALS)
    )
    scores["row"] = scores["variant"].map(variants)
    titles = {metric.name: metric.title for metric in read_paper("segmentation").metrics}
    tasks = {task: _task_title(task) for task in [*numbers["task"], *scores["task"]]}
    cells, bold = _pivot(tasks, titles, range(len(ablation.rows)), numbers, scores, by)
    names = [f"{row.name} (default)" if row.default else row.name for row in ablation.rows]
    cells.index = bold.index = pd.Index(names, name=ablation.variable)
    title, notes = f"Ablation: {ablation.title}", (CELLS, *machines) if len(scores) else ()
    return Table("", title, cells, bold, notes, _data(numbers, measured), titles[METRICS[0]])


def _plain(name: str) -> Table:
    """A table of the paper's settings or costs."""
    table = plain_tables()[name]
    rows = [(group.heading or "", *row) for group in table.groups for row in group.rows]
    labels = ["Group", " ".join(table.columns[0])]
    columns = [" ".join(headers) for headers in table.columns[1:]]
    cells = pd.DataFrame([row[2:] for row in rows], columns=columns)
    cells.index = pd.MultiIndex.from_tuples([row[:2] for row in rows], names=labels)
    data = cells.reset_index()
    return Table(name, table.title, cells, cells == "", ("As published; nothing here is measured.",), data)


def _scores(measured: pd.DataFrame, by: str) -> pd.DataFrame:
    """A row for each measured cell: mean, std, n, how many values are finite, machines and facts of the method."""
    keys = [*ROW, "variant", "pretraining_overrides", "task", "metric", "column", by]
    groups = measured.groupby([key for key in dict.fromkeys(keys) if key], sort=False, dropna=False)
    scores = groups.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        n=("value", "size"),
        finite=("value", "count"),
        classes=("classes", "min"),
        recordings=("recordings", "min"),
        partial=("partial", "max"),
        unhealthy=("unhealthy", "max"),
        **{name: (name, "first") for name in ("unit", "better", "title", "group", "pretraining_data")},
    )  # fmt: skip
    return scores.assign(machines=groups["machine"].unique()).reset_index()


def _ranked(scores: pd.DataFrame, by: str) -> tuple[pd.DataFrame, list[str]]:
    """Scores of one table with `source`, `text` and `bold` of their cells, and a note on machines."""
    is_ranked = scores["kind"] == "evaluation"
    columns = [scores[name] for name in ("task", "metric", "column", *([by] if by else []))]
    most = scores[["n", "classes", "recordings"]].where(is_ranked).groupby(columns).transform("max")
    means = scores["mean"].where(is_ranked & (scores["finite"] == scores["n"]))
    means = means.where(scores["better"] != "lower", -means).where(scores["better"] != "")
    groups = means.groupby(columns)
    bold = means.eq(groups.transform("max")) & (groups.transform("count") > 1)
    signs, notes = _machines(scores["machines"])
    texts = [
        _cell(score, siblings) + "".join(signs.get(name, "") for name in score.machines)
        for score, siblings in zip(_rows(scores), _rows(most), strict=True)
    ]
    notes = [*notes, PARTIAL] if any(" of " in text.partition(", ")[2] for text in texts) else notes
    notes = [*notes, COLLAPSED] if scores["unhealthy"].any() else notes
    return scores.assign(source=scores["column"], text=texts, bold=bold), notes


def _cell(score: Any, most: Any) -> str:
    """As "34.47 ± 0.25 (5)", with how many seeds, classes or recordings where it has fewer than its siblings or all."""
    if score.finite < score.n:
        return f"not finite ({score.n - score.finite} of {score.n})"
    is_reference = score.kind == "reference"
    counts = [str(score.n) if is_reference or score.n == most.n else f"{score.n} of {most.n:.0f}"]
    for name in ("classes", "recordings"):
        if not is_reference and getattr(score, name) < getattr(most, name):
            counts.append(f"{getattr(score, name)} of {getattr(most, name):.0f} {name}")
    count = ", ".join(dict.fromkeys([*counts, *filter(None, [score.partial, UNHEALTHY * score.unhealthy])]))
    digits = ".2f" if score.unit == "%" else ".3f" if abs(score.mean) >= 0.01 or score.mean == 0 else ".2e"
    return f"{score.mean:{digits}}{f' ± {score.std:{digits}}' if score.n > 1 else ''} ({count})"


def _machines(machines: pd.Series[Any]) -> tuple[dict[str, str], list[str]]:
    """Signs of all machines but the most frequent one, and the note that explains them."""
    names = [name for name, _ in Counter(name for several in machines for name in several).most_common()]
    if len(names) < 2:
        return {}, []
    signs = {name: SIGNS[place] if place < len(SIGNS) else f" [{place + 1}]" for place, name in enumerate(names[1:])}
    said = "; ".join(f"{sign} {name}" for name, sign in signs.items())
    return signs, [f"Measured on different machines: {said.strip()}; without a sign {names[0]}."]


def _pivot(
    tasks: Mapping[str, str],
    titles: Mapping[str, str],
    rows: Iterable[float],
    numbers: pd.DataFrame,
    scores: pd.DataFrame,
    by: str,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Published and measured cells as wide frames of texts and bold: rows by position, columns in order."""
    names = ["task", "metric", "source", *([by] if by else [])]
    parts = [numbers if by in ("", *numbers) else numbers.assign(**{by: ""}), scores]
    long = pd.concat([part[["row", *names, "text", "bold"]] for part in parts if len(part)], ignore_index=True)
    columns, metrics = list(tasks), list(titles)
    keys = sorted(
        set(long[names].itertuples(index=False, name=None)),
        key=lambda key: (columns.index(key[0]), metrics.index(key[1]), key[2] != PUBLISHED, *key[2:]),
    )
    wide: Any = long.pivot(index="row", columns=names, values=["text", "bold"])
    order = pd.MultiIndex.from_tuples(keys, names=names)
    cells = wide["text"].reindex(index=list(rows), columns=order).fillna(NONE)
    bold = wide["bold"].reindex(index=list(rows), columns=order).eq(True)
    headers = [(tasks[task], titles[metric], *map(as_text, rest)) for task, metric, *rest in keys]
    cells.columns = bold.columns = pd.MultiIndex.from_tuples(headers)
    return cells, bold


def _data(published: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The numbers behind a table: published ones, then one row for each record and metric."""
    parts = [part for part in (published, measured[COLUMNS].assign(source=MEASURED)) if len(part)]
    return pd.concat(parts, ignore_index=True).reindex(
        columns=["table", "source", *COLUMNS, "mark", "citation", "tta", "bold"]
    )


def _metric_titles(frame: pd.DataFrame) -> dict[str, str]:
    """Titles of metrics with their unit and an arrow, the main one first."""
    ordered = frame.sort_values("main", ascending=False, kind="stable").drop_duplicates("metric")
    return {
        row.metric: f"{str(row.metric_title).rstrip(' ↑↓')}{f' ({row.unit})' if row.unit not in ('', '%') else ''}"
        f"{ARROWS[row.better]}"
        for row in _rows(ordered)
    }


def _task_title(task: str) -> str:
    name = table_of(task)
    return next((each.title for each in read_paper(name).tasks if each.name == task), task) if name else task


def _rows(frame: pd.DataFrame) -> Iterable[Any]:
    return frame.itertuples()


def _texts(values: pd.Series[float], decimals: int) -> list[str]:
    return [_number(value, f".{decimals}f") for value in values]


def _number(value: float, digits: str) -> str:
    return NONE if pd.isna(value) else f"{value:{digits}}"
