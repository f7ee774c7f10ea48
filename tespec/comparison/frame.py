"""All records as one tidy DataFrame, a row for each record, metric and group of frames, and what tables show of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.comparison.published import read_ablations
from tespec.comparison.records import RESULTS_VERSION, TEST, Record, read_records
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS
from tespec.core.settings import suggest

if TYPE_CHECKING:
    import pandas as pd

# Columns that make a cell: grouped by all of them, only seeds are averaged.
CELL = [
    *("kind", "method", "method_version", "plugin", "arch", "backbone", "task", "task_version", "data"),
    *("data_fingerprint", "profile", "split", "label_fraction", "frozen", "variant", "overrides"),
    *("pretraining_overrides", "weights", "results_version", "metric", "frames"),
]
COLUMNS = [
    *CELL,
    *("seed", "pretraining_seed", "value", "unit", "better", "main", "metric_title", "classes", "recordings"),
    *("partial", "unhealthy", "title", "group", "pretraining_data", "machine", "revision"),
    *("written", "name", "command"),
]
ALL_FRAMES = "all"
# What tables show unless a filter or `by` names the column.
DEFAULTS = {
    "split": TEST,
    "label_fraction": 1.0,
    "frozen": False,
    "overrides": "",
    "variant": "",
    "pretraining_overrides": "",
    "frames": ALL_FRAMES,
}
# Columns of the frame that make a row and a measured column of a table. Of the rest of `CELL`, which says how a method
# came about, a table shows the newest.
ROW = ["kind", "method", "arch", "backbone", "tta"]
SETTING = ["data", "profile", *DEFAULTS, "results_version", "data_fingerprint", "task_version"]
ORIGIN = ["method_version", "plugin", "weights"]
LEVELS = [*SETTING, *ORIGIN, "seed", "machine", "revision"]  # that `by` may name
MEASURED = "measured"
LEAST_RANK = 8.0  # of the last stage's features
NOISE = 0.1  # share of the rank that it may lose without counting as falling


def results(folder: str | Path | None = None) -> pd.DataFrame:
    """All records of a results folder, one row for each record, metric and group of frames.

    Args:
        folder: holds `runs/`; default: that of the harness.

    Returns:
        Columns `COLUMNS`. `CELL` are those that make a cell of a table: `df.groupby(CELL).value.mean()` averages over
        seeds only, of fine-tuning and pre-training. `frames` is "all" for overall numbers; `value` is NaN where a
        number was not finite; `main` says whether the task is judged by the metric. `weights` says what a network
        started from: data set, data and profile of a pre-training, or the hash of a file from elsewhere. `classes` and
        `recordings` count those with a score; `partial` says that a mean is over "2 of 3 classes", or of recordings or
        frames, and is "" where it is over all. `unhealthy` says that the pre-training it started from has a low or
        falling rank, see `healthy`.
        Files that are no records are named in `attrs["left_out"]`.

    Raises:
        UserError: there is no such folder, or it holds something else.
    """
    records, problems = read_records(RESULTS if folder is None else Path(folder))
    frame = to_frame(records)
    frame.attrs["left_out"] = problems
    return frame


def to_frame(records: Iterable[Record]) -> pd.DataFrame:
    """The same of records that are read already."""
    import pandas as pd  # half a second, which a command line's mistake need not wait for

    records = list(records)
    watched = (record for record in records if record.kind == "pretraining" and record.curves)
    unhealthy = {record.weights.get("sha256") for record in watched if not healthy(record)[0]}
    scores = [score for number, record in enumerate(records) for score in _scores(number, record)]
    numbers = pd.DataFrame(
        scores, columns=["record", "metric", "frames", "value", "unit", "better", "main", "metric_title", "partial"]
    )
    facts = pd.DataFrame(
        [_facts(record) | {"unhealthy": record.weights.get("sha256") in unhealthy} for record in records],
        columns=[name for name in COLUMNS if name not in numbers],
    )
    facts["written"] = pd.to_datetime(facts["written"], utc=True)
    return numbers.astype({"value": "float64", "main": "bool"}).join(facts, on="record")[COLUMNS]


def healthy(record: Record) -> tuple[bool, str]:
    """Whether a pre-training is accepted, and why or why not.

    It is where the rank of the last stage's features on validation data is above `LEAST_RANK`, and at the end no more
    than `NOISE` below the highest rank seen before.
    """
    rank = record.metrics.get("last_stage_rank")
    ranks = [point["rank"] for point in record.curves.get("last_stage", ())]
    if rank is None:
        return False, "its record does not hold the last stage's rank"
    if rank <= LEAST_RANK:
        return False, f"the last stage's rank is {rank:.1f}, not above {LEAST_RANK:g}"
    if not ranks:
        return False, "its record does not hold the last stage's rank over the training"
    if ranks[-1] < (1 - NOISE) * max(ranks):
        return False, f"the last stage's rank falls from {max(ranks):.1f} to {ranks[-1]:.1f}"
    return True, f"the last stage's rank is {rank:.1f}, and does not fall ({' '.join(f'{each:.1f}' for each in ranks)})"


def _facts(record: Record) -> dict[str, Any]:
    recipe = record.weights.get("recipe") or {}
    return {
        **{name: getattr(record, name) for name in COLUMNS if name in Record.model_fields},
        **{name: record.facts.get(name, "") for name in ("title", "group", "backbone", "pretraining_data")},
        "label_fraction": float(record.config.get("label_share", 1.0)),
        "frozen": bool(record.config.get("freeze", False)),
        "overrides": _settings(record.overrides),
        "pretraining_overrides": _settings(recipe.get("overrides") or {}),
        "weights": _weights(record),
        "pretraining_seed": recipe.get("seed"),
        "classes": sum(value is not None for value in record.classes.values()),
        "recordings": len(record.recordings),
        "machine": machine(record),
        "revision": record.environment.get("revision", ""),
    }


def _scores(number: int, record: Record) -> Iterable[tuple[Any, ...]]:
    main = next(iter(record.scores), next(iter(record.metrics), ""))
    means = [each.rpartition(": ") for each in record.protocol.get("partial means", "").split("; ")]
    partial = {mean: count for mean, _, count in means}  # see `tespec.metrics.partial_means`
    for frames, numbers in {ALL_FRAMES: record.metrics, **record.groups}.items():
        for metric, value in numbers.items():
            score = record.scores.get(metric) or {"title": metric, "better": "", "unit": ""}
            is_main = metric == main and frames == ALL_FRAMES
            of = score["unit"], score["better"], is_main, score["title"], partial.get(f"{frames} {metric}", "")
            yield number, metric, frames, value, *of


def machine(record: Record) -> str:
    """The processor or GPU that computed a record, and the threads of a processor."""
    environment = record.environment
    if environment.get("device") not in ("", "cpu", None):
        return str(environment["device"])
    return f"{' '.join(str(environment.get('cpu', '')).split())}, {environment.get('threads', '?')} threads"


def _weights(record: Record) -> str:
    recipe = record.weights.get("recipe")
    if not recipe:
        return str(record.weights.get("sha256", ""))[:12]
    return ", ".join(str(recipe.get(key, "")) for key in ("dataset", "data", "profile", "data_fingerprint"))


def _settings(overrides: Mapping[str, Any]) -> str:
    """Changed settings in one line, in order of their names, but for those that have a column of their own."""
    own = ("label_share", "freeze", "width")
    return ", ".join(f"{key}={overrides[key]}" for key in sorted(overrides) if key not in own)


def select(
    frame: pd.DataFrame, where: Mapping[str, str], by: str = "", free: Iterable[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """Evaluations and references that fit `where`, and `DEFAULTS` where neither it, `by` nor `free` names a column.

    Of several results versions, and of several versions, plug-ins or weights of a method, it keeps the newest.

    Returns:
        The rows, with columns `tta` and `column`, and what was left out, in words.

    Raises:
        UserError: there is no such column or value.
    """
    for key in where:
        if key not in COLUMNS:
            raise UserError(f"column {key}", "no such column of the frame", suggest(key, COLUMNS))
    if by and by not in LEVELS:
        raise UserError(f"column {by}", "cannot be a level of columns", suggest(by, LEVELS))
    chosen = frame[frame["kind"].isin(["evaluation", "reference"])]
    for key, wanted in where.items():
        texts = chosen[key].map(as_text)
        fits = [text for text in texts.unique() if text == wanted or fnmatchcase(text, wanted)]
        if not fits:
            raise UserError(f"{key}={wanted}", "no such evaluation", suggest(wanted, [*filter(None, texts.unique())]))
        chosen = chosen[texts.isin(fits)]
    ablated = {variant for each in read_ablations().values() for variant in each.variants} - {""}
    named = {*where, by, *free}
    left_out: list[str] = []
    for key, value in DEFAULTS.items():
        if key in named or (key == "pretraining_overrides" and "variant" in named):
            continue
        kept = chosen[key] == value
        others = chosen[~kept & ~chosen["variant"].isin(ablated)]  # which have tables of their own
        if key != "frames" and len(others):
            values = ", ".join(as_text(each) for each in others[key].unique()[:3])
            left_out.append(f"Not shown: {others['name'].nunique()} results with {key} {values} (--where {key}=VALUE).")
        chosen = chosen[kept]
    if "results_version" not in named:
        chosen = _newest(chosen, ["task", "data", "profile"], ["results_version"], "results_version", left_out)
    versions = [name for name in ORIGIN if name not in named]
    chosen = _newest(chosen, [*ROW[:-1], "task", *SETTING], versions, "written", left_out)
    augmented = chosen["overrides"].str.contains("test_time_augmentation=(?!none)", regex=True)
    # Versions that the caller named all stay: only the others are reduced to the newest.
    names = column_names(chosen, {by, *free}, [name for name in ORIGIN if name in where])
    return chosen.assign(tta=augmented, column=names), left_out


def column_names(frame: pd.DataFrame, said: Iterable[str], more: Iterable[str] = ()) -> pd.Series[str]:
    """Name of the measured column of each row: data, profile, and each setting that is not the default.

    Settings in `said` are told elsewhere. Two columns never share a name: what they differ in, of the settings and of
    `more`, is added.
    """
    keys = [key for key in [*SETTING, *more] if key not in {*said}]
    settings = frame[["task", *keys]].drop_duplicates()
    settings = settings.assign(column=[_name(facts) for facts in settings.to_dict("records")])
    for _, alike in settings.groupby(["task", "column"]):
        for key in keys:
            texts = alike[key].map(as_text)
            if texts.nunique() > 1:
                settings.loc[alike.index, "column"] += f", {key} " + texts.str[:8]
    names = frame[["task", *keys]].merge(settings, how="left")["column"]
    return names.map(lambda name: f"{MEASURED} ({name})").astype(object).set_axis(frame.index)


def as_text(value: Any) -> str:
    """A value of the frame as it is shown and looked for."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _newest(
    frame: pd.DataFrame, places: list[str], versions: list[str], order: str, left_out: list[str]
) -> pd.DataFrame:
    """Rows of the newest of several `versions` in each of `places`; says which results that leaves out."""
    if frame.empty or not versions:
        return frame
    newest = frame.groupby([*places, *versions], sort=False)[order].transform("max")
    kept = newest == frame.groupby(places, sort=False)[order].transform("max")
    if not kept.all():
        count, which = frame.loc[~kept, "name"].nunique(), " or ".join(versions)
        left_out.append(f"Not shown: {count} results of an older {which} (--where {versions[0]}=VALUE).")
    return frame[kept]


def _name(facts: Mapping[Hashable, Any]) -> str:
    """Data, profile and what differs from the defaults of some settings."""
    said = {
        "label_fraction": lambda value: f"{100 * value:g} % of labels",
        "frozen": lambda _: "frozen backbone",
        "split": lambda value: f"{value} split",
        "frames": lambda value: f"{value} frames",
    }
    words = [facts.get("data"), facts.get("profile")]
    words += [said.get(key, str)(facts[key]) for key, value in DEFAULTS.items() if facts.get(key, value) != value]
    if facts.get("results_version", RESULTS_VERSION) != RESULTS_VERSION:
        words.append(f"results version {facts['results_version']}")
    return ", ".join(filter(None, words))
