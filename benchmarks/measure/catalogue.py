"""The stages by name, and which of them a part of the ledger holds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.detection import detection
from benchmarks.measure.events import histogram, intensity, prepare, store
from benchmarks.measure.networks import inference, recurrent, switches
from benchmarks.measure.processor import processor
from benchmarks.measure.rows import Row
from benchmarks.measure.scaling import scaling
from benchmarks.measure.training import batches, forecasts, growth, optimizer
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY


def tables(conditions: Conditions) -> Iterator[Row]:
    """The command as a user gives it, without records, into a temporary folder."""
    with TemporaryDirectory() as folder:
        out, none = Path(folder) / "tables", Path(folder) / "none"
        none.mkdir()
        command = [sys.executable, str(REPOSITORY / "benchmarks" / "tables.py")]
        command += ["--results", str(none), "--out", str(out)]

        def run() -> None:
            subprocess.run(command, check=True, capture_output=True, cwd=folder)

        run()
        count = len(list(out.iterdir()))
        row = Row(
            "tables", "all tables", "cpu", f"{count} files, from a fresh process to its end", work=count, unit="files"
        )
        yield conditions.compare(row, run)


Stage = Callable[[Conditions], Iterator[Row]]

STAGES: dict[str, Stage] = {
    "histogram": histogram,
    "store": store,
    "prepare": prepare,
    "intensity": intensity,
    "recurrent": recurrent,
    "optimizer": optimizer,
    "processor": processor,
    "input": batches,
    "detection": detection,
    "tables": tables,
    "forecast": forecasts,
    "inference": inference,
    "growth": growth,
    "switches": switches,
    "scaling": scaling,
}

# What one command measures together; the parts beside "stages" take minutes by themselves.
LONG = ("inference", "growth", "switches", "scaling")
PARTS: dict[str, tuple[str, ...]] = {
    "stages": tuple(name for name in STAGES if name not in LONG),
    **{name: (name,) for name in LONG},
}


def part_of(only: str | None) -> tuple[str, tuple[str, ...]]:
    """Name of a whole part, "" where it is less than one, and the stages to measure.

    Raises:
        UserError: there is no such stage.
    """
    wanted = only or "stages"
    if wanted in PARTS:
        return wanted, PARTS[wanted]
    if wanted not in STAGES:
        raise UserError(f"--only {wanted}", "no such stage", f"choose from {', '.join([*STAGES, 'stages', 'profile'])}")
    return "", (wanted,)
