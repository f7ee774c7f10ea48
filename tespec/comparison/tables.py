"""Comparison tables: published numbers and records, averaged by cell."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, compress, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tespec.comparison import published as paper
from tespec.comparison.frame import (
    COLUMNS,
    DEFAULTS,
    LEFT_OUT,
    MEASURED,
    OF_EVALUATION,
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
    settings_text,
)
from tespec.comparison.published import ABLATED, METRICS, NONE, TABLES, Ablation
from tespec.comparison.records import PER_MICRO_BATCH, REPORTED
from tespec.core.errors import require
from tespec.core.settings import suggest

CUSTOM = "task_"  # name prefix of tables of tasks that are not in the paper
PUBLISHED = "published"
RECURRENT = {"recurrent": "yes", "feedforward": "no"}
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
LETTERS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ"
# none for the machine with the most runs, then one letter, two or three
MACHINE_MARKS = ["".join(letters) for n in range(4) for letters in product(LETTERS, repeat=n)]
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
CSV_COLUMNS = ["source", *COLUMNS, "label", "citation", "bold", "table"]  # of the long CSV
# Number of a table by column of the frame.
Number = dict[Any, Any]
# What identifies a column of a table, in the order of the columns.
COLUMN_KEYS = ["task", "metric", "is_measured", "level", "column"]


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
    blocks: tuple[tuple[Any, str], ...]  # number and heading of each row's block, between rules
    grey: tuple[bool, ...]  # whether each row is in grey text
    main: str = ""  # title of the main metric
    name: str = ""  # of the files

    def measured(self) -> Table:
        """Select the measured rows and columns, perhaps none."""
        columns = [MEASURED in column[2] for column in self.cells.columns]
        rows = (self.cells.loc[:, columns] != NONE).any(axis=1).to_numpy()
        return self._replace(
            cells=self.cells.loc[rows, columns],
            bold=self.bold.loc[rows, columns],
            blocks=tuple(compress(self.blocks, rows)),
            grey=tuple(compress(self.grey, rows)),
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

    Returns:
        Tables, whose names and captions state the selection.

    Raises:
        UserError: a table, column or value does not exist, a requested table is empty, or all
            tables are.
    """
    runs, left_out = select(frame, where, by, ["pretraining_overrides"])
    numbers = average(runs, by)
    published = _published(where, by)
    changes = "pretraining_overrides"
    # Changed pre-trainings are only in ablations, unless the selection is by their changes.
    ablated = runs[(runs[changes] != "") & (changes not in {*where, by})]
    not_compared = pd.concat([left_out, ablated.assign(reason=changes)[LEFT_OUT]])
    compared = numbers[~numbers["cell"].isin(ablated["cell"])]
    evaluated = compared.loc[compared["kind"].isin(["evaluation", "predictions"]), "task"]
    tasks = sorted({*evaluated} - {*paper.task_titles()})
    custom = {_file_name(CUSTOM + task): task for task in tasks}
    ablations = {f"ablation_{name}": table for name, table in paper.read_ablations().items()}
    names = [*TABLES, *ablations, *custom]
    for name in only:
        require(name in names, f"--only {name}", "no such table", suggest(name, names))
    measured_data = runs.assign(source=MEASURED, label=None).reindex(columns=CSV_COLUMNS)
    tables = []
    for name in only or names:
        of_paper = published[published["table"] == name]
        # Rows of other publications without a number appear only in the long CSV.
        is_shown = (of_paper["source"] != paper.BEYOND) | (of_paper["text"] != NONE)
        if name in ablations:
            layout, rows = _ablation(ablations[name], numbers, by)
            hidden = left_out[(left_out["method"] == ABLATED) & bool(len(rows))]
        else:
            layout, rows = _comparison(name, custom.get(name, ""), compared, of_paper)
            hidden = not_compared
        machines = _mark(rows)
        shown: list[Any] = rows.to_dict("records")
        if not measured:
            shown = of_paper[is_shown].to_dict("records") + shown
        if not shown:
            continue
        notes = _footnotes(name, shown)
        if len(rows):
            notes += [AVERAGED, *machines]
        notes += _notes(name, rows, runs[runs["cell"].isin(rows["cell"])])
        notes += notes_on(frame, hidden[hidden["task"].isin(layout.tasks)])
        data = _data_behind(rows, layout.metrics, measured_data, of_paper)
        table = arrange(layout, shown, notes, data)
        tables.append(state_selection(table._replace(name=name), where, by, measured))
    remedy = f"run `tespec run` first{''.join(f' ({note})' for note in notes_on(frame, left_out))}"
    require(len(tables) >= len(only), f"--only {' '.join(only)}", "has no measured results", remedy)
    require(tables, "tables", "no evaluations to show", remedy)
    return tables


def _data_behind(
    rows: pd.DataFrame, metrics: Iterable[str], measured: pd.DataFrame, published: pd.DataFrame
) -> pd.DataFrame:
    """Select the numbers behind a table: those of its runs, below the published ones."""
    is_behind = measured["cell"].isin(rows["cell"]) & measured["metric"].isin([*metrics])
    if published.empty:  # whole numbers stay whole
        return measured[is_behind]
    return pd.concat([published, measured[is_behind]])[CSV_COLUMNS]


def state_selection(
    table: Table, where: Mapping[str, str], by: str = "", measured: bool = False
) -> Table:
    """State the selection in a table's name and caption.

    Args:
        table: with its plain name and caption.
        where: as in `make_tables`, like the following.
        by: an additional level.
        measured: whether it shows only measured rows.
    """
    # words of the caption by part of the name
    words = {"measured": "measured rows"} if measured else {}
    for key, value in where.items():
        words[f"{key}-{value}"] = f"{key} = {value}"
    if by:
        words[f"by_{by}"] = f"by {by}"
    return table._replace(
        title=", ".join(filter(None, [table.title, "; ".join(words.values())])),
        name=_file_name("_".join([table.name, *words])),
        data=table.data.assign(table=table.name),
    )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def _published(where: Mapping[str, str], by: str) -> pd.DataFrame:
    """Filter the published numbers like the measured ones, and name their columns."""
    published = paper.published_frame()
    lifted = {by, *(OF_EVALUATION if "evaluation" in {*where, by} else [])}
    for key in (*OF_EVALUATION, "evaluation"):
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


def average(runs: pd.DataFrame, by: str = "") -> pd.DataFrame:
    """Average the runs of each cell.

    Args:
        runs: from `select`.
        by: column whose values are averaged separately.

    Returns:
        The first run of each cell, metric and group of frames, with the additional columns level,
        mean, std, n, finite (runs with a finite score), seeds, pretrainings (their numbers),
        machines, files (of own weights), statuses, remarks (see `frame.remarks`), expected (runs,
        at most those of other cells), and text, such as "34.47 ± 0.25 (3 of 5)" if other cells of
        a column have five runs.
    """
    keys = [*dict.fromkeys(["cell", "metric", "frames", *([by] if by else [])])]
    seed = runs["pretraining_seed"].astype(object)
    pretrainings = seed.where(runs["weights"] == "", runs["weights"])
    runs = runs.assign(pretraining=pretrainings, is_reported=runs["status"] == REPORTED)
    groups = runs.groupby(keys, sort=False, dropna=False)
    means = groups.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        n=("value", "size"),
        finite=("value", "count"),
        seeds=("seed", "nunique"),
        pretrainings=("pretraining", "nunique"),
        partial=("partial", "max"),
        statuses=("status", list),
        augmented=("tta", "sum"),
        reported=("is_reported", "sum"),
        machines=("machine", "unique"),
        files=("weights", "unique"),
    )
    numbers = runs.drop_duplicates(keys).reset_index(drop=True)
    numbers = numbers.assign(**means.reset_index(drop=True), is_measured=True, is_grey=False)
    numbers["level"] = _levels(numbers, by)
    # A cell is expected to have as many runs as the others of its column. Methods without
    # pre-training have one run per seed, others one per seed and pre-training. Rows of an ablation
    # may have fewer runs than the default.
    same_column = [numbers[name] for name in ("kind", *COLUMN_KEYS, "frames")]
    same_column.append(numbers["pretraining_overrides"] != "")
    is_pretrained = numbers["pretrainings"] > 0
    most_seeds = numbers["seeds"].groupby(same_column).transform("max")
    most_runs = numbers["n"].groupby([*same_column, is_pretrained]).transform("max")
    numbers["expected"] = np.maximum(most_seeds, most_runs)
    numbers["remarks"] = [*map(remarks, numbers["statuses"], numbers["augmented"])]
    numbers["text"] = [*map(_text, numbers.to_dict("records"))]
    return numbers


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
    name: str, task: str, numbers: pd.DataFrame, published: pd.DataFrame
) -> tuple[Layout, pd.DataFrame]:
    """Layout and measured rows of a comparison table of the paper, or of a custom task.

    Rows stand below the published ones of their method, or in groups of their own.
    """
    labels = {"group": "Group", "label": "Method", **NETWORK_LABELS}
    if task:
        metrics = metric_titles(numbers[numbers["task"] == task])
        layout = Layout(f"Task {task}", labels, {task: task}, metrics)
    else:
        layout = Layout(paper.read_published(name)["title"], labels, *paper.titles_of(name))
    # positions of the last published row of each method, and of each of its architectures
    positions: dict[Any, Any] = {}
    for keys in (["method"], ["method", "arch"]):
        last = published[published["ranked"]].drop_duplicates(keys, keep="last")
        positions |= last.set_index(keys)[["block", "group", "order"]].to_dict("index")
    is_shown = numbers["task"].isin(layout.tasks) & numbers["metric"].isin(layout.metrics)
    rows: list[Any] = numbers[is_shown].to_dict("records")
    for row in rows:
        row |= {"block": 100, "order": 0}
        if row["kind"] in ("reference", "control"):
            row |= {"block": 200, "group": "References"}
        row |= positions.get((row["method"], row["arch"])) or positions.get(row["method"], {})
    return layout, pd.DataFrame(rows, columns=[*numbers, "block", "order"])


def _ablation(ablation: Ablation, numbers: pd.DataFrame, by: str) -> tuple[Layout, pd.DataFrame]:
    """Layout and measured rows of an ablation, by settings.

    Shown are the networks, tasks and columns of changed rows, of the ablation's own task if it has
    been measured.
    """
    is_ablated = (numbers["method"] == ABLATED) & numbers["metric"].isin(METRICS)
    rows = numbers[is_ablated].assign(block=0, group="")
    facts = rows[["pretraining_profile", "pretraining_overrides"]]
    rows["order"] = [_row_of(ablation, *row) for row in facts.itertuples(index=False)]
    rows = rows[rows["order"] >= 0]
    rows = rows.assign(label=[ablation.labels[order] for order in rows["order"]])
    is_default = [ablation.rows[order].default for order in rows["order"]]
    changed = rows[~np.array(is_default, bool)]
    of_task = changed[changed["task"] == ablation.task]
    settings = (changed if of_task.empty else of_task)[["task", "arch", "backbone", "column"]]
    rows = rows.merge(settings.drop_duplicates())
    keys = [name for name in ROW if name not in ("backbone", "arch", by)]
    distinguish(rows, "label", keys, ["network", "arch", "pretraining_data", *COLUMN_KEYS])
    labels = {"label": ablation.variable, **NETWORK_LABELS}
    titles = paper.task_titles()
    tasks = {task: titles.get(task, task) for task in [ablation.task, *rows["task"]]}
    metrics = paper.titles_of("segmentation")[1]
    return Layout(f"Ablation: {ablation.title}", labels, tasks, metrics), rows


def _row_of(ablation: Ablation, profile: str, changed: str) -> int:
    """Position of the row with exactly the settings that a pre-training changes; -1 if none."""
    for position, row in enumerate(ablation.rows):
        settings = row.set
        # Settings of the profile need torch.
        if row.scale and all(f"{key}=" in changed for key in row.scale):
            settings = row.overrides(_default_settings(profile))
        if profile and settings_text(settings) == changed and (settings or row.default):
            return position
    return -1


@cache
def _default_settings(profile: str) -> dict[str, Any]:
    from tespec.core.config import as_facts, flattened, pretraining_settings

    return flattened(as_facts(pretraining_settings(ABLATED, profile)))


def _mark(rows: pd.DataFrame) -> list[str]:
    """Set the best measured scores of each column in bold, and mark their machines, in place.

    Scores with runs that are not finite, or that others reported, are not compared.

    Returns:
        Notes that explain the marks of machines.
    """
    is_ranked = (rows["kind"] == "evaluation") & (rows["finite"] == rows["n"])
    is_ranked &= rows["reported"] == 0
    sign = rows["better"].map({"higher": 1, "lower": -1})
    scores = (sign * rows["mean"]).where(is_ranked)  # the highest is the best
    columns = scores.groupby([rows[name] for name in COLUMN_KEYS])
    rows["bold"] = (columns.transform("count") > 1) & (scores == columns.transform("max"))
    machines = Counter(chain.from_iterable(rows["machines"])).most_common()
    marks = {name: mark for (name, _), mark in zip(machines, MACHINE_MARKS, strict=False)}
    rows["text"] += ["".join(marks[name] for name in names) for names in rows["machines"]]
    if len(marks) < 2:
        return []
    unmarked, *marked = [f"{mark} {name}".strip() for name, mark in marks.items()]
    return [f"Measured on different machines: {'; '.join(marked)}; unmarked: {unmarked}."]


def _footnotes(name: str, shown: Sequence[Number]) -> list[str]:
    """Explain the marks of the published rows of a table."""
    if name not in TABLES:
        return []
    marks = paper.read_published(name)["marks"] | paper.read_published(paper.BEYOND)["marks"]
    labels = "".join(number["label"] for number in shown)
    return [f"{mark} {text}." for mark, text in marks.items() if mark in labels]


def _notes(name: str, rows: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Explain brackets of measured rows, and what these and their runs differ in."""
    brackets = " ".join(chain.from_iterable(rows["remarks"]))
    notes = [note for word, note in REMARKS.items() if word in brackets]
    notes += _reproductions(runs)
    of_weights = runs[runs["seen"] != ""].groupby(["label", "seen"], sort=False).size()
    notes += [f"{label}: its initial weights have seen {seen}." for label, seen in of_weights.index]
    if any(rows["partial"]):
        notes.append(PARTIAL)
    if any(rows["frozen"]):
        notes.append(FROZEN)
    if any("accumulate=" in text for text in rows["overrides"] + rows["pretraining_overrides"]):
        notes.append(ACCUMULATED)
    notes += dict.fromkeys(
        f"{label}: files {', '.join(hashed[:8] for hashed in files)} of own weights "
        "count as draws of one pre-training; their settings are unknown."
        for label, files in zip(rows["label"], rows["files"], strict=True)
        if len(files) > 1
    )
    of_plugins = rows[rows["plugin"] != ""].drop_duplicates("plugin", keep="last")
    if name.startswith(CUSTOM) and len(of_plugins) > 1:
        files = ", ".join(of_plugins["plugin"] + " (" + of_plugins["label"] + ")")
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


def arrange(
    layout: Layout, numbers: Sequence[Number], notes: Iterable[str], data: pd.DataFrame
) -> Table:
    """Arrange numbers in rows and columns.

    Args:
        layout: caption and headings.
        numbers: with the columns of the labels and `COLUMN_KEYS`; block, group and order, which
            order the rows; text; perhaps bold and is_grey.
        notes: lines below the table.
        data: numbers behind the table.
    """
    tasks = [*layout.tasks]
    metrics = [*layout.metrics]
    # numbers by row and column, whose keys are in the order of the table
    grid: dict[Any, dict[Any, Number]] = defaultdict(dict)
    for number in numbers:
        task, metric, *others = (number[name] for name in COLUMN_KEYS)
        column = (tasks.index(task), metrics.index(metric), *others)
        position = [number[name] for name in ("block", "group", "order", "is_measured")]
        labels = [RECURRENT.get(number[name], number[name]) for name in layout.labels]
        row = grid[(*position, *labels)]
        if row.setdefault(column, number) is not number:
            raise ValueError(f"two numbers in one cell of {layout.title}: {number['label']}")
    columns = sorted({column for row in grid.values() for column in row})
    rows = sorted(grid)
    index = pd.MultiIndex.from_tuples([row[4:] for row in rows], names=[*layout.labels.values()])
    titles = pd.MultiIndex.from_tuples(
        (
            layout.tasks[tasks[task]],
            layout.metrics[metrics[metric]],
            column,
            *map(as_text, level[1:]),
        )
        for task, metric, _, level, column in columns
    )

    def cells(name: str, empty: Any) -> pd.DataFrame:
        texts = [[grid[row].get(column, {}).get(name, empty) for column in columns] for row in rows]
        return pd.DataFrame(texts, index, titles)

    main = (layout.metrics[number["metric"]] for number in numbers if number.get("main") is True)
    return Table(
        title=layout.title,
        cells=cells("text", NONE),
        bold=cells("bold", False),
        notes=tuple(notes),
        data=data,
        blocks=tuple(row[:2] for row in rows),
        grey=tuple(cells("is_grey", False).any(axis=1)),
        main=next(main, ""),
    )


def metric_titles(numbers: pd.DataFrame) -> dict[str, str]:
    """Titles of metrics with unit and arrow by name, the main metric first.

    Metrics of scores only, unless there are none.
    """
    numbers = numbers.sort_values("main", ascending=False, kind="stable")
    scored = numbers[numbers["better"] != ""]
    metrics = (numbers if scored.empty else scored).drop_duplicates("metric")
    titles = {}
    for number in metrics.to_dict("records"):
        unit = f" ({number['unit']})" if number["unit"] not in ("", "%") else ""
        title = number["metric_title"].rstrip(" ↑↓")
        titles[number["metric"]] = f"{title}{unit}{ARROWS[number['better']]}"
    return titles
