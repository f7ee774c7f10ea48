"""The ledger: rows, limits and machine of one run, as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.limits import Limits
from benchmarks.measure.page import page
from benchmarks.measure.row import Row
from tespec.comparison.identity import environment
from tespec.core.errors import UserError
from tespec.core.files import write_whole
from tespec.training.device import describe

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
