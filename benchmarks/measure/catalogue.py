"""The stages by name, and which of them a part of the ledger holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.detection import detection
from benchmarks.measure.foretelling import foretelling
from benchmarks.measure.growth import growth
from benchmarks.measure.histogram import histogram
from benchmarks.measure.inference import inference
from benchmarks.measure.input import batches
from benchmarks.measure.intensity import intensity
from benchmarks.measure.optimizer import optimizer
from benchmarks.measure.prepare import prepare
from benchmarks.measure.recurrent import recurrent
from benchmarks.measure.row import Row
from benchmarks.measure.store import store
from benchmarks.measure.switches import switches
from benchmarks.measure.tables import tables
from tespec.core.errors import UserError

Stage = Callable[[Conditions], Iterator[Row]]

STAGES: dict[str, Stage] = {
    "histogram": histogram,
    "store": store,
    "prepare": prepare,
    "intensity": intensity,
    "recurrent": recurrent,
    "optimizer": optimizer,
    "input": batches,
    "detection": detection,
    "tables": tables,
    "forecast": foretelling,
    "inference": inference,
    "growth": growth,
    "switches": switches,
}

# What one command measures together; the parts beside "stages" take minutes by themselves.
LONG = ("inference", "growth", "switches")
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
