"""Tidy DataFrame of all records, and its selection for tables.

It has one row per record, metric and group of frames.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.comparison.cell import RESULTS_VERSION, SAMPLE, Cell, differences
from tespec.comparison.published import published_frame
from tespec.comparison.records import Record, iter_records
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS
from tespec.core.settings import suggest

if TYPE_CHECKING:
    import pandas as pd

FACTS = [field.name for field in fields(Cell)]
COSTS = ["backbone_parameters", "head_parameters", "training_hours", "inference_ms"]
OF_RECORD = [
    *["cell", *FACTS, "evaluation", "network", "pretraining_data", "pretraining_profile"],
    *["pretraining_overrides", "data_fingerprint", "pretraining_fingerprint", "seed"],
    *["pretraining_seed", "weights", "classes", "recordings", "title", "group", "machine"],
    *["revision", "written", "name", "command", *COSTS],
]
OF_NUMBER = ["metric", "frames", "value", "unit", "better", "main", "metric_title", "partial"]
COLUMNS = [*OF_RECORD, *OF_NUMBER]
ALL_FRAMES = "all"
# Columns that identify a row and a measured column of a table.
ROW = ["kind", "method", "arch", "backbone", "method_version", "plugin", "start"]
ROW += ["pretraining_fingerprint"]
COLUMN = [name for name in FACTS if name not in ("task", *ROW)] + ["frames", "data_fingerprint"]
LEVELS = [*COLUMN, *ROW, "evaluation", "seed", "pretraining_seed", "weights", "machine", "revision"]
PROTOCOL = ["label_fraction", "frozen"]  # `evaluation` is made of these
# Values that tables show unless a filter or `by` names the column.
DEFAULTS = {
    "split": "test",
    "label_fraction": 1.0,
    "frozen": False,
    "overrides": "",
    "pretraining_overrides": "",
    "frames": ALL_FRAMES,
}
# Columns of which `select` takes the last value, by the order of a column, where others are equal.
SETTING = ["kind", "task", "data", "profile"]
SHARED = {*ROW, *COLUMN, "task"} - {"results_version", "task_version", "method_version", "plugin"}
VERSIONS = {
    "results_version": (SETTING, "results_version"),
    "task_version": (SETTING, "task_version"),
    "method_version": (sorted(SHARED), "method_version"),
    "plugin": (sorted(SHARED), "written"),
    # A seed has several results if its initial weights were made again, which changes the name.
    "name": (["cell", "seed", "pretraining_seed", "weights"], "written"),
}
MEASURED = "measured"


def results(folder: str | Path | None = None) -> pd.DataFrame:
    """Read all records of a results folder, with one row per record, metric and group of frames.

    Example:
        >>> import tespec
        >>> frame = tespec.results("results")
        >>> scores = frame[(frame.kind == "evaluation") & frame.main]
        >>> means = scores.groupby("cell").value.mean()  # over seeds
        >>> print(len(means), means.min() > 0)
        27 True

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
        `attrs["left_out"]` lists files that are not records.

    Raises:
        UserError: the folder does not exist, or is not a results folder.
    """
    problems: list[str] = []
    # One record at a time, as thousands of them need a gigabyte.
    frame = to_frame(iter_records(RESULTS if folder is None else Path(folder), problems))
    frame = frame.sort_values("name", kind="stable", ignore_index=True)
    frame.attrs["left_out"] = problems
    return frame


def to_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Convert records to the DataFrame that `results` returns."""
    import pandas as pd  # takes half a second, too long before a usage error

    cells: dict[str, dict[str, Any]] = {}
    rows = []
    numbers: list[tuple[Any, ...]] = []
    for position, record in enumerate(records):
        text = record.cell.text
        cells[text] = cells.get(text) or _facts_of_cell(record.cell)
        rows.append(cells[text] | _facts_of_run(record))
        numbers += [(position, *number) for number in _numbers(record)]
    values = pd.DataFrame(numbers, columns=["position", *OF_NUMBER])
    runs = pd.DataFrame(rows, columns=OF_RECORD)
    # The type that pandas would choose has no integers beside missing values.
    runs["pretraining_seed"] = pd.Series([row["pretraining_seed"] for row in rows], dtype=object)
    runs["written"] = pd.to_datetime(runs["written"], utc=True)
    runs = runs.take(values.pop("position").to_numpy()).reset_index(drop=True)
    types = dict.fromkeys(["value", *COSTS], "float64") | {"main": "bool"}
    return pd.concat([runs, values], axis=1).astype(types)


def _facts_of_cell(cell: Cell) -> dict[str, Any]:
    start = cell.start if isinstance(cell.start, Cell) else None
    changed = start.overrides if start else {}
    return {
        **{name: getattr(cell, name) for name in FACTS},
        "overrides": settings_text(cell.overrides),
        "start": _start_text(cell),
        "evaluation": cell.evaluation,
        "network": cell.network,
        "pretraining_data": cell.pretraining_data,
        "pretraining_profile": start.profile if start else "",
        # The version of another objective is a version, not a setting; `start` has it.
        "pretraining_overrides": settings_text(
            {key: value for key, value in changed.items() if key != "objective_version"}
        ),
    }


def _facts_of_run(record: Record) -> dict[str, Any]:
    own = isinstance(record.pretraining, str)
    data = [record.data_fingerprint, record.weights.data_fingerprint]
    identity = "\n".join([record.cell.text, *data])
    return {
        "cell": hashlib.sha256(identity.encode()).hexdigest()[:12],
        "data_fingerprint": record.data_fingerprint,
        "pretraining_fingerprint": record.weights.data_fingerprint,
        "seed": record.seed,
        "pretraining_seed": None if own else record.pretraining,
        "weights": record.pretraining if own else "",
        "classes": sum(value is not None for value in record.classes.values()),
        "recordings": len(record.recordings),
        "title": record.facts.get("title", record.cell.method),
        "group": record.facts.get("group", ""),
        "machine": record.environment.machine,
        "revision": record.environment.revision,
        "written": record.written,
        "name": record.name,
        "command": record.command,
        **{name: record.cost.get(name) for name in COSTS},
        "training_hours": record.time["train"] / 3600 if "train" in record.time else None,
    }


def _start_text(cell: Cell) -> str:
    """Describe the pre-training that a cell starts from by all facts that the cell does not share.

    For instance "tespec: 1Mpx (sample world, study), objective.mask.ratio=0.25".
    """
    start = cell.start
    if not isinstance(start, Cell):
        return start
    expected = replace(
        cell,
        kind="pretraining",
        method=start.method,
        task=start.task,
        data=start.data,
        profile=start.profile,
        overrides={},
        start=start.start,
        split="test",
        label_fraction=1.0,
        frozen=False,
        task_version=1,
    )
    changed = {
        name.removeprefix("overrides."): value
        for name, (_, value) in differences(expected, start).items()
    }
    words = [f"{start.method}: {cell.pretraining_data}", settings_text(changed)]
    words += [f"task={start.task}"] if start.data not in (SAMPLE, start.task) else []
    words += [f"from {_start_text(start)}"] if start.start else []
    return ", ".join(filter(None, words))


def settings_text(settings: Mapping[str, Any]) -> str:
    """Format settings by dotted name as one line, in alphabetical order."""
    return ", ".join(f"{key}={as_text(settings[key])}" for key in sorted(settings))


def _numbers(record: Record) -> Iterator[tuple[Any, ...]]:
    """Yield the numbers of a record, with the columns `OF_NUMBER`."""
    main = next(iter(record.scores), next(iter(record.metrics), ""))
    texts = record.protocol.get("partial means", "").split("; ")
    # see `tespec.metrics.partial_means`
    partial = {mean: count for mean, _, count in (text.rpartition(": ") for text in texts)}
    for frames, numbers in {ALL_FRAMES: record.metrics, **record.groups}.items():
        for metric, value in numbers.items():
            score = record.scores.get(metric)
            facts = (score.unit, score.better) if score else ("", "")
            is_main = metric == main and frames == ALL_FRAMES
            title = score.title if score else metric
            yield (
                metric,
                frames,
                value,
                *facts,
                is_main,
                title,
                partial.get(f"{frames} {metric}", ""),
            )


def select(
    frame: pd.DataFrame,
    where: Mapping[str, str],
    by: str = "",
    free: Iterable[str] = (),
    kinds: Sequence[str] = ("evaluation", "reference", "control"),
) -> tuple[pd.DataFrame, list[str]]:
    """Select the records that tables show.

    Of several versions of results, task and method, the highest is selected; of several plug-ins of
    a method, and of several results of one cell and seed, the newest.

    Args:
        frame: DataFrame from `results`.
        where: value by column, with `*` and `?` as in file names.
        by: column whose values are shown side by side, one of `LEVELS`.
        free: columns that the table shows in another way.
        kinds: of the records.

    Returns:
        The rows with additional columns, and notes on the records that were left out. `label` is
        the method's title and `column` the name of the measured column, both with the facts that
        distinguish them. Columns that are not in `where`, `by` or `free` have the values of
        `DEFAULTS`.

    Raises:
        UserError: a column does not exist, or a value matches no results.
    """
    for key in where:
        if key not in COLUMNS:
            raise UserError(f"column {key}", "no such column", suggest(key, COLUMNS))
    if by and by not in LEVELS:
        raise UserError(f"column {by}", "cannot be used with --by", suggest(by, LEVELS))
    chosen = frame[frame["kind"].isin(kinds)]
    published = published_frame()
    for key, pattern in where.items():
        selected = matches(chosen[key], pattern)
        is_published = key in published and matches(published[key], pattern).any()
        if not selected.any() and not is_published:
            known = filter(None, map(as_text, chosen[key].unique()))
            raise UserError(f"{key}={pattern}", "matches no results", suggest(pattern, known))
        chosen = chosen[selected]
    problems = frame.attrs.get("left_out", [])
    skipped = f"Skipped {len(problems)} damaged records: {'; '.join(problems[:3])}."
    notes = [skipped] if problems else []
    named = {*where, by, *free} | ({*PROTOCOL} if "evaluation" in {*where, by} else set())
    for key, value in DEFAULTS.items():
        if key in named:
            continue
        others = chosen[chosen[key] != value]
        if key != "frames" and len(others):
            values = ", ".join(map(as_text, others[key].unique()[:3]))
            count = others["name"].nunique()
            notes.append(f"Not shown: {count} results with {key} {values} (--where {key}=VALUE).")
        chosen = chosen[chosen[key] == value]
    for version, (keys, order) in VERSIONS.items():
        if version not in named:
            chosen = _newest(chosen, {*keys, by} - {""}, version, order, notes)
    return _named(chosen, by), notes


def _named(chosen: pd.DataFrame, by: str) -> pd.DataFrame:
    """Add the columns `label` and `column`; the values of `by` are displayed elsewhere."""
    keys = chosen["cell"] + chosen["frames"]
    cells: list[Any] = chosen.assign(key=keys).drop_duplicates("key").to_dict("records")
    titles: dict[Any, str] = {}
    level = {by, *(PROTOCOL if by == "evaluation" else [])}
    for cell in cells:
        words = [cell["title"] or cell["method"], cell["pretraining_overrides"]]
        title = ", ".join(filter(None, words))
        cell["label"] = titles.setdefault(tuple(cell[name] for name in ROW), title)
        facts = {name: value for name, value in cell.items() if name not in level}
        cell["column"] = f"{MEASURED} ({setting_name(facts)})"
    rows = [name for name in ROW if name not in level]
    columns = [name for name in COLUMN if name not in level]
    for cell, label in zip(cells, distinguished(cells, "label", ["method"], []), strict=True):
        cell["label"] = label
    labels = distinguished(cells, "label", rows, ["network", "arch", "pretraining_data"])
    names = distinguished(cells, "column", columns, ["task"])
    order = [cell["key"] for cell in cells]
    return chosen.assign(
        label=keys.map(dict(zip(order, labels, strict=True))).astype(object),
        column=keys.map(dict(zip(order, names, strict=True))).astype(object),
    )


def _newest(
    frame: pd.DataFrame, keys: Iterable[str], version: str, order: str, left_out: list[str]
) -> pd.DataFrame:
    """Select in each group of `keys` the rows with the last `version` by the column `order`.

    A note on the other rows is added to `left_out`.
    """
    if frame[version].nunique() < 2:
        return frame
    ordered = frame.sort_values([order, version], kind="stable")
    last = ordered.groupby(list(keys), sort=False, dropna=False)[version].transform("last")
    selected = frame[version] == last.reindex(frame.index)
    if not selected.all():
        count = frame.loc[~selected, "name"].nunique()
        text = f"of an older {version} (--where {version}=*)"
        if version == "name":
            text = "that were computed again since"
        left_out.append(f"Not shown: {count} results {text}.")
    return frame[selected]


def distinguished(
    rows: Sequence[Mapping[str, Any]], name: str, keys: Sequence[str], shared: Sequence[str]
) -> list[str]:
    """Extend equal texts by the facts that differ, such as ", method version 2".

    Args:
        rows: facts of each text, by column of the frame.
        name: of the text in `rows`.
        keys: facts that may differ.
        shared: facts that are displayed beside the text.
    """
    texts = [row[name] for row in rows]
    for key in keys:
        values = defaultdict(set)
        groups = [
            (text, *(row[fact] for fact in shared)) for row, text in zip(rows, texts, strict=True)
        ]
        for row, group in zip(rows, groups, strict=True):
            values[group].add(row[key])
        texts = [
            f"{group[0]}, {key.replace('_', ' ')} {as_text(row[key])}"
            if len(values[group]) > 1
            else group[0]
            for row, group in zip(rows, groups, strict=True)
        ]
    return texts


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


def setting_name(facts: Mapping[Any, Any]) -> str:
    """Join data, profile, evaluation and the settings that are not the default.

    Args:
        facts: values of a frame's row by column, perhaps not all.
    """
    words = [facts.get("data"), facts.get("profile"), facts.get("evaluation")]
    if facts.get("split", "test") != "test":
        words.append(f"{facts['split']} split")
    words.append(facts.get("overrides"))
    if facts.get("frames", ALL_FRAMES) != ALL_FRAMES:
        words.append(f"{facts['frames']} frames")
    if facts.get("results_version", RESULTS_VERSION) != RESULTS_VERSION:
        words.append(f"results version {facts['results_version']}")
    return ", ".join(filter(None, words))
