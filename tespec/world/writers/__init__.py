"""One writer for each dataset's layout: a film of a street becomes a recording with its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tespec.events.stream import Events
from tespec.world.sizes import Plan
from tespec.world.street import Frame
from tespec.world.writers.ddd17 import write_ddd17
from tespec.world.writers.dsec import OFFSET_US, write_dsec
from tespec.world.writers.mvsec import EPOCH_US, write_mvsec
from tespec.world.writers.objects import write_objects
from tespec.world.writers.prophesee import write_prophesee

Film = Iterator[tuple[Frame, Events]]


def _ddd17(film: Film, root: Path, plan: Plan) -> None:
    write_ddd17(film, root / plan.name, plan.sensor.label_rows)


# What each writes into the dataset's folder.
WRITERS: dict[str, Callable[[Film, Path, Plan], None]] = {
    "ddd17": _ddd17,
    "gen1": write_prophesee,
    "1mpx": write_prophesee,
    "dsec": write_dsec,
    "mvsec": write_mvsec,
    "objects": write_objects,
}
# Time of the first frame by each recording's clock, in us.
STARTS = {"ddd17": 0, "gen1": 0, "1mpx": 0, "dsec": OFFSET_US, "mvsec": EPOCH_US}
