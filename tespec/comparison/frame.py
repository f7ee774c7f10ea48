"""All records as one tidy DataFrame: a row for each record, metric and group of frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.comparison.records import Record, read_records
from tespec.core.paths import RESULTS

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
