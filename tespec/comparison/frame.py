"""Tidy DataFrame of all records, with one row per record, metric and group of frames, and its selection for tables."""

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
    *(
        "kind",
        "method",
        "method_version",
        "plugin",
        "arch",
        "backbone",
        "task",
        "task_version",
        "data",
    ),
    *("data_fingerprint", "profile", "split", "label_fraction", "frozen", "variant", "overrides"),
    *("pretraining_overrides", "weights", "results_version", "metric", "frames"),
]
COLUMNS = [
    *CELL,
    *(
        "seed",
        "pretraining_seed",
        "value",
        "unit",
        "better",
        "main",
        "metric_title",
        "classes",
        "recordings",
    ),
    *("partial", "title", "group", "network", "pretraining_data", "machine", "revision"),
    *("written", "name", "command"),
    *("backbone_parameters", "head_parameters", "training_hours", "inference_ms"),
]
COSTS = COLUMNS[-4:]
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

    rows, titles = [], task_titles()
    for record in records:
        facts = _facts(record, titles)
        rows += [facts | number for number in _numbers(record)]
    frame = pd.DataFrame(rows, columns=COLUMNS).astype(
        {"value": "float64", "main": "bool"} | dict.fromkeys(COSTS, "float64")
    )
    return frame.assign(written=pd.to_datetime(frame["written"], utc=True))


def _facts(record: Record, titles: Mapping[str, str]) -> dict[str, Any]:
    recipe = record.weights.get("recipe") or {}
    dataset, data = recipe.get("dataset", ""), recipe.get("data")
    learned = dataset if data in (None, "sample") else data
    other = {"data": learned} if dataset in titles and learned != dataset else {}
    return {
        **{name: getattr(record, name) for name in COLUMNS if name in Record.model_fields},
        **{name: record.facts.get(name, "") for name in ("title", "group", "backbone")},
        "pretraining_data": titles.get(learned, learned)
        if dataset
        else record.facts.get("pretraining_data", ""),
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
    means = [each.rpartition(": ") for each in record.protocol.get("partial means", "").split("; ")]
    partial = {mean: count for mean, _, count in means}  # see `tespec.metrics.partial_means`
    for frames, numbers in {ALL_FRAMES: record.metrics, **record.groups}.items():
        for metric, value in numbers.items():
            score = record.scores.get(metric)
            unit, better, title = (
                (score.unit, score.better, score.title) if score else ("", "", metric)
            )
            number = {
                "metric": metric,
                "frames": frames,
                "value": value,
                "unit": unit,
                "better": better,
            }
            number |= {"main": metric == main and frames == ALL_FRAMES, "metric_title": title}
            yield number | {"partial": partial.get(f"{frames} {metric}", "")}


def machine(record: Record) -> str:
    """GPU of a record, or its CPU and number of threads."""
    made = record.environment
    if made.get("device") not in ("", "cpu", None):
        return str(made["device"])
    return f"{made.get('cpu', '')}, {made.get('threads', '?')} threads"


def _weights(record: Record) -> str:
    recipe = record.weights.get("recipe") or {}
    if (
        "dataset" not in recipe
    ):  # a file from elsewhere, perhaps converted by `tespec weights convert`
        return str(record.weights.get("sha256", ""))[:12]
    return ", ".join(
        str(recipe.get(key, "")) for key in ("dataset", "data", "profile", "data_fingerprint")
    )


def _settings(overrides: Mapping[str, Any], prefix: str = "") -> str:
    """Format changed settings as one line sorted by name, without those that have their own column."""
    keys = sorted({*overrides} - {"label_fraction", "freeze", "backbone"})
    return ", ".join(f"{prefix}{key}={overrides[key]}" for key in keys)


def select(
    frame: pd.DataFrame, where: Mapping[str, str], by: str = "", free: Iterable[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """Select evaluations and references by `where`, and by `DEFAULTS` for columns not in `where`, `by` or `free`.

    Only the newest results version is kept, only the newest version, plug-in and weights of a
    method, and only the newest result of a cell and seed.

    Returns:
        The rows with additional columns `tta` and `column`, and notes on the results that were left
        out.
    """
    for key in where:
        if key not in COLUMNS:
            raise UserError(f"column {key}", "no such column", suggest(key, COLUMNS))
    if by and by not in LEVELS:
        raise UserError(f"column {by}", "cannot be used with --by", suggest(by, LEVELS))
    chosen = frame[frame["kind"].isin(["evaluation", "reference"])]
    for key, wanted in where.items():
        kept = matches(chosen[key], wanted)
        if not kept.any() and not (
            key in PROTOCOL and matches(published_frame()[key], wanted).any()
        ):
            known = filter(None, chosen[key].map(as_text).unique())
            raise UserError(f"{key}={wanted}", "matches no results", suggest(wanted, known))
        chosen = chosen[kept]
    ablated = {variant for each in read_ablations().values() for variant in each.variants} - {""}
    named = {*where, by, *free}
    left_out: list[str] = []
    for key, value in DEFAULTS.items():
        if key in named or (key == "pretraining_overrides" and "variant" in named):
            continue
        kept = chosen[key] == value
        others = chosen[~kept & ~chosen["variant"].isin(ablated)]  # ablations have their own tables
        if key != "frames" and len(others):
            values = ", ".join(as_text(each) for each in others[key].unique()[:3])
            left_out.append(
                f"Not shown: {others['name'].nunique()} results with {key} {values} (--where {key}=VALUE)."
            )
        chosen = chosen[kept]
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
    frame: pd.DataFrame, said: Iterable[str], more: Iterable[str] = ()
) -> pd.Series[str]:
    """Name the measured column of each row by data, profile, and each setting that is not the default.

    Settings in `said` are left out, because the table shows them elsewhere. Columns of the same
    name are distinguished by the settings and columns of `more` in which they differ.
    """
    keys = [key for key in [*SETTING, *more] if key not in {*said}]
    settings = frame[["task", *keys]].drop_duplicates()
    settings = settings.assign(
        column=[setting_name(facts) for facts in settings.to_dict("records")]
    )
    for _, alike in settings.groupby(["task", "column"]):
        for key in keys:
            texts = alike[key].map(as_text)
            if texts.nunique() > 1:
                settings.loc[alike.index, "column"] += f", {key} " + texts
    names = frame[["task", *keys]].merge(settings, how="left")["column"]
    return names.map(lambda name: f"{MEASURED} ({name})").astype(object).set_axis(frame.index)


def matches(values: pd.Series[Any], wanted: str) -> pd.Series[bool]:
    """Compare the texts of `values` with `wanted`, which may have `*` and `?` as in file names."""
    texts = values.map(as_text)
    return (texts == wanted) | texts.map(lambda text: fnmatchcase(text, wanted)).astype(bool)


def as_text(value: Any) -> str:
    """Format a value of the frame for display and for filters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _newest(
    frame: pd.DataFrame, places: list[str], versions: list[str], order: str, left_out: list[str]
) -> pd.DataFrame:
    """Keep the rows with the newest `versions` in each of `places`, and add a note on the others to `left_out`."""
    if frame.empty or not versions:
        return frame
    newest = frame.groupby([*places, *versions], sort=False, dropna=False)[order].transform("max")
    kept = newest == frame.groupby(places, sort=False, dropna=False)[order].transform("max")
    if not kept.all():
        counts = (
            frame.groupby(places, sort=False, dropna=False)[versions].nunique(dropna=False).max()
        )
        differ = [name for name in versions if counts[name] > 1]
        count, shown = frame.loc[~kept, "name"].nunique(), " ".join(f"{name}=*" for name in differ)
        left_out.append(
            f"Not shown: {count} results of an older {' or '.join(differ)} (--where {shown})."
        )
    return frame[kept]


def setting_name(facts: Mapping[Hashable, Any]) -> str:
    """Join data, profile and the settings that are not the default."""
    said = {
        "label_fraction": lambda value: f"{100 * value:g} % of labels",
        "frozen": lambda _: "frozen backbone",
        "split": lambda value: f"{value} split",
        "frames": lambda value: f"{value} frames",
    }
    words = [facts.get("data"), facts.get("profile")]
    words += [
        said.get(key, str)(facts[key])
        for key, value in DEFAULTS.items()
        if facts.get(key, value) != value
    ]
    if facts.get("results_version", RESULTS_VERSION) != RESULTS_VERSION:
        words.append(f"results version {facts['results_version']}")
    return ", ".join(filter(None, words))
