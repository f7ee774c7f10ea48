"""Recordings that can only be decoded from front to back: found by blocks, each decoded when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

from tespec.errors import UserError
from tespec.events.stream import Events

DECODED = 4  # blocks kept decoded: windows that follow each other lie in the same ones
EARLIEST = np.iinfo(np.int64).min


class BlockStream:
    """Events in blocks; see `EventStream`.

    Opening decodes every block once, and keeps of each its number of events and its latest time.

    Args:
        path: for messages.
        size: (height, width) of the sensor in px.
        blocks: decoded in order, for the first look.
        decode: decodes one of them again, by its number; times may step back.

    Raises:
        UserError: there are no events, or some lie outside of the sensor.
    """

    def __init__(
        self, path: Path, size: tuple[int, int], blocks: Iterable[Events], decode: Callable[[int], Events]
    ) -> None:
        self.height, self.width = size
        self.count = self.clamped = self.t_first = 0
        latest: list[int] = []
        now, columns, rows = EARLIEST, 0, 0
        for x, y, t, _ in blocks:
            if len(t):
                if not self.count:
                    self.t_first = int(t[0])
                ordered = np.maximum.accumulate(np.maximum(t, now))
                self.clamped += int((ordered != t).sum())
                now = int(ordered[-1])
                columns, rows = max(columns, int(x.max()) + 1), max(rows, int(y.max()) + 1)
            self.count += len(t)
            latest.append(now)
        if not self.count:
            raise UserError(path, "holds no events", "give a recording with events")
        if columns > self.width or rows > self.height:
            what = f"has events on {columns}x{rows} px, its sensor is {self.width}x{self.height} px"
            raise UserError(path, what, "copy it again, or give its true size")
        self.t_last = now
        self._latest = np.array(latest, np.int64)
        self._block = lru_cache(maxsize=DECODED)(lambda number: self._ordered(decode(number), number))

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
