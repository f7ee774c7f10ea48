"""Tidy DataFrame of all records, and its selection for tables.

It has one row per record, metric and group of frames.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.comparison.cell import REQUIRED_SHA256, RESULTS_VERSION, SAMPLE, Cell
from tespec.comparison.published import published_frame
from tespec.comparison.records import NEW_STEM, REPORTED, Record, iter_records
from tespec.core.errors import UserError, require
from tespec.core.paths import RESULTS
from tespec.core.settings import suggest

if TYPE_CHECKING:
    import pandas as pd

FACTS = [field.name for field in fields(Cell)]
COSTS = ["backbone_parameters", "head_parameters", "training_hours", "inference_ms"]
OF_CELL = [
    *["cell", *FACTS, "evaluation", "network", "pretraining_data", "pretraining_profile"],
    *["pretraining_overrides", "data_fingerprint", "pretraining_fingerprint", "mark"],
]
OF_RUN = [
    *["seed", "pretraining_seed", "weights", "classes", "recordings", "title", "group", "machine"],
    *["revision", "written", "name", "command", *COSTS],
    *["status", "seen", "tta", "reported_on"],
]
OF_NUMBER = [
    *["metric", "frames", "value", "unit", "better", "main", "metric_title", "partial"],
    "reported_value",
]
COLUMNS = [*OF_CELL, *OF_RUN, *OF_NUMBER]
ALL_FRAMES = "all"
# Columns that identify a row and a measured column of a table.
ROW = [
    *["kind", "method", "arch", "backbone", "method_version", "plugin", "start"],
    "pretraining_fingerprint",
]
COLUMN = [name for name in FACTS if name not in ("task", *ROW)] + ["frames", "data_fingerprint"]
LEVELS = [*COLUMN, *ROW, "evaluation", "seed", "pretraining_seed", "weights", "machine", "revision"]
OF_EVALUATION = ["label_fraction", "frozen"]  # `evaluation` is made of these
# Values that tables show, of all frames, unless a filter or `by` names the column.
DEFAULTS = {
    "split": "test",
    "label_fraction": 1.0,
    "frozen": False,
    "overrides": "",
    "pretraining_overrides": "",
}
# Of results that share the first columns, a table shows the version that is the last by the order
# of the column behind them.
SAME_SETTING = ["kind", "task", "data", "profile", "pretraining_overrides"]
SAME_BUT_VERSION = sorted(
    {*ROW, *COLUMN, "task", "author"}
    - {"results_version", "task_version", "method_version", "plugin"}
)
VERSIONS = {
    "results_version": (SAME_SETTING, "results_version"),
    "task_version": (SAME_SETTING, "task_version"),
    "method_version": (SAME_BUT_VERSION, "method_version"),
    "plugin": (SAME_BUT_VERSION, "written"),
    # A seed has several results if its initial weights were made again, which changes the name.
    "name": (["cell", "seed", "pretraining_seed", "weights"], "written"),
}
# Words for results that are not shown, by the column that left them out.
NOT_SHOWN = {
    **dict.fromkeys(DEFAULTS, "with {reason} {values} (--where {reason}=VALUE)"),
    **dict.fromkeys(VERSIONS, "of another {reason} (--where {reason}=*)"),
    "name": "that were computed again since",
}
LEFT_OUT = ["task", "method", *DEFAULTS, *VERSIONS, "reason"]
# Overrides of a pre-training that are not settings; the column `start` contains them.
NOT_SETTINGS = ("objective_version", REQUIRED_SHA256)
# What a pre-training usually has in common with its fine-tuning, and its usual other facts.
SHARED_WITH_START = ["arch", "backbone", "method_version", "plugin", "results_version"]
USUAL_START = {
    "kind": "pretraining",
    "split": "test",
    "label_fraction": 1.0,
    "frozen": False,
    "task_version": 1,
}
# usual value, and the words for another one, of the facts in the name of a measured column
SETTING_WORDS: dict[str, tuple[Any, str]] = {
    "split": ("test", "{} split"),
    "overrides": ("", "{}"),
    "frames": (ALL_FRAMES, "{} frames"),
    "results_version": (RESULTS_VERSION, "results version {}"),
}
MEASURED = "measured"
# Statuses of records, besides `REPORTED`.
COMPUTED = "computed"
RESCORED = "rescored"  # predictions of others, scored here
REPRODUCED = "reproduced"  # reported, and computed here as well
TTA = "TTA"


def results(folder: str | Path | None = None) -> pd.DataFrame:
    """Read all records of a results folder, with one row per record, metric and group of frames.

    Example:
        >>> import tespec
        >>> frame = tespec.results("results")
        >>> scores = frame[(frame.kind == "evaluation") & frame.main]
        >>> means = scores.groupby("cell").value.mean()  # over seeds
        >>> print(len(means), means.min() > 0)
        36 True

    Args:
        folder: contains `runs/`; None: the harness's results folder.

    Returns:
        DataFrame with columns `COLUMNS`: the fields and properties of a `Cell`, seeds, numbers,
        provenance and costs. `overrides` and `start` are texts. `cell` is a hash of the cell and of
        its data: grouping by it averages over seeds of fine-tuning and pre-training only.
        `weights` is the hash of the user's file of initial weights, "" without one. `frames` is
        "all" for overall numbers, `value` is NaN for numbers that are not finite, and `main` marks
        the task's main metric. `classes` and `recordings` count those with a score. `partial` is
        "2 of 3 classes" (or recordings or frames) for a mean that leaves some out, else "".
        `status` is "computed", "rescored", "reported" or "reproduced", which has the value that was
        reported in `reported_value`. `mark` lists what readers must know of the initial weights.
        `attrs["left_out"]` lists files that are not records.

    Raises:
        UserError: the folder does not exist, or is not a results folder.
    """
    problems: list[str] = []
    folder = RESULTS if folder is None else Path(folder)
    # One record at a time, as thousands of them need a gigabyte.
    sent = folder / REPORTED
    reported = iter_records(sent, problems) if sent.is_dir() else ()
    frame = to_frame(iter_records(folder, problems), reported)
    frame = frame.sort_values("name", kind="stable", ignore_index=True)
    frame.attrs["left_out"] = problems
    return frame


def to_frame(records: Iterable[Record], reported: Iterable[Record] = ()) -> pd.DataFrame:
    """Convert records to the DataFrame that `results` returns.

    Args:
        records: with distinct names.
        reported: sent by others, with distinct names. One of the name, or of the key and data, of
            a record is its `reported_value` instead of a row; predictions have the same name.
    """
    import pandas as pd  # takes half a second, too long before a usage error

    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    runs = []
    numbers: list[tuple[Any, ...]] = []
    for record, status, other in _with_status(records, reported):
        fingerprints = (record.data_fingerprint, record.weights.data_fingerprint)
        marks = record.weights.marks
        identity = (record.cell.text, *fingerprints, *marks, *_author(record))
        if identity not in cells:
            cells[identity] = _facts_of_cell(record, marks)
            cells[identity]["cell"] = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:12]
        run = _facts_of_run(record)
        run["cell"] = cells[identity]["cell"]
        run["status"] = status
        run["reported_on"] = other.environment.summary if other else ""
        runs.append(run)
        numbers += _numbers(record, other)
    of_runs = pd.DataFrame(runs, columns=["cell", *OF_RUN])
    # The type that pandas would choose has no integers beside missing values.
    of_runs["pretraining_seed"] = pd.Series([run["pretraining_seed"] for run in runs], dtype=object)
    of_runs["written"] = pd.to_datetime(of_runs["written"], utc=True)
    frame = pd.DataFrame(numbers, columns=["name", *OF_NUMBER])
    frame = frame.merge(of_runs, on="name", validate="many_to_one")
    frame = frame.merge(pd.DataFrame(cells.values(), columns=OF_CELL), on="cell")
    types = dict.fromkeys(["value", "reported_value", *COSTS], "float64")
    types |= {"main": "bool", "tta": "bool"}
    return frame[COLUMNS].astype(types)


def _with_status(
    records: Iterable[Record], reported: Iterable[Record]
) -> Iterator[tuple[Record, str, Record | None]]:
    """Yield records with their status, and the reported record that a reproduced one repeats."""
    by_name = {record.name: record for record in reported}
    by_key = {
        (record.key, record.data_fingerprint): record
        for record in by_name.values()
        if record.cell.kind != "predictions"  # others of the same key are of another network
    }
    repeated = set()
    for record in records:
        key = (record.key, record.data_fingerprint)
        other = by_name.get(record.name) or by_key.get(key)
        if other:
            repeated.add(other.name)
        status = REPRODUCED if other else COMPUTED
        yield record, RESCORED if record.cell.kind == "predictions" else status, other
    for name, record in by_name.items():
        if name not in repeated:
            yield record, REPORTED, None


def _author(record: Record) -> list[str]:
    """Title and citation of predictions, which others may have named like a method here.

    Empty for other records.
    """
    names = ("title", "citation") if record.cell.kind == "predictions" else ()
    return [record.facts.get(name, "") for name in names]


def _facts_of_cell(record: Record, marks: Sequence[str]) -> dict[str, Any]:
    cell = record.cell
    start = cell.start if isinstance(cell.start, Cell) else None
    # Rows and brackets of tables say these, and so they are shown without a filter.
    hidden = {"new_stem"} if NEW_STEM in marks else set()
    if cell.kind == "predictions":
        hidden.add("test_time_augmentation")
    # A control starts from a fine-tuning, whose settings are not those of another pre-training.
    changed = start.overrides if start and cell.kind != "control" else {}
    return {
        **{name: getattr(cell, name) for name in FACTS},
        "overrides": settings_text(cell.overrides, hidden),
        "start": _start_text(cell),
        "evaluation": cell.evaluation,
        "network": cell.network,
        "pretraining_data": cell.pretraining_data,
        "pretraining_profile": start.profile if start else "",
        "pretraining_overrides": settings_text(changed, NOT_SETTINGS),
        "data_fingerprint": record.data_fingerprint,
        "pretraining_fingerprint": record.weights.data_fingerprint,
        "mark": ", ".join(marks),
    }


def _facts_of_run(record: Record) -> dict[str, Any]:
    is_file = isinstance(record.pretraining, str)
    title = record.facts.get("title", record.cell.method)
    citations = [f"({citation})" for citation in _author(record)[1:] if citation]
    augmentation = record.config.get("test_time_augmentation", "none")
    # The config of predictions has no such setting; their cell names the augmentation.
    augmentation = record.cell.overrides.get("test_time_augmentation", augmentation)
    return {
        **record.cost,
        "seed": record.seed,
        "pretraining_seed": None if is_file else record.pretraining,
        "weights": record.pretraining if is_file else "",
        "classes": sum(value is not None for value in record.classes.values()),
        "recordings": len(record.recordings),
        "title": " ".join([title, *citations]),
        "group": record.facts.get("group", ""),
        "machine": record.environment.machine,
        "revision": record.environment.revision,
        "written": record.written,
        "name": record.name,
        "command": record.command,
        "training_hours": record.time["train"] / 3600 if "train" in record.time else None,
        "seen": "; ".join(f"{kind}: {which}" for kind, which in record.weights.seen.items()),
        "tta": augmentation != "none",
    }


def _start_text(cell: Cell) -> str:
    """Describe the pre-training that a cell starts from by all facts that the cell does not share.

    For instance "tespec: 1Mpx (sample world, study), objective.mask.ratio=0.25".
    """
    start = cell.start
    if not isinstance(start, Cell):
        return start
    usual = {name: getattr(cell, name) for name in SHARED_WITH_START} | USUAL_START
    facts = {name: getattr(start, name) for name in usual}
    changed = {name: value for name, value in facts.items() if value != usual[name]}
    words = [f"{start.method}: {cell.pretraining_data}", settings_text(start.overrides | changed)]
    if start.data not in (SAMPLE, start.task):
        words.append(f"task={start.task}")
    if start.start:
        words.append(f"from {_start_text(start)}")
    return ", ".join(filter(None, words))


def settings_text(settings: Mapping[str, Any], hidden: Collection[str] = ()) -> str:
    """Format settings by dotted name as one line, in alphabetical order.

    Args:
        settings: values by name.
        hidden: names that are left out.
    """
    names = sorted(settings.keys() - hidden)
    return ", ".join(f"{name}={as_text(settings[name])}" for name in names)


def _numbers(record: Record, reported: Record | None) -> Iterator[tuple[Any, ...]]:
    """Yield the record's name and each of its numbers, with the columns `OF_NUMBER`."""
    reported_numbers = {ALL_FRAMES: reported.metrics, **reported.groups} if reported else {}
    scores = {name: (of.unit, of.better, of.title) for name, of in record.scores.items()}
    # metrics of a history are gains, which have no score
    main = next((name for name in (*scores, *record.metrics) if name in record.metrics), "")
    # Such as "all map: 2 of 3 classes", see `tespec.metrics.partial_means`.
    texts = record.protocol.get("partial means", "").split("; ")
    partial = {mean: count for mean, _, count in (text.rpartition(": ") for text in texts)}
    for frames, numbers in {ALL_FRAMES: record.metrics, **record.groups}.items():
        other = reported_numbers.get(frames, {})
        for metric, value in numbers.items():
            unit, better, title = scores.get(metric, ("", "", metric))
            is_main = metric == main and frames == ALL_FRAMES
            facts = (unit, better, is_main, title, partial.get(f"{frames} {metric}", ""))
            yield record.name, metric, frames, value, *facts, other.get(metric)


def select(
    frame: pd.DataFrame,
    where: Mapping[str, str],
    by: str = "",
    free: Iterable[str] = (),
    kinds: Sequence[str] = ("evaluation", "predictions", "reference", "control"),
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Select the records that tables show.

    Of several versions of results, task and method, the highest is selected; of several plug-ins of
    a method, and of several results of one cell and seed, the newest. A reported result replaces no
    other.

    Args:
        frame: DataFrame from `results`.
        where: value by column, with `*` and `?` as in file names.
        by: column whose values are shown side by side, one of `LEVELS`.
        free: columns that the table shows in another way.
        kinds: of the records.

    Returns:
        Two DataFrames. The first has the selected rows; columns that are not in `where`, `by` or
        `free` have the values of `DEFAULTS`. Its additional columns are `label`, the method's
        title, and `column`, the name of the measured column, both with the facts that distinguish
        them; its `pretraining_data` ends in `mark`. The second has the columns `LEFT_OUT` of the
        other rows of these filters and frames; `reason` is the column of `DEFAULTS` or `VERSIONS`
        that left them out.

    Raises:
        UserError: a column does not exist, or a value matches no results.
    """
    import pandas as pd

    require(not by or by in LEVELS, f"column {by}", "cannot be used with --by", suggest(by, LEVELS))
    chosen = frame[frame["kind"].isin(kinds)]
    # The versions of predictions are their authors' own.
    chosen = chosen.assign(author=chosen["title"].where(chosen["kind"] == "predictions", ""))
    published = published_frame()
    for key, pattern in where.items():
        require(key in COLUMNS, f"column {key}", "no such column", suggest(key, COLUMNS))
        is_match = matches(chosen[key], pattern)
        is_published = key in published and matches(published[key], pattern).any()
        if not is_match.any() and not is_published:
            known = filter(None, map(as_text, chosen[key].unique()))
            raise UserError(f"{key}={pattern}", "matches no results", suggest(pattern, known))
        chosen = chosen[is_match]
    named = {*where, by, *free} | ({*OF_EVALUATION} if "evaluation" in {*where, by} else set())
    if "frames" not in named:
        chosen = chosen[chosen["frames"] == ALL_FRAMES]
    reasons = pd.Series("", chosen.index, dtype=object)
    for key, value in reversed(DEFAULTS.items()):  # the first reason counts
        if key not in named:
            reasons[chosen[key] != value] = key
    for version, (same, order) in VERSIONS.items():
        shared = sorted({*same, by} - {""})
        rest = chosen.loc[reasons == "", [*{*shared, version, order, "status"}]]
        if version not in named and rest[version].nunique() > 1:
            rest = rest.assign(here=rest["status"] != REPORTED)  # which come last
            rest = rest.sort_values(["here", order, version], kind="stable")
            groups = rest.groupby(shared, sort=False, dropna=False)
            reasons[rest.index[rest[version] != groups[version].transform("last")]] = version
    left_out = chosen.assign(reason=reasons).loc[reasons != "", LEFT_OUT]
    return _named(chosen[reasons == ""], by), left_out


def notes_on(frame: pd.DataFrame, left_out: pd.DataFrame) -> list[str]:
    """Say which files of `results` are not records, and how to show what `select` left out."""
    problems = frame.attrs.get("left_out", [])
    skipped = f"Skipped {len(problems)} damaged records: {'; '.join(problems[:3])}."
    notes = [skipped] if problems else []
    for reason, text in NOT_SHOWN.items():
        rows = left_out[left_out["reason"] == reason]
        if len(rows):
            values = ", ".join(map(as_text, rows[reason].unique()[:3]))
            words = text.format(reason=reason, values=values)
            notes.append(f"Not shown: {rows['name'].nunique()} results {words}.")
    return notes


def _named(chosen: pd.DataFrame, by: str) -> pd.DataFrame:
    """Add the columns `label` and `column`, and the mark to `pretraining_data`.

    The values of `by` are headings of their own, and so are not in the names.
    """
    level = {by, *(OF_EVALUATION if by == "evaluation" else [])}
    cells = chosen[[*OF_CELL, "title", "frames"]].drop_duplicates(["cell", "frames"])
    title = cells["title"].where(cells["title"] != "", cells["method"])
    changed = cells["pretraining_overrides"]
    cells["label"] = title.where(changed == "", title + ", " + changed)
    settings = cells.drop(columns=[*level & {*cells}]).to_dict("records")
    cells["column"] = [f"{MEASURED} ({setting_name(facts)})" for facts in settings]
    displayed = ["network", "arch", "pretraining_data", "mark", "task", "column", "frames"]
    displayed += level & {*OF_CELL}
    for name, keys, context in (
        ("label", ["method"], []),
        ("label", ROW, ["network", "arch", "pretraining_data"]),
        ("column", COLUMN, ["task"]),
        # what tables show without a name, such as the test-time augmentation of predictions
        ("label", ["cell"], displayed),
    ):
        distinguish(cells, name, [key for key in keys if key not in level], context)
    names = cells[["cell", "frames", "label", "column"]]
    data = chosen["pretraining_data"]
    data = data.where(chosen["mark"] == "", data + "; " + chosen["mark"])
    chosen = chosen.assign(pretraining_data=data)
    types = {"label": "str", "column": "str"}  # also without rows
    return chosen.merge(names.astype(types), on=["cell", "frames"])


def distinguish(rows: pd.DataFrame, name: str, keys: Iterable[str], context: Sequence[str]) -> None:
    """Extend equal texts in place by the facts that differ, such as ", method version 2".

    Args:
        rows: texts and facts, with columns of the frame.
        name: column of the texts.
        keys: facts that may differ.
        context: facts that are displayed with the text, so texts may be equal if these differ.
    """
    for key in keys:
        if rows[key].nunique() < 2:
            continue
        differ = rows.groupby([name, *context])[key].transform("nunique") > 1
        word = key.replace("_", " ")
        facts = rows.loc[differ, key].map(as_text)
        rows.loc[differ, name] += [f", {word} {fact}" if fact else f", no {word}" for fact in facts]


def matches(values: pd.Series[Any], pattern: str) -> pd.Series[bool]:
    """Compare the texts of values with a pattern.

    Args:
        values: column of the frame.
        pattern: text, in which `*` and `?` are wildcards as in file names.
    """
    texts = {value: as_text(value) for value in values.unique()}
    return values.isin(
        [value for value, text in texts.items() if text == pattern or fnmatchcase(text, pattern)]
    )


def as_text(value: Any) -> str:
    """Format a value of the frame for display and for filters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def remarks(statuses: Sequence[str], augmented: int) -> list[str]:
    """Count the runs of a mean that are not simply computed here, such as "2 reported".

    Args:
        statuses: of the runs.
        augmented: number of runs with test-time augmentation.

    Returns:
        Words; without a number if they hold for all runs.
    """
    counts = Counter(status for status in statuses if status != COMPUTED)
    counts[TTA] = augmented
    of_all = len(statuses)
    return [word if n == of_all else f"{n} {word}" for word, n in counts.items() if n]


def setting_name(facts: Mapping[Any, Any]) -> str:
    """Join data, profile, evaluation and the settings that are not the default.

    Args:
        facts: values of a frame's row by column, perhaps not all.
    """
    words = [facts.get(name, "") for name in ("data", "profile", "evaluation")]
    for name, (usual, text) in SETTING_WORDS.items():
        if facts.get(name, usual) != usual:
            words.append(text.format(facts[name]))
    return ", ".join(filter(None, words))
