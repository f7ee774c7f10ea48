"""Recordings and their labels, as tests/events writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuzzing import READERS, WRITERS, check_whole
from harm import bytes_of_one
from target import Target


def _read(path: Path) -> Any:
    from tespec.events import load_events

    return check_whole(load_events(path))


RECORDINGS: dict[str, Target] = {
    kind: Target(write, READERS.get(kind, _read), bytes_of_one) for kind, write in WRITERS.items()
}
