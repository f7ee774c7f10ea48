"""One event in one 32-bit word: x in 11 bits, y in 10, polarity in 1, microsecond within its millisecond in 10."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

X_BITS, Y_BITS, P_BITS = 11, 10, 1
MAX_WIDTH, MAX_HEIGHT = 1 << X_BITS, 1 << Y_BITS
Y_SHIFT, P_SHIFT, US_SHIFT = X_BITS, X_BITS + Y_BITS, X_BITS + Y_BITS + P_BITS


class Layout(NamedTuple):
    """Where the parts of a word lie, for kernels of other files: numba's cache notices changes of their own alone."""

    columns: int
    rows: int
    y_shift: int
    p_shift: int
    us_shift: int


LAYOUT = Layout(MAX_WIDTH, MAX_HEIGHT, Y_SHIFT, P_SHIFT, US_SHIFT)


@njit(cache=True, nogil=True)
def pack_words(x, y, t, p):  # type: ignore[no-untyped-def]
    """Words (N,) uint32 of events inside of `MAX_WIDTH` x `MAX_HEIGHT` px."""
    words = np.empty(len(t), np.uint32)
    for i in range(len(t)):
        words[i] = x[i] | (y[i] << Y_SHIFT) | (p[i] << P_SHIFT) | ((t[i] % 1000) << US_SHIFT)
    return words


@njit(cache=True, nogil=True)
def unpack_words(words, borders, first_ms, height, width):  # type: ignore[no-untyped-def]
    """Events of whole milliseconds.

    Args:
        words: (N,) uint32.
        borders: (M + 1,) indices into `words`, rising from 0 to N: where each of M milliseconds begins and ends.
        first_ms: the first millisecond.
        height: rows of the sensor.
        width: columns of the sensor.

    Returns:
        x, y, t, p, and whether the words are whole: inside of the sensor and in order of time.
    """
    count = len(words)
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    whole = True
    for k in range(len(borders) - 1):
        start, previous = (first_ms + k) * 1000, 0
        for i in range(borders[k], borders[k + 1]):
            word = words[i]
            column, row, us = word & (MAX_WIDTH - 1), (word >> Y_SHIFT) & (MAX_HEIGHT - 1), word >> US_SHIFT
            whole &= column < width and row < height and previous <= us < 1000
            x[i], y[i], p[i], t[i] = column, row, (word >> P_SHIFT) & 1, start + us
            previous = us
    return x, y, t, p, whole
