"""The ledger of one run (rows, limits and machine) as JSON, as a table and as a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.rows import Limits, Row
from tespec.comparison.identity import environment
from tespec.core.errors import UserError
from tespec.core.files import write_whole
from tespec.training.device import describe

GPU = "gpu"  # the part that gpu.py measures
WIDE = 50  # signs of the first column
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def heading() -> str:
    """The line above all rows."""
    return f"{'stage, case, device':{WIDE}}{'ours':>11}{'peers':>11}{'ratio':>8}{'x limit':>9}  rate"


def line(row: Row, limits: Limits | None, judged: bool = True) -> str:
    """A row: its times, its ratio and rate, how far from the machine's limit, targets and remarks below it.

    Args:
        row: measured or not.
        limits: of its device.
        judged: whether its targets are shown, which tiny sizes say nothing about.
    """
    title = f"{row.stage}, {row.case}, {row.device}"
    if row.seconds is None and not row.figures:
        return f"{title:{WIDE}}{'FAILED: ' if row.failed else ''}{row.note}"
    over = row.over_limit(limits)
    cells = (
        f"{duration(row.seconds) if row.seconds else '':>11}",
        f"{duration(row.peer_seconds) if row.peer_seconds else '':>11}",
        f"{f'{row.ratio:.2f}' if row.ratio else '':>8}",
        f"{f'{over:.1f}' if over else '':>9}",
        f"  {si(row.rate)}{row.unit}/s" if row.rate else "",
    )
    below = [row.size + (f"; peers: {row.peers}" if row.peers else "")] if row.size else []
    below += [f"{name} {si(value)}".rstrip() for name, value in row.figures.items()]
    below += ["FAILED"] if row.failed else []
    below += [row.note] if row.note else []
    for verdict in row.verdicts() if judged else ():
        below.append(verdict.upper() if "missed" in verdict else verdict)
    return "\n".join([f"{title:{WIDE}}{''.join(cells)}".rstrip(), *(f"    {each}" for each in below)])


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds:.2f} s"


def si(value: float | None) -> str:
    """A number with a prefix, and a space behind it."""
    if value is None:
        return ""
    for size, prefix in UNITS:
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.3g} "


def comparison(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Ratios of both ledgers for the rows that both have; times of two runs are not comparable."""
    old = {_key(row): row["ratio"] for row in before["rows"] if row["ratio"]}
    lines = [f"{'ratio to peers':{WIDE}}{'before':>10}{'now':>10}{'change':>10}"]
    for row in now["rows"]:
        earlier = old.get(_key(row))
        if earlier and row["ratio"]:
            change = f"{row['ratio'] / earlier - 1:+.0%}"
            title = ", ".join(_key(row))
            lines.append(f"{title:{WIDE}}{earlier:10.2f}{row['ratio']:10.2f}{change:>10}")
    return lines


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["stage"], row["case"], row["device"]


COLUMNS = ("stage", "what", "ours", "peers", "ratio", "rate", "x limit", "target, remark")


def page(ledger: Mapping[str, Any]) -> str:
    """The rows of a ledger as a table, under what they were measured on, and the stages that failed."""
    return "\n".join(_lines(ledger)) + "\n"


def _lines(ledger: Mapping[str, Any]) -> Iterator[str]:
    machine, part = ledger["environment"], ledger["part"]
    devices = f", {machine['device']}" if machine["device"] != "cpu" else ""
    yield f"# {part}: {machine['cpu']}, {machine['cores']} cores{devices}\n"
    yield (
        f"Written by `python benchmarks/{'gpu' if part == GPU else 'speed'}.py`; docs/performance.md explains it. "
        f"Revision {machine['revision'][:12] or 'unknown'}{' with changes' if machine['modified'] else ''}, "
        f"Python {machine['python']}, torch {machine['packages']['torch']}, {ledger['threads']} thread; "
        f"{ledger['load_before']:.1f} other processes wanted a core before.\n"
    )
    for device, limits in ledger["limits"].items():
        bandwidth, flops = limits["bandwidth"] / 1e9, limits["flops"] / 1e9
        yield f"{device}: copies {bandwidth:.1f} GB/s, {limits['dtype']} products {flops:,.0f} GFLOP/s.\n"
    if failed := [row for row in ledger["rows"] if row["failed"]]:
        yield f"{len(failed)} of {len(ledger['rows'])} rows **failed**; the last column says how.\n"
    for name, said in ledger.get("unfinished", {}).items():
        yield f"Stage {name} **did not finish**: {said}\n"
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for row in ledger["rows"]:
        yield f"| {' | '.join(_cells(row))} |"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"{row['stage']}, {row['case']}, {row['device']}"
    yield "; ".join(filter(None, (row["size"], row["peers"] and f"peers: {row['peers']}")))
    yield duration(row["seconds"]) if row["seconds"] else ""
    yield duration(row["peer_seconds"]) if row["peer_seconds"] else ""
    yield f"{row['ratio']:.2f}" if row["ratio"] else ""
    yield f"{si(row['rate'])}{row['unit']}/s" if row["rate"] else ""
    yield f"{row['over_limit']:.1f}" if row["over_limit"] else ""
    figures = [f"{name} {si(value)}".strip() for name, value in row["figures"].items()]
    failed = ["**failed**"] if row["failed"] else []
    yield "; ".join([*failed, *(f"**{each}**" if "missed" in each else each for each in row["targets"]), *figures,
                     *([row["note"]] if row["note"] else [])])  # fmt: skip


SCHEMA = 1


def machine_name() -> str:
    """Name of this machine for files: its CPU and how many cores, and its GPU where it has one."""
    facts = environment()
    parts = [str(facts["cpu"]), f"{facts['cores']}-cores"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def make_ledger(
    part: str, rows: Sequence[Row], limits: Mapping[str, Limits], conditions: Conditions, load: float
) -> dict[str, Any]:
    """Everything that a run measured.

    Args:
        part: which stages it holds, in words.
        rows: of the stages.
        limits: of each type of device.
        conditions: of the run.
        load: processes that wanted a core on average in the minute before, without this run.
    """
    return {
        "schema": SCHEMA,
        "part": part,
        "quick": conditions.quick,
        "threads": torch.get_num_threads(),
        "load_before": load,
        "environment": environment(", ".join(describe(device) for device in conditions.devices)),
        "limits": {name: each._asdict() for name, each in limits.items()},
        "rows": [row.facts(limits.get(row.device)) for row in rows],
    }


def write_ledger(ledger: Mapping[str, Any], path: Path) -> None:
    """Write a ledger and its page; files that are there are replaced when the new ones are whole."""
    for target, text in ((path, json.dumps(ledger, indent=1) + "\n"), (path.with_suffix(".md"), page(ledger))):
        write_whole(target, text)


def read_ledger(path: Path) -> dict[str, Any]:
    """A ledger.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    again = "give a ledger that speed.py wrote"
    if not path.is_file():
        raise UserError(path, "no such file", again)
    try:
        ledger: dict[str, Any] = json.loads(path.read_text())
        schema = ledger["schema"]
        rows = [(row["stage"], row["case"], row["device"], row["ratio"]) for row in ledger["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(path, "is no ledger", again) from error
    if schema != SCHEMA or not rows:
        raise UserError(path, f"is a ledger of version {schema!r} with {len(rows)} rows", again)
    return ledger
