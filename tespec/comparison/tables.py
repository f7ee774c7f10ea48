"""Comparison tables: published numbers and records, averaged by cell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from tespec.comparison.ablation import match_rows
from tespec.comparison.frame import (
    COLUMNS,
    MEASURED,
    PROTOCOL,
    ROW,
    as_text,
    default_rows,
    distinguished,
    matches,
    select,
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

CUSTOM = "task_"  # name prefix of tables of tasks that are not in the paper
PUBLISHED = "published"
NONE = "-"
LABELS = ["Group", "Method", "Backbone", "Recurrent", "Pre-training"]
RECURRENT = {"recurrent": "yes", "feedforward": "no"}
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
SIGNS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ"  # marks of machines
AVERAGED = (
    "Measured: mean ± standard deviation over runs (seeds of fine-tuning and pre-training) and "
    "their number (3 of 5: other cells have 5). Bold: the best measured mean."
)
PARTIAL = (
    'Brackets such as "2 of 3 classes" mark means over only some of the classes, recordings or '
    "frames."
)
Score = dict[str, Any]  # of a cell and metric, see `averaged`
ACCUMULATED = f"accumulate=N: {PER_MICRO_BATCH} use one of N micro-batches, not the whole batch."


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

    def near_measured(self) -> Table | None:
        """Select the groups of rows with measured numbers, and the columns of their tasks.

        Returns:
            The smaller table; None if nothing is measured.
        """
        measured = [column for column in self.cells.columns if MEASURED in column[2]]
        has_number = (self.cells[measured] != NONE).any(axis=1).to_numpy()
        starts = [0, *self.rules, len(has_number)]
        groups = [range(*pair) for pair in pairwise(starts) if has_number[slice(*pair)].any()]
        rows = [row for group in groups for row in group]
        if not rows:
            return None
        tasks = {column[0] for column in measured}
        columns = [column for column in self.cells.columns if column[0] in tasks]
        if len(columns) == len(measured):  # of an ablation that is published for another task
            columns = list(self.cells.columns)
        return self._replace(
            cells=self.cells[columns].iloc[rows],
            bold=self.bold[columns].iloc[rows],
            rules=tuple(rows.index(group[0]) for group in groups[1:]),
            grey=tuple(rows.index(row) for row in self.grey if row in rows),
        )


class Row(NamedTuple):
    """Row of a table; rows are sorted by block and position."""

    block: tuple[int, str]
    position: tuple[Any, ...]
    labels: tuple[str, ...]
    is_grey: bool = False


class Number(NamedTuple):
    """Number of a table: its row, its column with levels as in `Table.cells`, and text."""

    row: Row
    column: tuple[str, ...]
    text: str
    bold: bool


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
    compared = runs
    if "pretraining_overrides" not in {*where, by}:
        compared = default_rows(runs, "pretraining_overrides", left_out)
    published = published_frame()
    for key in {*PROTOCOL, "evaluation"} - {by}:
        if key in where:
            published = published[matches(published[key], where[key])]
    if not {*PROTOCOL, "evaluation"} & {*where, by}:
        published = published[published["evaluation"] == "full"]
    published = published[:0] if measured else published
    tasks = compared.loc[compared["kind"] == "evaluation", "task"].unique()
    custom = {_file_name(CUSTOM + task): task for task in sorted({*tasks} - {*task_titles()})}
    ablations = {f"ablation_{name}": table for name, table in read_ablations().items()}
    names = [*TABLES, *ablations, *custom]
    for name in only:
        if name not in names:
            raise UserError(f"--only {name}", "no such table", suggest(name, names))
    notes = [*left_out, *skipped(frame)]
    remedy = f"run `tespec run` first{''.join(f' ({note})' for note in notes)}"
    scores = averaged(runs, by)
    compared_cells = {*compared["cell"]}
    compared_scores = [score for score in scores if score["cell"] in compared_cells]
    tables = []
    for name in only or names:
        if name in ablations:
            table = _ablation(ablations[name], scores, runs, published, by)
        else:
            table = _comparison(
                name, custom.get(name, ""), compared_scores, compared, published, by
            )
        if table:
            tables.append(selected(table._replace(name=name), notes, where, by, measured))
        elif only:
            raise UserError(f"--only {name}", "has no measured results", remedy)
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
    name = "_".join([table.name, *["measured"] * measured, *map("-".join, where.items())])
    return table._replace(
        title=", ".join([table.title, "; ".join(words)]) if words else table.title,
        name=_file_name(f"{name}_by_{by}" if by else name),
        notes=(*table.notes, *notes),
        data=table.data.assign(table=table.name),
    )


def skipped(frame: pd.DataFrame) -> list[str]:
    """Note on the files that are not records; empty without any."""
    problems = frame.attrs.get("left_out", [])
    return [f"Skipped {len(problems)} damaged records: {'; '.join(problems[:3])}."] * bool(problems)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def averaged(runs: pd.DataFrame, by: str = "") -> list[Score]:
    """Average the runs of each cell.

    Args:
        runs: from `select`.
        by: column whose values are averaged separately.

    Returns:
        Columns of the first run of each cell, metric and group of frames, and: `level` (the text of
        `by`), mean, std, n, seeds, pretrainings (their numbers), machines, and text, such as
        "34.47 ± 0.25 (3 of 5)" if other cells of a column have five runs.
    """
    if runs.empty:
        return []
    start = runs["pretraining_seed"].astype(object).where(runs["weights"] == "", runs["weights"])
    keys = ["cell", "metric", "frames", *([by] if by not in ("", "frames") else [])]
    groups = runs.assign(start=start).groupby(keys, sort=False, dropna=False)
    numbers = groups.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        n=("value", "size"),
        finite=("value", "count"),
        seeds=("seed", "nunique"),
        pretrainings=("start", "nunique"),
        partial=("partial", "max"),
        machines=("machine", "unique"),
    )
    firsts: list[Any] = groups.head(1).to_dict("records")
    scores: list[Score] = [
        first | number for first, number in zip(firsts, numbers.to_dict("records"), strict=True)
    ]
    most: dict[Hashable, int] = {}
    for score in scores:
        score["level"] = _level(score, by)
        for key, count in zip(_rivals(score), (score["n"], score["seeds"]), strict=True):
            most[key] = max(most.get(key, 0), count)
    for score in scores:
        score["text"] = _text(score, max(most[key] for key in _rivals(score)))
    return scores


def _level(facts: Mapping[str, Any], by: str) -> tuple[str, ...]:
    return (as_text(facts.get(by, "")),) if by else ()


def _rivals(score: Score) -> tuple[Hashable, Hashable]:
    """Keys of the cells that should have as many runs as this, and as many seeds.

    Methods without pre-training have one run per seed, others one per seed and pre-training. Rows
    of an ablation may have fewer runs than the default, and references have one.
    """
    column = [score[name] for name in ("kind", "task", "metric", "column", "level")]
    key = (*column, score["pretraining_overrides"] != "")
    return (*key, score["pretrainings"] > 0), key


def _text(score: Score, most: int) -> str:
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
    name: str,
    custom: str,
    scores: Sequence[Score],
    runs: pd.DataFrame,
    published: pd.DataFrame,
    by: str,
) -> Table | None:
    """Comparison table of the paper, or of the task `custom`; None if it has no numbers."""
    paper: dict[str, Any]
    if custom:
        paper = {"title": f"Task {custom}", "decimals": 3, "marks": {}}
        tasks = {custom: custom}
        titles = metric_titles(runs[runs["task"] == custom])
    else:
        paper = read_published(name)
        tasks, titles = titles_of(name)
    measured = runs[runs["task"].isin(tasks) & runs["metric"].isin(titles)]
    scores = [score for score in scores if score["task"] in tasks and score["metric"] in titles]
    published = published[published["table"] == name]
    # Rows of other publications without a number appear only in the long CSV.
    shown = published[(published["source"] == PAPER) | published["value"].notna()]
    if shown.empty and not scores:
        return None
    numbers = []
    published_numbers: list[dict[Any, Any]] = shown.to_dict("records")
    for number in published_numbers:
        # Other publications report percentages with at most two decimals.
        is_paper = number["source"] == PAPER
        is_short = number["unit"] == "%" and not is_paper
        digits = min(2, paper["decimals"]) if is_short else paper["decimals"]
        value = number["value"]
        evaluation = number["evaluation"]
        source = PUBLISHED if evaluation == "full" else f"{PUBLISHED} ({evaluation})"
        labels = [number["group"], number["title"] + number["mark"], number["backbone"]]
        labels += [RECURRENT[number["arch"]], number["pretraining_data"]]
        row = Row(
            (number["block"], ""), (number["order"],), tuple(labels), is_paper > number["ranked"]
        )
        column = (number["task"], number["metric"], source, *_level(number, by))
        text = NONE if pd.isna(value) else f"{value:.{digits}f}"
        numbers.append(Number(row, column, text, number["bold"]))
    last = _published_places(name)
    rows = [_measured_row(score, last) for score in scores]
    placed, notes = measured_numbers(scores, rows)
    numbers += placed
    used = "".join(number.row.labels[1] for number in numbers)
    beyond = read_published(BEYOND)["marks"] if len(shown) else {}
    marks = (paper["marks"] if len(shown) else {}) | {
        mark: text for mark, text in beyond.items() if mark in used
    }
    cells, bold, ordered = assemble(numbers, LABELS, tasks, titles)
    main = next((titles[metric] for metric in measured.loc[measured["main"], "metric"]), "")
    return Table(
        paper["title"],
        cells,
        bold,
        (*(f"{mark} {text}." for mark, text in marks.items()), *notes),
        data_behind(published, measured),
        main,
        rules_between([row.block for row in ordered]),
        tuple(n for n, row in enumerate(ordered) if row.is_grey),
    )


def _published_places(table: str) -> dict[Hashable, tuple[int, str, int]]:
    """Block, heading and order of the last ranked row of each method, also by architecture."""
    places: dict[Hashable, tuple[int, str, int]] = {}
    published = published_frame()
    ranked = published[(published["table"] == table) & published["ranked"]]
    columns = ranked[["method", "arch", "block", "group", "order"]]
    for method, arch, *place in columns.itertuples(index=False, name=None):
        places[method] = places[method, arch] = tuple(place)
    return places


def _measured_row(score: Score, last: Mapping[Hashable, Any]) -> Row:
    """Place a measured row below the published rows of its method, else in a group of its own."""
    labels = (score["label"], *_facts(score))
    near = last.get((score["method"], score["arch"])) or last.get(score["method"])
    if near:
        block, heading, order = near
        return Row((block, ""), (order, *labels), (heading, *labels))
    is_reference = score["kind"] == "reference"
    group = "References" if is_reference else score["group"]
    return Row((200 if is_reference else 100, group), labels, (group, *labels))


def _facts(score: Score) -> tuple[str, str, str]:
    """Labels of a measured row behind its name: network, whether it is recurrent, and data."""
    return score["network"], RECURRENT[score["arch"]], score["pretraining_data"]


def _ablation(
    ablation: Ablation,
    scores: Sequence[Score],
    runs: pd.DataFrame,
    published: pd.DataFrame,
    by: str,
) -> Table | None:
    """Ablation table: published rows, and measured ones by settings; None without either."""
    positions = match_rows(ablation, scores)
    scores = [
        score for score in scores if score["cell"] in positions and score["metric"] in METRICS
    ]
    # Show the default row if another row was measured, and other tasks if the ablation's own task
    # was not.
    shared = {
        _shared(score) for score in scores if not ablation.rows[positions[score["cell"]]].default
    }
    shared = {key for key in shared if key[0] == ablation.task} or shared
    scores = [score for score in scores if _shared(score) in shared]
    names = [f"{row.name} (default)" if row.default else row.name for row in ablation.rows]
    numbers = []
    paper = published[(published["method"] == ABLATED) & published["ranked"]].head(1)
    default: list[dict[Any, Any]] = paper.to_dict("records")
    for facts in default:
        for position, row in enumerate(ablation.rows):
            data = task_titles().get(row.set.get("dataset", ""), facts["pretraining_data"])
            labels = (names[position], facts["backbone"], RECURRENT[facts["arch"]], data)
            numbers += [
                Number(
                    Row((0, ""), (position,), labels),
                    (ablation.task, metric, PUBLISHED, *_level(facts, by)),
                    f"{value:.3f}",
                    row.default,
                )
                for metric, value in zip(METRICS, row.paper, strict=True)
                if value is not None
            ]
    if not scores and not numbers:
        return None
    named = [score | {"label": names[positions[score["cell"]]]} for score in scores]
    keys = [name for name in ROW if name not in ("backbone", "arch", by)]
    beside = ["network", "arch", "pretraining_data", "task", "metric", "column", "level"]
    rows = []
    for score, name in zip(scores, distinguished(named, "label", keys, beside), strict=True):
        labels = (name, *_facts(score))
        rows.append(Row((0, ""), (positions[score["cell"]], *labels), labels))
    placed, notes = measured_numbers(scores, rows)
    numbers += placed
    _, titles = titles_of("segmentation")
    known = task_titles()
    tasks = {number.column[0]: known.get(number.column[0], number.column[0]) for number in numbers}
    cells, bold, _ = assemble(numbers, [ablation.variable, *LABELS[2:]], tasks, titles)
    measured = runs[
        runs["cell"].isin({score["cell"] for score in scores}) & runs["metric"].isin(METRICS)
    ]
    return Table(
        f"Ablation: {ablation.title}",
        cells,
        bold,
        tuple(notes),
        data_behind(published[:0], measured),
        titles[METRICS[0]],
    )


def _shared(score: Score) -> tuple[str, ...]:
    return score["task"], score["arch"], score["backbone"], score["column"]


def measured_numbers(
    scores: Sequence[Score], rows: Sequence[Row]
) -> tuple[list[Number], list[str]]:
    """Put measured scores into rows of a table.

    Args:
        scores: from `averaged`.
        rows: of each score.

    Returns:
        Numbers, the best of each column in bold, with marks of machines; and notes that explain
        their texts.
    """
    columns = [
        (score["task"], score["metric"], score["column"], *score["level"]) for score in scores
    ]
    ranked: dict[Hashable, list[float]] = {}
    for score, column in zip(scores, columns, strict=True):
        if score["kind"] == "evaluation" and score["better"] and score["finite"] == score["n"]:
            ranked.setdefault((column, score["better"]), []).append(score["mean"])
    machines = Counter(name for score in scores for name in score["machines"]).most_common()
    marks = {machines[0][0]: ""} if machines else {}
    for n, (name, _) in enumerate(machines[1:]):
        marks[name] = SIGNS[n] if n < len(SIGNS) else f" [{n + 2}]"
    numbers = []
    for score, column, row in zip(scores, columns, rows, strict=True):
        means = ranked.get((column, score["better"]), [])
        best = min(means, default=None) if score["better"] == "lower" else max(means, default=None)
        is_best = score["kind"] == "evaluation" and len(means) > 1 and score["mean"] == best
        text = score["text"] + "".join(marks[name] for name in score["machines"])
        numbers.append(Number(row, column, text, is_best and score["finite"] == score["n"]))
    notes = [AVERAGED] * bool(scores)
    if len(marks) > 1:
        unmarked, *others = marks
        marked = "; ".join(f"{marks[name]} {name}".strip() for name in others)
        notes.append(f"Measured on different machines: {marked}; unmarked: {unmarked}.")
    notes += [PARTIAL] * any(score["partial"] for score in scores)
    changed = [score[name] for score in scores for name in ("overrides", "pretraining_overrides")]
    notes += [ACCUMULATED] * any("accumulate=" in text for text in changed)
    return numbers, notes


def assemble(
    numbers: Sequence[Number],
    names: list[str],
    tasks: Mapping[str, str],
    titles: Mapping[str, str],
) -> tuple[pd.DataFrame, pd.DataFrame, list[Row]]:
    """Arrange numbers in rows and columns.

    Args:
        numbers: of the table.
        names: of the row labels.
        tasks: titles of the tasks by name, in their order.
        titles: titles of the metrics by name, in their order.

    Returns:
        Texts, whether they are bold, and the rows, in order.
    """
    placed = {(number.row, number.column): number for number in numbers}
    if len(placed) < len(numbers):
        raise ValueError("two numbers in one cell of a table")
    rows = sorted({number.row for number in numbers})
    order = [*tasks, *titles]
    columns = sorted(
        {number.column for number in numbers},
        key=lambda column: (
            order.index(column[0]),
            order.index(column[1], len(tasks)),
            not column[2].startswith(PUBLISHED),
            *column[2:],
        ),
    )
    empty = Number(Row((0, ""), (), ()), (), NONE, False)
    table = [[placed.get((row, column), empty) for column in columns] for row in rows]
    index = pd.MultiIndex.from_tuples([row.labels for row in rows], names=names)
    headers = [(tasks[task], titles[metric], *rest) for task, metric, *rest in columns]
    header = pd.MultiIndex.from_tuples(headers)
    cells = [[number.text for number in row] for row in table]
    bold = [[number.bold for number in row] for row in table]
    return pd.DataFrame(cells, index, header), pd.DataFrame(bold, index, header), rows


def data_behind(published: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Numbers behind a table: published ones, then one row per record and metric."""
    measured = measured[COLUMNS].assign(source=MEASURED)
    columns = ["source", *COLUMNS, "mark", "citation", "tta", "bold"]
    parts = [part for part in (published, measured) if len(part)]
    return pd.concat(parts or [measured], ignore_index=True).reindex(columns=columns)


def metric_titles(runs: pd.DataFrame) -> dict[str, str]:
    """Titles of metrics with unit and arrow by name, the main metric first.

    Metrics of scores only, unless there are none.
    """
    scored = runs[runs["better"] != ""]
    runs = (scored if len(scored) else runs).sort_values("main", ascending=False, kind="stable")
    rows: list[dict[Any, Any]] = runs.drop_duplicates("metric").to_dict("records")
    titles = {}
    for row in rows:
        unit = f" ({row['unit']})" if row["unit"] not in ("", "%") else ""
        title = row["metric_title"].rstrip(" ↑↓")
        titles[row["metric"]] = f"{title}{unit}{ARROWS[row['better']]}"
    return titles


def rules_between(groups: Sequence[Hashable]) -> tuple[int, ...]:
    """Positions where a new group begins."""
    return tuple(n for n in range(1, len(groups)) if groups[n] != groups[n - 1])
