"""Which events belong to a label, or to a segment of a recording without labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Windows = NDArray[np.int64]  # (N, 2) first time and end of each, in us, end exclusive


def windows_since_last(times: NDArray[np.int64], start: int) -> Windows:
    """(N, 2) windows in us that end at each of `times` (sorted) and begin at the one before; the first at `start`."""
    return np.stack([np.concatenate(([start], times[:-1])), times], axis=1).astype(np.int64)


def windows_of_length(times: NDArray[np.int64], length: int) -> Windows:
    """(N, 2) windows of `length` us that end at each of `times`."""
    return np.stack([times - length, times], axis=1).astype(np.int64)


def windows_side_by_side(first: int, end: int, length: int) -> Windows:
    """(N, 2) windows of `length` us, one after the other, from `first` on; none goes beyond `end`."""
    starts = first + length * np.arange(max(0, (end - first) // length), dtype=np.int64)
    return np.stack([starts, starts + length], axis=1)
