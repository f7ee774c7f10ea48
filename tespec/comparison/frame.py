"""Tidy DataFrame of all records, and its selection for tables.

It has one row per record, metric and group of frames.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.comparison.published import published_frame, read_ablations, task_titles
from tespec.comparison.records import RESULTS_VERSION, Record, read_records
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS
from tespec.core.settings import suggest

if TYPE_CHECKING:
    import pandas as pd

# Columns that identify a table cell: grouping by all of them averages over seeds only.
CELL = [
    *["kind", "method", "method_version", "plugin", "arch", "backbone", "task", "task_version"],
    *["data", "data_fingerprint", "profile", "split", "label_fraction", "frozen", "variant"],
    *["overrides", "pretraining_overrides", "weights", "results_version", "metric", "frames"],
]
COSTS = ["backbone_parameters", "head_parameters", "training_hours", "inference_ms"]
COLUMNS = [
    *CELL,
    *["seed", "pretraining_seed", "value", "unit", "better", "main", "metric_title", "classes"],
    *["recordings", "partial", "title", "group", "network", "pretraining_data", "machine"],
    *["revision", "written", "name", "command", *COSTS],
]
ALL_FRAMES = "all"
# Values that tables show unless a filter or `by` names the column.
DEFAULTS = {
    "split": "test",
    "label_fraction": 1.0,
    "frozen": False,
    "overrides": "",
    "variant": "",
    "pretraining_overrides": "",
    "frames": ALL_FRAMES,
}
# Columns that identify a row (ROW) and a measured column (SETTING) of a table, and the version of a
# method (ORIGIN), of which a table shows the newest.
ROW = ["kind", "method", "arch", "backbone", "tta"]
SETTING = ["data", "profile", *DEFAULTS, "results_version", "data_fingerprint", "task_version"]
ORIGIN = ["method_version", "plugin", "weights"]
LEVELS = [*SETTING, *ORIGIN, "seed", "machine", "revision"]  # columns that `by` may name
PROTOCOL = ("label_fraction", "frozen")  # settings of which the published numbers have several
MEASURED = "measured"


def results(folder: str | Path | None = None) -> pd.DataFrame:
    """Read all records of a results folder, with one row per record, metric and group of frames.

    Example:
        >>> import tespec
        >>> frame = tespec.results("results")
        >>> scores = frame[(frame.kind == "evaluation") & frame.main & (frame.frames == "all")]
        >>> means = scores.groupby(["task", "arch", "method"]).value.mean()  # over seeds
        >>> print(means.index.names, means["ddd17", "recurrent", "scratch"] > 0)
        ['task', 'arch', 'method'] True

    Args:
        folder: contains `runs/`; None: the harness's results folder.

    Returns:
        DataFrame with columns `COLUMNS`. `CELL` identifies a table cell:
        `df.groupby(CELL).value.mean()` averages over seeds of fine-tuning and pre-training only.
        `frames` is "all" for overall numbers, `value` is NaN for numbers that are not finite, and
        `main` marks the task's main metric. `weights` is the origin of the initial weights: data
        set, data, profile and data fingerprint of the pre-training, or the hash of an external
        file. `classes` and `recordings` count those with a score. `partial` is "2 of 3 classes" (or
        recordings or frames) for a mean that leaves some out, else "". `attrs["left_out"]` lists
        files that are not records.

    Raises:
        UserError: the folder does not exist, or is not a results folder.
    """
    records, problems = read_records(RESULTS if folder is None else Path(folder))
    frame = to_frame(records)
    frame.attrs["left_out"] = problems
    return frame


def to_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Convert records to the DataFrame that `results` returns."""
    import pandas as pd  # takes half a second, too long before a usage error

    titles = task_titles()
    rows = []
    for record in records:
        facts = _facts(record, titles)
        rows += [facts | number for number in _numbers(record)]
    frame = pd.DataFrame(rows, columns=COLUMNS).astype(
        {"value": "float64", "main": "bool"} | dict.fromkeys(COSTS, "float64")
    )
    return frame.assign(written=pd.to_datetime(frame["written"], utc=True))


def _facts(record: Record, titles: Mapping[str, str]) -> dict[str, Any]:
    recipe = record.weights.get("recipe") or {}
    dataset = recipe.get("dataset", "")
    data = recipe.get("data")
    learned = dataset if data in (None, "sample") else data
    other = {"data": learned} if dataset in titles and learned != dataset else {}
    published = record.facts.get("pretraining_data", "")
    return {
        **{name: getattr(record, name) for name in COLUMNS if name in Record.model_fields},
        **{name: record.facts.get(name, "") for name in ("title", "group", "backbone")},
        "pretraining_data": titles.get(learned, learned) if dataset else published,
        "network": str(record.config.get("backbone", "")),
        "label_fraction": float(record.config.get("label_fraction", 1.0)),
        "frozen": bool(record.config.get("freeze", False)),
        "overrides": _settings(record.overrides),
        "pretraining_overrides": _settings((recipe.get("overrides") or {}) | other, "pretraining."),
        "weights": _weights(record),
        "pretraining_seed": recipe.get("seed"),
        "classes": sum(value is not None for value in record.classes.values()),
        "recordings": len(record.recordings),
        "machine": machine(record),
        "revision": record.environment.get("revision", ""),
        **{name: record.cost.get(name) for name in COSTS},
        "training_hours": record.time["train"] / 3600 if "train" in record.time else None,
    }


def _numbers(record: Record) -> Iterable[dict[str, Any]]:
    main = next(iter(record.scores), next(iter(record.metrics), ""))
    texts = record.protocol.get("partial means", "").split("; ")
    # see `tespec.metrics.partial_means`
    partial = {mean: count for mean, _, count in (text.rpartition(": ") for text in texts)}
    for frames, numbers in {ALL_FRAMES: record.metrics, **record.groups}.items():
        for metric, value in numbers.items():
            score = record.scores.get(metric)
            yield {
                "metric": metric,
                "frames": frames,
                "value": value,
                "unit": score.unit if score else "",
                "better": score.better if score else "",
                "main": metric == main and frames == ALL_FRAMES,
                "metric_title": score.title if score else metric,
                "partial": partial.get(f"{frames} {metric}", ""),
            }


def machine(record: Record) -> str:
    """GPU of a record, or its CPU and number of threads."""
    environment = record.environment
    if environment.get("device") not in ("", "cpu", None):
        return str(environment["device"])
    return f"{environment.get('cpu', '')}, {environment.get('threads', '?')} threads"


def _weights(record: Record) -> str:
    recipe = record.weights.get("recipe") or {}
    # a file from elsewhere, perhaps converted by `tespec weights convert`
    if "dataset" not in recipe:
        return str(record.weights.get("sha256", ""))[:12]
    keys = ("dataset", "data", "profile", "data_fingerprint")
    return ", ".join(str(recipe.get(key, "")) for key in keys)


def _settings(overrides: Mapping[str, Any], prefix: str = "") -> str:
    """Format changed settings as one line, by name, without those that have a column."""
    keys = sorted({*overrides} - {"label_fraction", "freeze", "backbone"})
    return ", ".join(f"{prefix}{key}={overrides[key]}" for key in keys)


def select(
    frame: pd.DataFrame, where: Mapping[str, str], by: str = "", free: Iterable[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """Select the evaluations and references that tables show.

    Of several results versions, of versions, plug-ins and weights of a method, and of results of a
    cell and seed, only the newest is selected.

    Args:
        frame: DataFrame from `results`.
        where: value by column, with `*` and `?` as in file names.
        by: column whose values are shown side by side, one of `LEVELS`.
        free: columns that the table shows in another way.

    Returns:
        The rows with additional columns `tta` and `column`, and notes on the results that were left
        out. Columns that are not in `where`, `by` or `free` have the values of `DEFAULTS`.

    Raises:
        UserError: a column does not exist, or a value matches no results.
    """
    for key in where:
        if key not in COLUMNS:
            raise UserError(f"column {key}", "no such column", suggest(key, COLUMNS))
    if by and by not in LEVELS:
        raise UserError(f"column {by}", "cannot be used with --by", suggest(by, LEVELS))
    chosen = frame[frame["kind"].isin(["evaluation", "reference"])]
    for key, pattern in where.items():
        selected = matches(chosen[key], pattern)
        is_published = key in PROTOCOL and matches(published_frame()[key], pattern).any()
        if not selected.any() and not is_published:
            known = filter(None, chosen[key].map(as_text).unique())
            raise UserError(f"{key}={pattern}", "matches no results", suggest(pattern, known))
        chosen = chosen[selected]
    ablated = {name for table in read_ablations().values() for name in table.variants} - {""}
    named = {*where, by, *free}
    left_out: list[str] = []
    for key, value in DEFAULTS.items():
        if key in named or (key == "pretraining_overrides" and "variant" in named):
            continue
        selected = chosen[key] == value
        others = chosen[~selected & ~chosen["variant"].isin(ablated)]  # they have separate tables
        if key != "frames" and len(others):
            values = ", ".join(map(as_text, others[key].unique()[:3]))
            count = others["name"].nunique()
            left_out.append(
                f"Not shown: {count} results with {key} {values} (--where {key}=VALUE)."
            )
        chosen = chosen[selected]
    if "results_version" not in named:
        chosen = _newest(
            chosen, ["task", "data", "profile"], ["results_version"], "results_version", left_out
        )
    versions = [name for name in ORIGIN if name not in named]
    chosen = _newest(chosen, [*ROW[:-1], "task", *SETTING], versions, "written", left_out)
    # A seed has several results if its initial weights were made again, which changes the id.
    seeds = {*CELL, "seed", "pretraining_seed", by} - {"metric", "frames", ""}
    chosen = _newest(chosen, [*seeds], ["name"], "written", left_out)
    augmented = chosen["overrides"].str.contains("test_time_augmentation=(?!none)", regex=True)
    # All versions that match `where` are kept, so the column names have to distinguish them.
    names = column_names(chosen, {by, *free}, [name for name in ORIGIN if name in where])
    return chosen.assign(tta=augmented, column=names), left_out


def column_names(
    frame: pd.DataFrame, free: Iterable[str], more: Iterable[str] = ()
) -> pd.Series[str]:
    """Name the measured column of each row by data, profile, and settings that are not the default.

    Args:
        frame: rows of the frame of `results`.
        free: settings that the table shows in another way.
        more: columns that distinguish columns of the same name, in addition to the settings.
    """
    keys = [key for key in [*SETTING, *more] if key not in {*free}]
    settings = frame[["task", *keys]].drop_duplicates()
    settings["column"] = [setting_name(facts) for facts in settings.to_dict("records")]
    for _, same_name in settings.groupby(["task", "column"]):
        for key in keys:
            texts = same_name[key].map(as_text)
            if texts.nunique() > 1:
                settings.loc[same_name.index, "column"] += f", {key} " + texts
    names = frame[["task", *keys]].merge(settings, how="left")["column"]
    return names.map(lambda name: f"{MEASURED} ({name})").astype(object).set_axis(frame.index)


def matches(values: pd.Series[Any], pattern: str) -> pd.Series[bool]:
    """Compare the texts of values with a pattern.

    Args:
        values: column of the frame.
        pattern: text, in which `*` and `?` are wildcards as in file names.
    """
    texts = values.map(as_text)
    return (texts == pattern) | texts.map(lambda text: fnmatchcase(text, pattern)).astype(bool)


def as_text(value: Any) -> str:
    """Format a value of the frame for display and for filters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _newest(
    frame: pd.DataFrame, keys: list[str], versions: list[str], order: str, left_out: list[str]
) -> pd.DataFrame:
    """Select the rows with the newest `versions`, by the column `order`, in each group of `keys`.

    A note on the other rows is added to `left_out`.
    """
    if frame.empty or not versions:
        return frame
    groups = frame.groupby(keys, sort=False, dropna=False)
    newest = frame.groupby([*keys, *versions], sort=False, dropna=False)[order].transform("max")
    selected = newest == groups[order].transform("max")
    if not selected.all():
        counts = groups[versions].nunique(dropna=False).max()
        differ = [name for name in versions if counts[name] > 1]
        count = frame.loc[~selected, "name"].nunique()
        remedy = f"(--where {' '.join(f'{name}=*' for name in differ)})"
        left_out.append(f"Not shown: {count} results of an older {' or '.join(differ)} {remedy}.")
    return frame[selected]


def setting_name(facts: Mapping[Hashable, Any]) -> str:
    """Join data, profile and the settings that are not the default."""
    formats = {
        "label_fraction": lambda value: f"{100 * value:g} % of labels",
        "frozen": lambda _: "frozen backbone",
        "split": lambda value: f"{value} split",
        "frames": lambda value: f"{value} frames",
    }
    words = [facts.get("data"), facts.get("profile")]
    words += [
        formats.get(key, str)(facts[key])
        for key, value in DEFAULTS.items()
        if facts.get(key, value) != value
    ]
    if facts.get("results_version", RESULTS_VERSION) != RESULTS_VERSION:
        words.append(f"results version {facts['results_version']}")
    return ", ".join(filter(None, words))
