"""Times that lie on disk, searched and put in order without holding them in memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.events.scans import Scan

BLOCK = 1 << 14  # events; one int64 of memory for each block
BLOCKS_AT_ONCE = 64
LATEST = np.iinfo(np.int64).max


class Times(Protocol):
    """Integers by index: a memory map, an HDF5 dataset, or the like."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.integer]: ...


class TimeOrder:
    """Times raised to their running maximum, so that those that step back do so no longer.

    Args:
        times: (N,) integers.
        scan: of these times, by `scan_times`, which reads every one of them; default: made now.

    Attributes:
        clamped: number of times that were raised.
        first: the first time; 0 if there is none.
        last: the latest time; 0 if there is none.
    """

    def __init__(self, times: Times, scan: Scan | None = None) -> None:
        found = scan_times(times) if scan is None else scan
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
        if not self.clamped:
            return np.array(self._times[begin:end], np.int64)
        block = begin // BLOCK
        times = np.array(self._times[block * BLOCK : end], np.int64)
        if block:
            times[0] = max(times[0], self._latest[block - 1])
        return np.maximum.accumulate(times, out=times)[begin - block * BLOCK :]


def scan_times(times: Times) -> Scan:
    """Read every time once, some blocks at a time, and keep the running maximum at the end of each block."""
    count = len(times)
    latest = np.empty(-(-count // BLOCK), np.int64)
    clamped, now, first = 0, np.iinfo(np.int64).min, 0
    for begin in range(0, count, BLOCKS_AT_ONCE * BLOCK):
        part = np.ascontiguousarray(times[begin : begin + BLOCKS_AT_ONCE * BLOCK])
        if not begin:
            first = int(part[0])
        raised, now = _scan(part, now, latest[begin // BLOCK :])
        clamped += raised
    return Scan(latest, int(clamped), first)


@njit(cache=True, nogil=True)
def _scan(times, latest, latest_of_block):  # type: ignore[no-untyped-def]
    raised = 0
    for i in range(len(times)):
        time = np.int64(times[i])
        if time < latest:
            raised += 1
        else:
            latest = time
        latest_of_block[i // BLOCK] = latest
    return raised, latest
