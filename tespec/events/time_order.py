"""Times that lie on disk, searched and put in order without holding them in memory."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 1 << 14  # events; one int64 of memory for each block


class TimeOrder:
    """Times raised to their running maximum, so that those that step back do so no longer.

    Opening reads every time once, and keeps the running maximum at the end of each block of them.

    Args:
        times: (N,) integers, as a rule memory-mapped.

    Attributes:
        clamped: number of times that were raised.
        first: the first time; 0 if there is none.
        last: the latest time; 0 if there is none.
    """

    def __init__(self, times: NDArray[np.integer]) -> None:
        self._times = np.asarray(times)
        self._latest, self.clamped = _scan(self._times, np.empty(-(-len(times) // BLOCK), np.int64))
        self.first, self.last = (int(times[0]), int(self._latest[-1])) if len(times) else (0, 0)

    def search(self, limit: int) -> int:
        """Index of the first event that is not before `limit`; the number of events if there is none."""
        block = int(np.searchsorted(self._latest, limit))
        if block == len(self._latest):
            return len(self._times)
        begin = block * BLOCK
        return begin + int(np.searchsorted(self.read(begin, min(begin + BLOCK, len(self._times))), limit))

    def read(self, begin: int, end: int) -> NDArray[np.int64]:
        """Times in order of the events from index `begin` to `end`, (end - begin,) int64."""
        if begin >= end:
            return np.empty(0, np.int64)
        block = begin // BLOCK
        times = np.array(self._times[block * BLOCK : end], np.int64)
        if block:
            times[0] = max(times[0], self._latest[block - 1])
        return np.maximum.accumulate(times, out=times)[begin - block * BLOCK :]


@njit(cache=True, nogil=True)
def _scan(times, latest_of_block):  # type: ignore[no-untyped-def]
    raised = 0
    latest = np.int64(times[0]) if len(times) else np.int64(0)
    for i in range(len(times)):
        time = np.int64(times[i])
        if time < latest:
            raised += 1
        else:
            latest = time
        latest_of_block[i // BLOCK] = latest
    return latest_of_block, raised
