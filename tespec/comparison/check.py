"""Check a folder of records, one's own or those that others sent, before numbers are cited."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from math import inf
from pathlib import Path

from tespec.comparison.cell import RESULTS_VERSION
from tespec.comparison.published import TABLES, read_published, task_titles
from tespec.comparison.records import ARCHIVE, REPORTED, Record, iter_records
from tespec.registry import shipped_methods

LARGEST = 1_000_000  # bytes of a file
HIGHEST = {"%": 100.0, "": 1.0}  # score by unit; errors have no limit
# kinds whose method need not be registered
WITHOUT_METHOD = ("reference", "control", "predictions")


def check_records(results: Path) -> tuple[int, list[str]]:
    """Check the records of a results folder.

    Names are computed again from the content. Scores have the unit and direction of published ones
    and are within their bounds, and each record has its provenance. No record is in two files, has
    the numbers of another seed, or names an unknown method. No file is large.

    Args:
        results: results folder.

    Returns:
        Number of records, and one line for each problem.

    Raises:
        UserError: the folder does not exist, or is not a results folder.
    """
    problems: list[str] = []
    names: set[str] = set()
    names_by_scores: dict[str, str] = {}
    for record in iter_records(results, problems, repeated=True):
        name = record.name
        problems += [f"{name}: {problem}" for problem in _problems(record)]
        if name in names:
            problems.append(f"{name}: is in more than one file")
        elif record.cell.kind == "evaluation":  # a label prior has no randomness
            scores = f"{record.cell.text} {record.metrics} {record.recordings}"
            other = names_by_scores.setdefault(scores, name)
            if other != name:
                problems.append(f"{name}: has exactly the numbers of {other}")
        names.add(name)
    for path in (*(results / "runs").glob("*.json"), results / ARCHIVE):
        if path.is_file() and path.stat().st_size > LARGEST:
            problems.append(f"{path}: is larger than {LARGEST / 1e6:g} MB")
    if not names:
        sent = results / REPORTED
        remedy = f"; check {sent} for those of others" if sent.is_dir() else ""
        problems.append(f"{results}: holds no records{remedy}")
    return len(names), problems


def _problems(record: Record) -> Iterator[str]:
    """Yield what is wrong with a record, or missing."""
    environment = record.environment
    required = {
        "revision": environment.revision,
        "packages": environment.packages,
        "command": record.command,
        "data fingerprint": record.data_fingerprint,
        "metrics": record.metrics,
    }
    if record.facts.get("pretraining_data", "-") != "-":
        required["citation"] = record.facts.get("citation", "")
    missing = [name for name, value in required.items() if not value]
    known = shipped_methods()  # none, if installed packages may add others
    is_known = record.cell.method in known or record.cell.plugin or not known
    if missing:
        yield f"has no {', '.join(missing)}"
    if environment.modified:
        yield "the sources differed from its revision"
    if not is_known and record.cell.kind not in WITHOUT_METHOD:
        yield f"the method {record.cell.method} is unknown, and no plug-in file defines it"
    if record.cell.results_version > RESULTS_VERSION:
        yield f"results version {record.cell.results_version} is above {RESULTS_VERSION}, this one"
    if record.written > datetime.now(timezone.utc):
        yield f"was written in the future ({record.written:%Y-%m-%d})"
    for part, seconds in record.time.items():
        if seconds < 0:
            yield f"the duration of {part} is {seconds:g} s"
    yield from _problems_of_scores(record)


def _problems_of_scores(record: Record) -> Iterator[str]:
    undescribed = record.metrics.keys() - record.scores.keys()
    if undescribed and record.cell.kind in ("evaluation", *WITHOUT_METHOD):
        yield f"has no unit and direction of {', '.join(sorted(undescribed))}"
    tables = TABLES if record.cell.task in task_titles() else ()
    for metric in (metric for table in tables for metric in read_published(table)["metrics"]):
        known = metric.get("unit", ""), metric["better"]
        score = record.scores.get(metric["name"])
        if score and (score.unit, score.better) != known:
            words = f"{score.unit!r} and {score.better} is better, not {known[0]!r} and {known[1]}"
            yield f"{metric['name']} is in {words}"
    highest = {
        name: HIGHEST.get(score.unit, inf) if score.better == "higher" else inf
        for name, score in record.scores.items()
    }
    main = next(iter(record.scores), "")
    classes = {f"class {name}": {main: value} for name, value in record.classes.items()}
    parts = {"all frames": record.metrics, **record.groups, **record.recordings, **classes}
    for part, numbers in parts.items():
        for metric in record.scores.keys() & numbers.keys():
            value = numbers[metric]
            if value is not None and not 0 <= value <= highest[metric]:
                yield f"{metric} {value:g} is out of bounds ({part})"
