"""Comparison tables: published numbers and records, averaged by cell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tespec.comparison import published as paper
from tespec.comparison.ablation import match_rows
from tespec.comparison.frame import (
    COLUMNS,
    DEFAULTS,
    MEASURED,
    PROTOCOL,
    ROW,
    as_text,
    distinguished,
    matches,
    select,
)
from tespec.comparison.published import ABLATED, METRICS, NONE, TABLES, Ablation
from tespec.comparison.records import PER_MICRO_BATCH
from tespec.core.errors import UserError
from tespec.core.settings import suggest

CUSTOM = "task_"  # name prefix of tables of tasks that are not in the paper
PUBLISHED = "published"
RECURRENT = {"recurrent": "yes", "feedforward": "no"}
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
SIGNS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ"  # marks of machines
# names of the row labels, by column of the frame
LABELS = {
    "group": "Group",
    "label": "Method",
    "network": "Backbone",
    "arch": "Recurrent",
    "pretraining_data": "Pre-training",
}
AVERAGED = (
    "Measured: mean ± standard deviation over runs (seeds of fine-tuning and pre-training) and "
    "their number (3 of 5: other cells have 5). Bold: the best measured mean."
)
PARTIAL = (
    'Brackets such as "2 of 3 classes" mark means over only some of the classes, recordings or '
    "frames."
)
ACCUMULATED = f"accumulate=N: {PER_MICRO_BATCH} use one of N micro-batches, not the whole batch."
# Number of a table by column of the frame. `place` orders the rows; `text`, `bold` and `source` are
# shown, `level` is the value of a further level of columns.
Number = dict[str, Any]


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

    def measured(self) -> Table | None:
        """Select the measured rows and columns; None if there are none."""
        columns = [column for column in self.cells.columns if MEASURED in column[2]]
        rows = np.flatnonzero((self.cells[columns] != NONE).any(axis=1))
        rules = {int(np.searchsorted(rows, rule)) for rule in self.rules} - {0, len(rows)}
        table = self._replace(
            cells=self.cells[columns].iloc[rows],
            bold=self.bold[columns].iloc[rows],
            notes=tuple(note for note in self.notes if note[1:2] != " "),  # without marks
            rules=tuple(sorted(rules)),
            grey=(),
        )
        return table if len(rows) else None


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

    Returns:
        Tables, whose names and captions state the selection.

    Raises:
        UserError: a table, column or value does not exist, a requested table is empty, or all
            tables are.
    """
    runs, left_out = select(frame, where, by)
    varied, of_ablations = select(frame, where, by, ["pretraining_overrides"])
    published = paper.published_frame()
    lifted = {by, *(PROTOCOL if "evaluation" in {*where, by} else [])}
    for key in {*PROTOCOL, "evaluation"}:
        if key in where or key not in lifted:
            pattern = where.get(key, as_text(DEFAULTS.get(key, "*")))
            published = published[matches(published[key], pattern)]
    tasks = {*runs.loc[runs["kind"] == "evaluation", "task"]} - {*paper.task_titles()}
    custom = {_file_name(CUSTOM + task): task for task in sorted(tasks)}
    ablations = {f"ablation_{name}": table for name, table in paper.read_ablations().items()}
    names = [*TABLES, *ablations, *custom]
    for name in only:
        if name not in names:
            raise UserError(f"--only {name}", "no such table", suggest(name, names))
    scores = averaged(varied, by)
    cells = {*runs["cell"]}
    compared = [score for score in scores if score["cell"] in cells]
    tables = []
    for name in only or names:
        notes = left_out
        if name in ablations:
            notes = of_ablations
            table = _ablation(ablations[name], scores, varied, published, by)
        else:
            of_table = published[published["table"] == name]
            table = _comparison(custom.get(name, ""), name, compared, runs, of_table, by)
        if table and measured:
            table = table.measured()
        if table:
            tables.append(selected(table._replace(name=name), notes, where, by, measured))
    remedy = f"run `tespec run` first{''.join(f' ({note})' for note in left_out)}"
    if len(tables) < len(only):
        raise UserError(f"--only {' '.join(only)}", "has no measured results", remedy)
    if not tables:
        raise UserError("tables", "no evaluations to show", remedy)
    return tables


def selected(
    table: Table,
    notes: Iterable[str],
    where: Mapping[str, str],
    by: str = "",
    measured: bool = False,
) -> Table:
    """State the selection in a table's name and caption, and add notes.

    Args:
        table: with its plain name and caption.
        notes: added to the others.
        where: as in `make_tables`, like the following.
        by: an additional level.
        measured: whether it shows only measured rows.
    """
    words = ["measured rows"] * measured + [f"{key} = {value}" for key, value in where.items()]
    words += [f"by {by}"] * bool(by)
    parts = [table.name, *["measured"] * measured, *map("-".join, where.items())]
    return table._replace(
        title=", ".join([table.title, "; ".join(words)]) if words else table.title,
        name=_file_name("_".join([*parts, *[f"by_{by}"] * bool(by)])),
        notes=(*table.notes, *notes),
        data=table.data.assign(table=table.name),
    )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def averaged(runs: pd.DataFrame, by: str = "") -> list[Number]:
    """Average the runs of each cell.

    Args:
        runs: from `select`.
        by: column whose values are averaged separately.

    Returns:
        Columns of the first run of each cell, metric and group of frames, and: `level` (the text of
        `by`), mean, std, n, seeds, pretrainings (their numbers), machines, and text, such as
        "34.47 ± 0.25 (3 of 5)" if other cells of a column have five runs.
    """
    draws = runs["pretraining_seed"].astype(object).where(runs["weights"] == "", runs["weights"])
    keys = dict.fromkeys(["cell", "metric", "frames", *([by] if by else [])])
    groups = runs.assign(draw=draws).groupby([*keys], sort=False, dropna=False)
    numbers = groups.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        n=("value", "size"),
        finite=("value", "count"),
        seeds=("seed", "nunique"),
        pretrainings=("draw", "nunique"),
        partial=("partial", "max"),
        machines=("machine", "unique"),
    )
    firsts: list[Any] = groups.head(1).to_dict("records")
    scores: list[Number] = [
        first | number for first, number in zip(firsts, numbers.to_dict("records"), strict=True)
    ]
    most: dict[Hashable, int] = {}
    for score in scores:
        score |= {"level": _level(score, by), "source": score["column"], "bold": False}
        for key, count in zip(_rivals(score), (score["n"], score["seeds"]), strict=True):
            most[key] = max(most.get(key, 0), count)
    for score in scores:
        score["text"] = _text(score, max(most[key] for key in _rivals(score)))
    return scores


def _level(facts: Mapping[str, Any], by: str) -> tuple[str, ...]:
    return (as_text(facts.get(by, "")),) if by else ()


def _rivals(score: Number) -> tuple[Hashable, Hashable]:
    """Keys of the cells that should have as many runs as this, and as many seeds.

    Methods without pre-training have one run per seed, others one per seed and pre-training. Rows
    of an ablation may have fewer runs than the default.
    """
    facts = ("kind", "task", "metric", "frames", "column", "level")
    key = (*(score[name] for name in facts), score["pretraining_overrides"] != "")
    return (*key, score["pretrainings"] > 0), key


def _text(score: Number, most: int) -> str:
    n = score["n"]
    if score["finite"] < n:
        return f"not finite ({n - score['finite']} of {n})"
    count = str(n) if n == most or score["kind"] == "reference" else f"{n} of {most}"
    count = ", ".join(filter(None, [count, score["partial"]]))
    small = ".2e" if 0 < abs(score["mean"]) < 0.01 else ".3f"
    digits = ".2f" if score["unit"] == "%" else small
    deviation = f" ± {score['std']:{digits}}" if n > 1 else ""
    return f"{score['mean']:{digits}}{deviation} ({count})"


def _comparison(
    task: str,
    name: str,
    scores: Sequence[Number],
    runs: pd.DataFrame,
    published: pd.DataFrame,
    by: str,
) -> Table | None:
    """Comparison table of the paper, or of a custom task; None if it has no numbers."""
    if task:
        title = f"Task {task}"
        tasks = {task: task}
        metrics = metric_titles(runs[runs["task"] == task])
    else:
        title = paper.read_published(name)["title"]
        tasks, metrics = paper.titles_of(name)
    # Rows of other publications without a number appear only in the long CSV.
    is_shown = (published["source"] == paper.PAPER) | published["value"].notna()
    numbers: list[Any] = published[is_shown].to_dict("records")
    last: dict[Hashable, Number] = {}  # row of each method, and of each method and architecture
    for number in numbers:
        number["place"] = (number["block"], "", number["order"])
        evaluation = number["evaluation"]
        is_grey = number["source"] == paper.PAPER and not number["ranked"]
        is_named = evaluation != "full" and by != "evaluation"
        source = f"{PUBLISHED} ({evaluation})" if is_named else PUBLISHED
        number |= {"is_grey": is_grey, "source": source, "level": _level(number, by)}
        if number["ranked"]:
            last[number["method"]] = last[number["method"], number["arch"]] = number
    # Measured rows follow the published ones of their method, or have groups of their own.
    rows = [
        _placed(score, last)
        for score in scores
        if score["task"] in tasks and score["metric"] in metrics
    ]
    notes = _mark(rows)
    numbers += rows
    if not numbers:
        return None
    if len(published):
        used = "".join(number["label"] for number in numbers)
        marks = paper.read_published(paper.BEYOND)["marks"]
        marks = {mark: text for mark, text in marks.items() if mark in used}
        marks = paper.read_published(name)["marks"] | marks
        notes = [*(f"{mark} {text}." for mark, text in marks.items()), *notes]
    measured = runs[runs["task"].isin(tasks) & runs["metric"].isin(metrics)]
    main = next((metrics[metric] for metric in measured.loc[measured["main"], "metric"]), "")
    return assembled(
        title, numbers, LABELS, tasks, metrics, notes=notes, data=(published, measured), main=main
    )


def _placed(score: Number, last: Mapping[Hashable, Number]) -> Number:
    near = last.get((score["method"], score["arch"])) or last.get(score["method"])
    if near:
        return score | {"place": near["place"], "group": near["group"]}
    is_reference = score["kind"] != "evaluation"
    group = "References" if is_reference else score["group"]
    return score | {"place": (200 if is_reference else 100, group, 0), "group": group}


def _ablation(
    ablation: Ablation,
    scores: Sequence[Number],
    runs: pd.DataFrame,
    published: pd.DataFrame,
    by: str,
) -> Table | None:
    """Ablation table: published rows, and measured ones by settings; None without either."""
    rows = ablation.rows
    names = [f"{row.name} (default)" if row.default else row.name for row in rows]
    positions = match_rows(ablation, scores)
    measured = [
        score
        | {
            "label": names[positions[score["cell"]]],
            "place": (0, "", positions[score["cell"]]),
            "shared": [score[name] for name in ("task", "arch", "backbone", "column")],
        }
        for score in scores
        if score["cell"] in positions and score["metric"] in METRICS
    ]
    # Show the default row if another row was measured, and other tasks if the ablation's own task
    # was not.
    shared = [score["shared"] for score in measured if not rows[score["place"][2]].default]
    shared = [facts for facts in shared if facts[0] == ablation.task] or shared
    measured = [score for score in measured if score["shared"] in shared]
    keys = [name for name in ROW if name not in ("backbone", "arch", by)]
    beside = ["network", "arch", "pretraining_data", "task", "metric", "frames", "column", "level"]
    for score, label in zip(measured, distinguished(measured, "label", keys, beside), strict=True):
        score["label"] = label
    notes = _mark(measured)
    numbers = []
    of_method = published[(published["method"] == ABLATED) & published["ranked"]]
    facts: list[Any] = of_method.head(1).to_dict("records")
    known = paper.task_titles()
    for method in facts:
        for position, row in enumerate(rows):
            data = known.get(row.set.get("dataset", ""), method["pretraining_data"])
            number = method | {"label": names[position], "pretraining_data": data}
            number |= {"place": (0, "", position), "task": ablation.task, "source": PUBLISHED}
            number |= {"bold": row.default, "level": _level(method, by)}
            numbers += [
                number | {"metric": metric, "value": value, "text": f"{value:.3f}"}
                for metric, value in zip(METRICS, row.paper, strict=True)
                if value is not None
            ]
    if not measured and not numbers:
        return None
    labels = {"label": ablation.variable, **dict([*LABELS.items()][2:])}
    tasks = {
        task: known.get(task, task) for task in (score["task"] for score in numbers + measured)
    }
    _, metrics = paper.titles_of("segmentation")
    is_used = runs["cell"].isin({score["cell"] for score in measured})
    behind = runs[is_used & runs["metric"].isin(METRICS)]
    return assembled(
        f"Ablation: {ablation.title}",
        numbers + measured,
        labels,
        tasks,
        metrics,
        notes=notes,
        data=(pd.DataFrame(numbers), behind),
        main=metrics[METRICS[0]],
    )


def _mark(scores: Sequence[Number]) -> list[str]:
    """Set the best measured scores of each column in bold, and mark their machines.

    Returns:
        Notes that explain the texts.
    """
    ranked: dict[Hashable, list[float]] = {}
    for score in scores:
        sign = {"higher": 1, "lower": -1, "": 0}[score["better"]]
        if score["kind"] == "evaluation" and score["finite"] == score["n"] and sign:
            score["rank"] = sign * score["mean"]
            ranked.setdefault(_column(score), []).append(score["rank"])
    machines = Counter(name for score in scores for name in score["machines"]).most_common()
    marks = {name: "" for name, _ in machines[:1]}
    for n, (name, _) in enumerate(machines[1:]):
        marks[name] = SIGNS[n] if n < len(SIGNS) else f" [{n + 2}]"
    for score in scores:
        score["text"] += "".join(marks[name] for name in score["machines"])
        means = ranked.get(_column(score), [])
        score["bold"] = len(means) > 1 and score.get("rank") == max(means)
    notes = [AVERAGED] * bool(scores)
    if len(marks) > 1:
        unmarked, *others = marks
        marked = "; ".join(f"{marks[name]} {name}".strip() for name in others)
        notes.append(f"Measured on different machines: {marked}; unmarked: {unmarked}.")
    notes += [PARTIAL] * any(score["partial"] for score in scores)
    changed = [score[name] for score in scores for name in ("overrides", "pretraining_overrides")]
    return notes + [ACCUMULATED] * any("accumulate=" in text for text in changed)


def _column(number: Number) -> tuple[str, ...]:
    return number["task"], number["metric"], number["source"], *number["level"]


def assembled(
    title: str,
    numbers: Sequence[Number],
    labels: Mapping[str, str],
    tasks: Mapping[str, str],
    metrics: Mapping[str, str],
    *,
    notes: Iterable[str],
    data: Sequence[pd.DataFrame],
    main: str = "",
) -> Table:
    """Arrange numbers in rows and columns.

    Args:
        title: caption.
        numbers: of the table.
        labels: names of the row labels, by key of the numbers.
        tasks: titles of the tasks by name, in their order.
        metrics: titles of the metrics by name, in their order.
        notes: lines below the table.
        data: published numbers, and rows of the frame of records.
        main: title of the main metric.
    """
    rows: dict[Any, Number] = {}
    cells: dict[Any, Number] = {}
    for number in numbers:
        shown = tuple(RECURRENT.get(number[key], number[key]) for key in labels)
        row = (*number["place"], MEASURED in number["source"], shown)
        rows[row] = number
        if cells.setdefault((row, _column(number)), number) is not number:
            raise ValueError(f"two numbers in one cell of {title}: {shown}")
    order = [*tasks, *metrics]
    columns = sorted(
        set(map(_column, numbers)),
        key=lambda column: (
            order.index(column[0]),
            order.index(column[1], len(tasks)),
            MEASURED in column[2],
            *column[2:],
        ),
    )
    ordered = sorted(rows)
    empty = {"text": NONE, "bold": False}
    table = [[cells.get((row, column), empty) for column in columns] for row in ordered]
    index = pd.MultiIndex.from_tuples([row[-1] for row in ordered], names=list(labels.values()))
    header = pd.MultiIndex.from_tuples(
        [(tasks[task], metrics[metric], *rest) for task, metric, *rest in columns]
    )
    published, measured = data
    parts = [published, measured[COLUMNS].assign(source=MEASURED)]
    names = ["source", *COLUMNS, "label", "mark", "citation", "tta", "bold"]
    return Table(
        title,
        pd.DataFrame([[number["text"] for number in row] for row in table], index, header),
        pd.DataFrame([[number["bold"] for number in row] for row in table], index, header),
        tuple(notes),
        pd.concat([part for part in parts if len(part)] or parts, ignore_index=True).reindex(
            columns=names
        ),
        main,
        rules_between([row[:2] for row in ordered]),
        tuple(n for n, row in enumerate(ordered) if rows[row].get("is_grey")),
    )


def metric_titles(runs: pd.DataFrame) -> dict[str, str]:
    """Titles of metrics with unit and arrow by name, the main metric first.

    Metrics of scores only, unless there are none.
    """
    scored = runs[runs["better"] != ""]
    runs = (scored if len(scored) else runs).sort_values("main", ascending=False, kind="stable")
    rows: list[Any] = runs.drop_duplicates("metric").to_dict("records")
    titles = {}
    for row in rows:
        unit = f" ({row['unit']})" if row["unit"] not in ("", "%") else ""
        title = row["metric_title"].rstrip(" ↑↓")
        titles[row["metric"]] = f"{title}{unit}{ARROWS[row['better']]}"
    return titles


def rules_between(groups: Sequence[Hashable]) -> tuple[int, ...]:
    """Positions where a new group begins."""
    return tuple(n for n in range(1, len(groups)) if groups[n] != groups[n - 1])
