"""All records as one tidy table of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tespec.comparison.archive import holds_records
from tespec.comparison.published import COMPARED, Named, scheme_of
from tespec.comparison.records import Record, read_records
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS

if TYPE_CHECKING:
    import pandas

PARTS = ("title", "better", "unit")
COLUMNS = (
    *(
        "kind",
        "method",
        "task",
        "arch",
        "data",
        "profile",
        "split",
        "seed",
        "metric",
        "value",
        "unit",
        "better",
        "main",
    ),
    *("title", "name", "code", "written", "data_fingerprint", "command"),
)


def results(folder: str | Path | None = None) -> pandas.DataFrame:
    """The overall numbers of all records: one row for each record and metric, `value` a number.

    Args:
        folder: of results, which holds `runs/`; that of the harness where none is named.

    Returns:
        Columns `kind`, `method`, `task`, `arch`, `data`, `profile`, `split`, `seed`, `metric`, `value`, `unit` (""
        where the record does not say), `better` ("higher", "lower", or "" where it is not known), `main` (whether the
        task is judged by this metric), `title` (of the method), `name` (of the record), `code`, `written` (UTC),
        `data_fingerprint`, `command`. Files that are no records are named in `attrs["left_out"]`.

    Raises:
        UserError: there is no such folder.
    """
    # It takes longer to import than a command line takes to answer.
    import pandas

    place = RESULTS if folder is None else Path(folder)
    if not holds_records(place):
        raise UserError(place, "no such folder", "name one that holds runs/")
    records, problems = read_records(place / "runs")
    known: dict[tuple[str, str], dict[str, Named]] = {}
    rows = [row for record in records for row in _rows(record, known)]
    frame = pandas.DataFrame(rows, columns=list(COLUMNS))
    frame = frame.astype({"seed": "int64", "value": "float64", "main": "bool"})
    frame["written"] = pandas.to_datetime(frame["written"], utc=True, format="ISO8601", errors="coerce")
    frame.attrs["left_out"] = problems
    return frame


def _rows(record: Record, known: dict[tuple[str, str], dict[str, Named]]) -> list[dict[str, object]]:
    """A record's metrics; `known` remembers those of the tasks of records that say nothing of their scores."""
    key = record["kind"], record["task"]
    if record["scores"] or key not in known:
        metrics = _metrics(record)
        if not record["scores"]:
            known[key] = metrics
    else:
        metrics = known[key]
    fields = dict(record)
    facts = {name: fields[name] for name in COLUMNS if name in fields}
    facts |= {
        "split": record["split"],
        "method": record["method_name"],
        "title": " ".join(record["method"]["title"].split()),
    }
    unknown, main = Named("", ""), next(iter(metrics), "")
    return [
        facts
        | {"metric": name, "value": value, "main": name == main}
        | {"unit": metrics.get(name, unknown).unit, "better": metrics.get(name, unknown).better}
        for name, value in record["metrics"].items()
    ]


def _metrics(record: Record) -> dict[str, Named]:
    """What is known of a record's metrics, the main one first: from itself, or else from the paper's tables."""
    if record["scores"]:
        return {name: Named(name, *(each[part] for part in PARTS)) for name, each in record["scores"].items()}
    if record["kind"] not in COMPARED:
        return {}
    scheme = scheme_of(record["task"], [record])
    return {each.name: each for each in (scheme.main, *scheme.metrics)}
