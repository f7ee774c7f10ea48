"""Comparison tables: published numbers and records, averaged by cell."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tespec.comparison import published as paper
from tespec.comparison.ablation import match_row
from tespec.comparison.frame import (
    COLUMNS,
    DEFAULTS,
    LEFT_OUT,
    MEASURED,
    PROTOCOL,
    REPRODUCED,
    RESCORED,
    ROW,
    TTA,
    as_text,
    distinguish,
    matches,
    notes_on,
    remarks,
    select,
)
from tespec.comparison.published import ABLATED, METRICS, NONE, TABLES, Ablation
from tespec.comparison.records import PER_MICRO_BATCH, REPORTED
from tespec.core.errors import UserError
from tespec.core.settings import suggest

CUSTOM = "task_"  # name prefix of tables of tasks that are not in the paper
PUBLISHED = "published"
RECURRENT = {"recurrent": "yes", "feedforward": "no"}
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
LETTERS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ"
SIGNS = ["", *LETTERS, *map("".join, product(LETTERS, LETTERS))]  # marks of machines
NETWORK_LABELS = {
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
FROZEN = (
    "Frozen: only the head is trained. Parts of a backbone that its pre-training lacks, such as "
    "the ConvLSTMs of a feed-forward one, keep their random values."
)
REMARKS = {
    REPORTED: "Reported: a record that others sent; it is never bold.",
    RESCORED: "Rescored: predictions of others, scored here.",
    TTA: "TTA: test-time augmentation.",
}
ACCUMULATED = f"accumulate=N: {PER_MICRO_BATCH} use one of N micro-batches, not the whole batch."
DATA = ["source", *COLUMNS, "label", "citation", "bold", "table"]  # of the long CSV
# Number of a table by column of the frame.
Number = dict[Any, Any]
HEADER = ["task", "metric", "is_measured", "level", "column"]


class Layout(NamedTuple):
    """Caption and headings of a table."""

    title: str
    labels: Mapping[str, str]  # names of the row labels, by column of the numbers
    tasks: Mapping[str, str]  # titles of the tasks by name, in their order
    metrics: Mapping[str, str]  # titles of the metrics by name, in their order


class Table(NamedTuple):
    """Table to display."""

    title: str  # caption
    # texts; the index contains the row labels, the columns have levels task, metric and source
    cells: pd.DataFrame
    bold: pd.DataFrame  # whether each cell is bold
    notes: tuple[str, ...]  # lines below the table
    data: pd.DataFrame  # numbers behind the table, one per row
    blocks: tuple[Any, ...]  # block of each row; a rule separates blocks
    grey: tuple[bool, ...]  # whether each row is in grey text
    main: str = ""  # title of the main metric
    name: str = ""  # of the files

    def measured(self) -> Table | None:
        """Select the measured rows and columns; None if there are none."""
        columns = [MEASURED in column[2] for column in self.cells.columns]
        rows = (self.cells.loc[:, columns] != NONE).any(axis=1).to_numpy()
        table = self._replace(
            cells=self.cells.loc[rows, columns],
            bold=self.bold.loc[rows, columns],
            blocks=tuple(compress(self.blocks, rows)),
            grey=tuple(compress(self.grey, rows)),
        )
        return table if rows.any() else None


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
    runs, left_out = select(frame, where, by, ["pretraining_overrides"])
    numbers = averaged(runs, by)
    published = _published(where, by)
    is_varied = "pretraining_overrides" in {*where, by}
    ablated = runs[(runs["pretraining_overrides"] != "") & (not is_varied)]
    not_compared = pd.concat([left_out, ablated.assign(reason="pretraining_overrides")[LEFT_OUT]])
    compared = [row for row in numbers if is_varied or not row["pretraining_overrides"]]
    evaluated = {row["task"] for row in compared if row["kind"] in ("evaluation", "predictions")}
    custom = {
        _file_name(CUSTOM + task): task for task in sorted(evaluated - {*paper.task_titles()})
    }
    ablations = {f"ablation_{name}": table for name, table in paper.read_ablations().items()}
    names = [*TABLES, *ablations, *custom]
    for name in only:
        if name not in names:
            raise UserError(f"--only {name}", "no such table", suggest(name, names))
    of_runs = runs.assign(source=MEASURED, label=None).reindex(columns=DATA)
    both = pd.concat([published, of_runs], ignore_index=True)[DATA]
    published_rows: list[Any] = published.to_dict("records")
    tables = []
    for name in only or names:
        of_paper = [row for row in published_rows if row["table"] == name]
        if name in ablations:
            layout, rows = _ablation(ablations[name], numbers, by)
            hidden = left_out[(left_out["method"] == ABLATED) & bool(rows)]
        else:
            layout, rows = _comparison(name, custom.get(name, ""), compared, of_paper)
            hidden = not_compared
        # Rows of other publications without a number appear only in the long CSV.
        of_paper = [row for row in of_paper if row["source"] != paper.BEYOND or row["text"] != NONE]
        shown = rows if measured else of_paper + rows
        if not shown:
            continue
        of_rows = runs[runs["cell"].isin({row["cell"] for row in rows})]
        notes = _notes(name, shown, rows, of_rows)
        notes += notes_on(frame, hidden[hidden["task"].isin(layout.tasks)])
        # Whole numbers stay whole in a table without published rows.
        data = both if of_paper else of_runs
        is_behind = data["cell"].isin({row["cell"] for row in rows})
        is_behind &= data["metric"].isin(layout.metrics)
        data = data[is_behind | (data["table"] == name)]
        table = arranged(layout, shown, notes, data)
        tables.append(selected(table._replace(name=name), where, by, measured))
    remedy = f"run `tespec run` first{''.join(f' ({note})' for note in notes_on(frame, left_out))}"
    if len(tables) < len(only):
        raise UserError(f"--only {' '.join(only)}", "has no measured results", remedy)
    if not tables:
        raise UserError("tables", "no evaluations to show", remedy)
    return tables


def selected(table: Table, where: Mapping[str, str], by: str = "", measured: bool = False) -> Table:
    """State the selection in a table's name and caption.

    Args:
        table: with its plain name and caption.
        where: as in `make_tables`, like the following.
        by: an additional level.
        measured: whether it shows only measured rows.
    """
    words = ["measured rows"] * measured + [f"{key} = {value}" for key, value in where.items()]
    words += [f"by {by}"] * bool(by)
    parts = [table.name, *["measured"] * measured, *map("-".join, where.items())]
    return table._replace(
        title=", ".join(filter(None, [table.title, "; ".join(words)])),
        name=_file_name("_".join([*parts, *[f"by_{by}"] * bool(by)])),
        data=table.data.assign(table=table.name),
    )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def _published(where: Mapping[str, str], by: str) -> pd.DataFrame:
    """Filter the published numbers like the measured ones, and name their columns."""
    published = paper.published_frame()
    lifted = {by, *(PROTOCOL if "evaluation" in {*where, by} else [])}
    for key in (*PROTOCOL, "evaluation"):
        if key in where or key not in lifted:
            pattern = where.get(key, as_text(DEFAULTS.get(key, "*")))
            published = published[matches(published[key], pattern)]
    evaluations = published["evaluation"]
    is_plain = (evaluations == "full") | (by == "evaluation")
    return published.assign(
        column=(f"{PUBLISHED} (" + evaluations + ")").mask(is_plain, PUBLISHED),
        level=_levels(published, by),
        is_measured=False,
        is_grey=(published["source"] == paper.PAPER) & ~published["ranked"],
    )


def _levels(rows: pd.DataFrame, by: str) -> Any:
    """Values of the column `by` as tuples, which sort numbers before texts; empty without `by`."""
    values = rows[by].astype(object).fillna(NONE) if by in rows else [""] * len(rows)
    return [(isinstance(value, str), value) if by else () for value in values]


def averaged(runs: pd.DataFrame, by: str = "") -> list[Number]:
    """Average the runs of each cell.

    Args:
        runs: from `select`.
        by: column whose values are averaged separately.

    Returns:
        Columns of the first run of each cell, metric and group of frames, and: level, mean, std, n,
        finite (runs with a finite score), seeds, pretrainings (their numbers), machines, files (of
        own weights), statuses, remarks (see `frame.remarks`), expected (runs, at most those of
        other cells), and text, such as "34.47 ± 0.25 (3 of 5)" if other cells of a column have
        five runs.
    """
    keys = [*dict.fromkeys(["cell", "metric", "frames", *([by] if by else [])])]
    draws = runs["pretraining_seed"].astype(object).where(runs["weights"] == "", runs["weights"])
    groups = runs.assign(draw=draws).groupby(keys, sort=False, dropna=False)
    means = groups.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        n=("value", "size"),
        finite=("value", "count"),
        seeds=("seed", "nunique"),
        pretrainings=("draw", "nunique"),
        partial=("partial", "max"),
        statuses=("status", list),
        augmented=("tta", "sum"),
    )
    for name, column in (("machines", "machine"), ("files", "weights")):
        distinct = runs.drop_duplicates([*keys, column])
        means[name] = distinct.groupby(keys, sort=False, dropna=False)[column].agg(list)
    numbers = runs.drop_duplicates(keys).reset_index(drop=True)
    numbers = numbers.assign(**means.reset_index(drop=True), is_measured=True)
    numbers["level"] = _levels(numbers, by)
    # Methods without pre-training have one run per seed, others one per seed and pre-training. Rows
    # of an ablation may have fewer runs than the default.
    rivals = [numbers[name] for name in ("kind", *HEADER, "frames")]
    rivals.append(numbers["pretraining_overrides"] != "")
    seeds = numbers["seeds"].groupby(rivals).transform("max")
    draws = numbers["n"].groupby([*rivals, numbers["pretrainings"] > 0]).transform("max")
    numbers["expected"] = np.maximum(seeds, draws)
    rows: list[Number] = numbers.to_dict("records")
    for row in rows:
        row["remarks"] = remarks(row["statuses"], row["augmented"])
        row["text"] = _text(row)
    return rows


def _text(number: Number) -> str:
    n = number["n"]
    finite = number["finite"]
    if finite < n:
        return f"not finite ({', '.join([f'{n - finite} of {n}', *number['remarks']])})"
    is_complete = n == number["expected"] or number["kind"] == "reference"
    count = str(n) if is_complete else f"{n} of {number['expected']}"
    count = ", ".join(filter(None, [count, number["partial"], *number["remarks"]]))
    digits = digits_of(number["unit"], number["mean"])
    deviation = f" ± {number['std']:{digits}}" if n > 1 else ""
    return f"{number['mean']:{digits}}{deviation} ({count})"


def digits_of(unit: str, value: float) -> str:
    """Format of a number in tables: two digits after the point for percentages, else three."""
    small = ".2e" if 0 < abs(value) < 0.01 else ".3f"
    return ".2f" if unit == "%" else small


def _comparison(
    name: str, task: str, numbers: Sequence[Number], published: Sequence[Number]
) -> tuple[Layout, list[Number]]:
    """Layout and measured rows of a comparison table of the paper, or of a custom task.

    Rows stand below the published ones of their method, or in groups of their own.
    """
    labels = {"group": "Group", "label": "Method", **NETWORK_LABELS}
    if task:
        metrics = metric_titles(row for row in numbers if row["task"] == task)
        layout = Layout(f"Task {task}", labels, {task: task}, metrics)
    else:
        title = paper.read_published(name)["title"]
        layout = Layout(title, labels, *paper.titles_of(name))
    places: dict[Any, Number] = {}
    for row in published:
        if row["ranked"]:
            place = {name: row[name] for name in ("block", "group", "order")}
            places[row["method"]] = places[row["method"], row["arch"]] = place
    rows = []
    for row in numbers:
        if row["task"] in layout.tasks and row["metric"] in layout.metrics:
            is_reference = row["kind"] in ("reference", "control")
            group = "References" if is_reference else row["group"]
            place = {"block": 200 if is_reference else 100, "group": group, "order": 0}
            place = places.get(row["method"], place)
            rows.append(row | places.get((row["method"], row["arch"]), place))
    return layout, rows


def _ablation(
    ablation: Ablation, numbers: Sequence[Number], by: str
) -> tuple[Layout, list[Number]]:
    """Layout and measured rows of an ablation, by settings.

    Shown are the networks, tasks and columns of changed rows, of the ablation's own task if it has
    been measured.
    """
    rows = []
    for number in numbers:
        settings = number["pretraining_profile"], number["pretraining_overrides"]
        order = match_row(ablation, *settings) if number["method"] == ABLATED else -1
        if order >= 0 and number["pretraining_profile"] and number["metric"] in METRICS:
            place = {"block": 0, "group": "", "order": order, "label": ablation.labels[order]}
            place["setting"] = [number[name] for name in ("task", "arch", "backbone", "column")]
            rows.append(number | place)
    changed = [row["setting"] for row in rows if not ablation.rows[row["order"]].default]
    changed = [setting for setting in changed if setting[0] == ablation.task] or changed
    rows = [row for row in rows if row["setting"] in changed]
    keys = [name for name in ROW if name not in ("backbone", "arch", by)]
    distinguish(rows, "label", keys, ["network", "arch", "pretraining_data", *HEADER])
    labels = {"label": ablation.variable, **NETWORK_LABELS}
    known = paper.task_titles()
    tasks = {
        task: known.get(task, task) for task in [ablation.task, *(row["task"] for row in rows)]
    }
    metrics = paper.titles_of("segmentation")[1]
    return Layout(f"Ablation: {ablation.title}", labels, tasks, metrics), rows


def _mark(rows: Sequence[Number]) -> list[str]:
    """Set the best measured scores of each column in bold, and mark their machines.

    Returns:
        Notes that explain the marks of machines.
    """
    scores = defaultdict(list)
    for row in rows:
        is_ranked = row["kind"] == "evaluation" and row["finite"] == row["n"]
        is_ranked &= REPORTED not in row["statuses"]
        sign = {"higher": 1, "lower": -1, "": 0}[row["better"]]
        row["score"] = sign * row["mean"] if is_ranked and sign else -math.inf
        scores[_header(row)].append(row["score"])
    machines = Counter(name for row in rows for name in row["machines"]).most_common()
    marks = {name: sign for (name, _), sign in zip(machines, SIGNS, strict=False)}
    for row in rows:
        *_, second, best = [-math.inf, *sorted(scores[_header(row)])]
        row["bold"] = second > -math.inf and row["score"] == best
        row["text"] += "".join(marks[name] for name in row["machines"])
    if len(marks) < 2:
        return []
    unmarked, *marked = [f"{mark} {name}".strip() for name, mark in marks.items()]
    return [f"Measured on different machines: {'; '.join(marked)}; unmarked: {unmarked}."]


def _header(number: Number) -> tuple[Any, ...]:
    return tuple(number[name] for name in HEADER)


def _notes(
    name: str, shown: Sequence[Number], rows: Sequence[Number], runs: pd.DataFrame
) -> list[str]:
    """Explain the marks of published rows, and what the measured ones and their runs differ in."""
    notes = []
    if name in TABLES:
        marks = paper.read_published(name)["marks"] | paper.read_published(paper.BEYOND)["marks"]
        used = "".join(number["label"] for number in shown)
        notes += [f"{mark} {text}." for mark, text in marks.items() if mark in used]
    notes += [AVERAGED] * bool(rows) + _mark(rows)
    used = " ".join(word for row in rows for word in row["remarks"])
    notes += [note for word, note in REMARKS.items() if word in used]
    notes += _reproductions(runs)
    of_weights = runs[runs["seen"] != ""].groupby(["label", "seen"], sort=False).size()
    notes += [f"{label}: its initial weights have seen {seen}." for label, seen in of_weights.index]
    notes += [PARTIAL] * any(row["partial"] for row in rows)
    notes += [FROZEN] * any(row["frozen"] for row in rows)
    changed = [row[name] for row in rows for name in ("overrides", "pretraining_overrides")]
    notes += [ACCUMULATED] * any("accumulate=" in text for text in changed)
    notes += dict.fromkeys(
        f"{row['label']}: files {', '.join(hashed[:8] for hashed in row['files'])} of own weights "
        "count as draws of one pre-training; their settings are unknown."
        for row in rows
        if len(row["files"]) > 1
    )
    plugins = {row["plugin"]: row["label"] for row in rows if row["plugin"]}
    if name.startswith(CUSTOM) and len(plugins) > 1:
        files = ", ".join(f"{plugin} ({label})" for plugin, label in plugins.items())
        notes.append(f"Plug-in files differ, and with them perhaps the task: {files}.")
    return notes


def _reproductions(runs: pd.DataFrame) -> list[str]:
    """Compare the main score of each reproduced run with the reported one."""
    main: list[Any] = runs[runs["main"] & (runs["status"] == REPRODUCED)].to_dict("records")
    notes = []
    for run in main:
        digits = digits_of(run["unit"], run["value"])
        difference = run["value"] - run["reported_value"]
        notes.append(
            f"Reproduced: {run['label']} on {run['task']}, seed {run['seed']}: {run['metric']} "
            f"{run['value']:{digits}} here ({run['machine']}), "
            f"{run['reported_value']:{digits}} reported ({run['reported_on']}), "
            f"difference {difference:+{digits}}."
        )
    return notes


def arranged(
    layout: Layout, numbers: Sequence[Number], notes: Iterable[str], data: pd.DataFrame
) -> Table:
    """Arrange numbers in rows and columns.

    Args:
        layout: caption and headings.
        numbers: with the columns of the labels and `HEADER`; block, group and order, which order
            the rows; text; perhaps bold and is_grey.
        notes: lines below the table.
        data: numbers behind the table.
    """
    tasks = {name: (n, title) for n, (name, title) in enumerate(layout.tasks.items())}
    metrics = {name: (n, title) for n, (name, title) in enumerate(layout.metrics.items())}
    grid: dict[Any, dict[Any, Number]] = defaultdict(dict)
    for number in numbers:
        task, metric, *others = _header(number)
        column = (tasks[task], metrics[metric], *others)
        place = [number[name] for name in ("block", "group", "order", "is_measured")]
        labels = [RECURRENT.get(number[name], number[name]) for name in layout.labels]
        row = grid[(*place, *labels)]
        if row.setdefault(column, number) is not number:
            raise ValueError(f"two numbers in one cell of {layout.title}: {number['label']}")
    columns = sorted({column for row in grid.values() for column in row})
    rows = sorted(grid)
    cells = [[grid[row].get(column, {"text": NONE}) for column in columns] for row in rows]
    index = pd.MultiIndex.from_tuples([row[4:] for row in rows], names=[*layout.labels.values()])
    headings = [
        (*task[1:], *metric[1:], column, *map(as_text, level[1:]))
        for task, metric, _, level, column in columns
    ]
    titles = pd.MultiIndex.from_tuples(headings)
    main = (layout.metrics[number["metric"]] for number in numbers if number.get("main"))
    return Table(
        layout.title,
        pd.DataFrame([[cell["text"] for cell in row] for row in cells], index, titles),
        pd.DataFrame([[cell.get("bold", False) for cell in row] for row in cells], index, titles),
        tuple(notes),
        data,
        tuple(row[:2] for row in rows),
        tuple(any(cell.get("is_grey") for cell in row) for row in cells),
        next(main, ""),
    )


def metric_titles(numbers: Iterable[Number]) -> dict[str, str]:
    """Titles of metrics with unit and arrow by name, the main metric first.

    Metrics of scores only, unless there are none.
    """
    numbers = sorted(numbers, key=lambda number: not number["main"])
    titles = {}
    for number in [number for number in numbers if number["better"]] or numbers:
        unit = f" ({number['unit']})" if number["unit"] not in ("", "%") else ""
        title = number["metric_title"].rstrip(" ↑↓")
        titles[number["metric"]] = f"{title}{unit}{ARROWS[number['better']]}"
    return titles
