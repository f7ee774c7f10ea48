"""What is known of each run, and what the runs took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median

from tespec.comparison.records import Record
from tespec.comparison.table import Cell, Column, Group, Row, Table

GIB = 1024.0**3
PHASES = ("open", "train", "evaluate", "total")


def anchor(name: str) -> str:
    """Where a run's entry stands on the page."""
    return f"run-{name}"


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run: its anchor on the page, its name, and all that its numbers stand on."""

    anchor: str
    name: str
    facts: dict[str, str]


def hover(records: Sequence[Record]) -> str:
    """What a number's tip says of its runs: command, hash, seed, data and its fingerprint, date."""
    lines = [
        f"{record['command'] or record['name']}\n{record['id']}, seed {record['seed']}, "
        f"data {record['data']} {record['data_fingerprint']}, {date_of(record['written'])}"
        for record in records
    ]
    return "\n".join(lines)


def date_of(written: str) -> str:
    """A record's time for people; as it is where it is none."""
    try:
        return datetime.fromisoformat(written).astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return written


def entries(records: Sequence[Record]) -> list[RunFacts]:
    """An entry for each record, in order of their names."""
    return [_entry(record) for record in sorted(records, key=lambda record: record["name"])]


def _entry(record: Record) -> RunFacts:
    environment = record["environment"]
    modified = " with uncommitted changes" if environment.get("modified") else ""
    facts = {
        "command": record["command"],
        "written": date_of(record["written"]),
        "hash": record["id"],
        "profile, seed": f"{record['profile']}, {record['seed']}",
        "data": f"{record['data']}, fingerprint {record['data_fingerprint']}",
        "weights": f"{record['weights'].get('source', '')} {record['weights'].get('sha256', '')}",
        "code": f"{record['code']}, revision {environment.get('revision', '')}{modified}",
        "machine": f"{environment.get('device') or ''} {environment.get('cpu', '')}",
        "metrics": ", ".join(f"{name} {value:.4g}" for name, value in record["metrics"].items()),
        "protocol": "; ".join(f"{name}: {text}" for name, text in record["protocol"].items()),
    }
    kept = {name: text for name, text in facts.items() if text.strip(" ,")}
    return RunFacts(anchor(record["name"]), record["name"], kept)


def run_times(records: Sequence[Record]) -> Table | None:
    """What runs took: the median over those of one method, task, architecture, profile and machine."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        machine = record["environment"].get("device") or "cpu"
        key: tuple[str, ...] = (
            record["kind"],
            record["task"],
            record["method_name"],
            record["arch"],
            record["profile"],
            str(machine),
        )
        groups.setdefault(key, []).append(record)
    if not groups:
        return None
    columns = [
        Column((title,), title, number=False) for title in ("Run", "Task", "Method", "Arch.", "Profile", "Device")
    ]
    columns += [
        Column((title,), title) for title in (*(f"{phase} (s)" for phase in PHASES), "peak memory (GiB)", "runs")
    ]
    rows = []
    for labels, members in sorted(groups.items()):
        phases = [_seconds(members, phase) for phase in PHASES]
        peaks = [each["resources"]["peak_memory_bytes"] for each in members if "peak_memory_bytes" in each["resources"]]
        peak = Cell(f"{median(peaks) / GIB:.2f}", median(peaks) / GIB) if peaks else Cell()
        rows.append(Row((*map(Cell, labels), *phases, peak, Cell(str(len(members)), len(members)))))
    return Table("What the runs took", tuple(columns), (Group("", tuple(rows)),), notes=("Medians over runs.",))


def _seconds(records: Sequence[Record], phase: str) -> Cell:
    found = [record["time"][phase] for record in records if phase in record["time"]]
    return Cell(f"{median(found):.1f}", median(found)) if found else Cell()
