"""Recordings that can only be decoded from front to back: found by blocks, each decoded when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.scans import Scan
from tespec.events.stream import Events

DECODED = 4  # blocks kept decoded: windows that follow each other lie in the same ones
EARLIEST = np.iinfo(np.int64).min


Place = NDArray[np.int64]  # (K,) what a decoder needs to know of a block, such as where it begins


def scan_blocks(blocks: Iterable[tuple[Place, Events]]) -> Scan:
    """Look through all blocks of a recording, decoded in order, whose times may step back."""
    latest: list[int] = []
    places: list[Place] = []
    count = clamped = first = columns = rows = 0
    now = EARLIEST
    for place, (x, y, t, _) in blocks:
        if len(t):
            if not count:
                first = int(t[0])
            ordered = np.maximum.accumulate(np.maximum(t, now))
            clamped += int((ordered != t).sum())
            now = int(ordered[-1])
            columns, rows = max(columns, int(x.max()) + 1), max(rows, int(y.max()) + 1)
        count += len(t)
        latest.append(now)
        places.append(place)
    kept = np.array(places, np.int64).reshape(len(places), -1) if places else np.empty((0, 0), np.int64)
    return Scan(np.array(latest, np.int64), clamped, first, columns, rows, count, kept)


class BlockStream:
    """Events in blocks; see `EventStream`.

    Args:
        path: for messages.
        size: (height, width) of the sensor in px.
        scan: what `scan_blocks` found.
        decode: decodes a block again, by its place; times may step back.

    Raises:
        UserError: there are no events, or some lie outside of the sensor.
    """

    def __init__(self, path: Path, size: tuple[int, int], scan: Scan, decode: Callable[[Place], Events]) -> None:
        self.height, self.width = size
        if not scan.events:
            raise UserError(path, "holds no events", "give a recording with events")
        if scan.columns > self.width or scan.rows > self.height:
            what = f"has events on {scan.columns}x{scan.rows} px, its sensor is {self.width}x{self.height} px"
            raise UserError(path, what, "copy it again, or give its true size")
        self.count, self.clamped, self._latest = scan.events, scan.clamped, scan.latest
        self.t_first, self.t_last = scan.first, int(scan.latest[-1])
        self._block = lru_cache(maxsize=DECODED)(lambda number: self._ordered(decode(scan.places[number]), number))

    def _ordered(self, events: Events, number: int) -> Events:
        before = self._latest[number - 1] if number else EARLIEST
        return events._replace(t=np.maximum.accumulate(np.maximum(events.t, before)))

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us)."""
        first = int(np.searchsorted(self._latest, t0))
        # A block begins no earlier than the latest time of the one before it.
        end = min(int(np.searchsorted(self._latest, t1)) + 1, len(self._latest))
        parts = []
        for number in range(first, end):
            x, y, t, p = self._block(number)
            begin, stop = np.searchsorted(t, (t0, t1))
            parts.append(Events(x[begin:stop], y[begin:stop], t[begin:stop], p[begin:stop]))
        if len(parts) == 1:
            return parts[0]
        empty = Events(np.empty(0, np.uint16), np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.uint8))
        return Events(*(np.concatenate(column) for column in zip(empty, *parts, strict=True)))
