"""What the first look through a recording finds, kept in the cache so that opening it again is quick.

A scan is kept under the file's place, size and time of change. A scan that cannot be kept or read is made again:
the cache saves time and decides nothing.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.files import whole_file
from tespec.core.paths import cache_root

VERSION = 2  # raised by every change of what scans hold
UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


class Scan(NamedTuple):
    """What is known of the times of a recording, see `TimeOrder`, and the part of the sensor that has events.

    Attributes:
        latest: (blocks,) int64 running maximum of time at the end of each block of events.
        clamped: number of times that were raised to it.
        first: time of the first event; 0 if there is none.
        columns: largest x plus one, where the scan has looked at it; else 0.
        rows: largest y plus one, likewise.
        events: number of events, for recordings that do not say it.
        places: (blocks, K) int64 what a decoder needs to know of each block, for recordings that can only be decoded
            from front to back; else (0, 0).
    """

    latest: NDArray[np.int64]
    clamped: int
    first: int
    columns: int = 0
    rows: int = 0
    events: int = 0
    places: NDArray[np.int64] = np.empty((0, 0), np.int64)


def scan_once(path: Path, scan: Callable[[], Scan]) -> Scan:
    """The scan of a file: the one in the cache, else that of `scan`, which is put there."""
    kept = _place(path)
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as content:
            latest, numbers, places = (content[name] for name in ("latest", "numbers", "places"))
            shaped = numbers.shape == (5,) and latest.ndim == 1 and places.ndim == 2
            if shaped and latest.dtype == places.dtype == np.int64 and len(places) in (0, len(latest)):
                clamped, first, columns, rows, events = numbers.tolist()
                return Scan(latest, clamped, first, columns, rows, events, places)
    except UNREADABLE:
        pass
    made = scan()
    with suppress(OSError):  # a full or read-only cache costs time at the next opening, nothing else
        _keep(made, kept)
    return made


def _place(path: Path) -> Path:
    state = path.stat()
    key = f"{VERSION}|{path.resolve()}|{state.st_size}|{state.st_mtime_ns}"
    return cache_root() / "scans" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"


def _keep(made: Scan, kept: Path) -> None:
    numbers = np.array([made.clamped, made.first, made.columns, made.rows, made.events], np.int64)
    with whole_file(kept) as unfinished, unfinished.open("wb") as file:
        np.savez(file, latest=made.latest, numbers=numbers, places=made.places)
