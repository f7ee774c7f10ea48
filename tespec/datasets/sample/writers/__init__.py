"""One writer for each dataset's layout: a film of a street becomes a recording with its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tespec.datasets.sample.sizes import Plan
from tespec.datasets.sample.street import Frame
from tespec.datasets.sample.writers.ddd17 import write_ddd17
from tespec.datasets.sample.writers.dsec import OFFSET_US, write_dsec
from tespec.datasets.sample.writers.mvsec import EPOCH_US, write_mvsec
from tespec.datasets.sample.writers.objects import write_objects
from tespec.datasets.sample.writers.prophesee import write_prophesee
from tespec.events.stream import Events

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
