"""Times that lie on disk, searched and put in order without holding them in memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.events.scans import Scan

BLOCK = 1 << 14  # events; one int64 of memory for each block
BLOCKS_AT_ONCE = 64
EARLIEST, LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Times(Protocol):
    """Integers by index: a memory map, an HDF5 dataset, or the like."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.integer]: ...


class TimeOrder:
    """Times raised to their running maximum, so that those that step back do so no longer.

    Args:
        times: (N,) integers.
        scan: of these times, by `scan_times`, which reads every one of them; default: made now.
        period: after which a clock of few bits begins again, from 0; 0 if it never does. Time goes on across its
            borders: of the times that a value may stand for, the one closest to the latest time before it is taken, so
            that a step back by less than half of the period stays one.

    Attributes:
        clamped: number of times that were raised.
        first: the first time; 0 if there is none.
        last: the latest time; 0 if there is none.
    """

    def __init__(self, times: Times, scan: Scan | None = None, period: int = 0) -> None:
        found = scan_times(times, period) if scan is None else scan
        self._period = period
        self._times, self._latest, self.clamped, self.first = times, found.latest, found.clamped, found.first
        self.last = int(self._latest[-1]) if len(self._latest) else 0

    def search(self, limit: int) -> int:
        """Index of the first event that is not before `limit`; the number of events if there is none."""
        if limit > LATEST:
            return len(self._times)  # beyond 64 bits, where NumPy would compare in floating point
        block = int(np.searchsorted(self._latest, limit))
        if block == len(self._latest):
            return len(self._times)
        begin = block * BLOCK
        return begin + int(np.searchsorted(self.read(begin, min(begin + BLOCK, len(self._times))), limit))

    def read(self, begin: int, end: int) -> NDArray[np.int64]:
        """Times in order of the events from index `begin` to `end`, (end - begin,) int64."""
        if begin >= end:
            return np.empty(0, np.int64)
        if not self.clamped and not (self._period and self.last >= self._period):
            return np.array(self._times[begin:end], np.int64)
        block = begin // BLOCK
        times = np.array(self._times[block * BLOCK : end], np.int64)
        _raise(times, self._latest[block - 1] if block else EARLIEST, self._period)
        return times[begin - block * BLOCK :]


def scan_times(times: Times, period: int = 0) -> Scan:
    """Read every time once, some blocks at a time, and keep the running maximum at the end of each block.

    Args:
        times: (N,) integers.
        period: see `TimeOrder`.
    """
    count = len(times)
    latest = np.empty(-(-count // BLOCK), np.int64)
    clamped, now, first = 0, EARLIEST, 0
    for begin in range(0, count, BLOCKS_AT_ONCE * BLOCK):
        part = np.ascontiguousarray(times[begin : begin + BLOCKS_AT_ONCE * BLOCK])
        if not begin:
            first = int(part[0])
        raised, now = _scan(part, now, latest[begin // BLOCK :], period)
        clamped += raised
    return Scan(latest, int(clamped), first)


@njit(cache=True, nogil=True)
def _continued(time, latest, period):  # type: ignore[no-untyped-def]
    """The time that a value of a clock with this period stands for, `latest` being the latest time before it."""
    if period and latest > EARLIEST:
        time += latest // period * period
        if latest - time >= period // 2:
            time += period
        elif time - latest > period // 2 and time >= period:
            time -= period
    return time


@njit(cache=True, nogil=True)
def _raise(times, latest, period):  # type: ignore[no-untyped-def]
    """Put int64 `times` in order in place."""
    for i in range(len(times)):
        latest = max(latest, _continued(times[i], latest, period))
        times[i] = latest


@njit(cache=True, nogil=True)
def _scan(times, latest, latest_of_block, period):  # type: ignore[no-untyped-def]
    raised = 0
    for i in range(len(times)):
        time = _continued(np.int64(times[i]), latest, period)
        if time < latest:
            raised += 1
        else:
            latest = time
        latest_of_block[i // BLOCK] = latest
    return raised, latest
