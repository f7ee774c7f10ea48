"""Histograms straight from packed words: no event is written out in columns."""

from __future__ import annotations

import numpy as np
from numba import njit

MILLISECOND = 1000  # us


@njit(cache=True, nogil=True)
def count_words(layout, words, borders, first_ms, times, height, width, rows, columns, clip, histogram, fresh):  # type: ignore[no-untyped-def]
    """Count the events of whole milliseconds that fall into bins of time; equal to unpacking and counting them.

    Args:
        layout: of the words, `tespec.events.packing.LAYOUT`.
        words: (N,) uint32.
        borders: (M + 1,) indices into `words`, rising from 0 to N: where each of M milliseconds begins and ends.
        first_ms: the first millisecond.
        times: (bins + 1,) int64 borders of the bins in us, rising.
        height: rows of the sensor.
        width: columns of the sensor.
        rows: (>= 1024,) where each row of the sensor lands in the histogram; below 0: nowhere.
        columns: (>= 2048,) likewise of columns.
        clip: uint8 largest count.
        histogram: (2 * bins, H, W) uint8, counted on top of.
        fresh: what it holds is replaced.

    Returns:
        whether the words are whole: inside of the sensor and in order of time.
    """
    if not _in_order(words, borders, layout.us_shift):
        return False
    bins, wide = len(times) - 1, np.uint64(histogram.shape[2])
    area = histogram.shape[1] * histogram.shape[2]
    ends = _ends_of_bins(words, borders, first_ms, times, layout.us_shift)
    places = np.empty(max(1, np.diff(ends).max()), np.uint32)
    cells, outside = histogram.reshape(-1), np.uint32(0)
    of_x, of_y = np.uint64(layout.columns - 1), np.uint64(layout.rows - 1)
    y_shift, p_shift = np.uint64(layout.y_shift), np.uint64(layout.p_shift)
    for k in range(bins):
        negative, positive = np.uint64(k * area), np.uint64(bins * area)
        if fresh:
            # Bin by bin, so that the zeros still lie in a cache when events jump about in them.
            cells[k * area : (k + 1) * area] = 0
            cells[(bins + k) * area : (bins + k + 1) * area] = 0
        # Places first, counts after: neither loop has a branch to mispredict, and stores do not hold up what follows.
        kept = np.int64(0)
        for i in range(ends[k], ends[k + 1]):
            word = np.uint64(words[i])
            x, y = word & of_x, (word >> y_shift) & of_y
            outside |= np.uint32(x >= np.uint64(width)) | np.uint32(y >= np.uint64(height))
            column, row, polarity = columns[x], rows[y], (word >> p_shift) & np.uint64(1)
            places[kept] = np.uint32(negative + polarity * positive + np.uint64(row) * wide + np.uint64(column))
            kept += np.int64((column | row) >= 0)
        for i in range(kept):
            cells[places[i]] += np.uint8(cells[places[i]] < clip)
    return outside == 0


@njit(cache=True, nogil=True)
def _in_order(words, borders, us_shift):  # type: ignore[no-untyped-def]
    """Whether microseconds rise within each millisecond and stay below its end."""
    wrong = np.uint32(0)
    for millisecond in range(len(borders) - 1):
        previous = np.uint32(0)
        for i in range(borders[millisecond], borders[millisecond + 1]):
            us = words[i] >> np.uint32(us_shift)
            wrong |= np.uint32(us < previous) | np.uint32(us >= np.uint32(MILLISECOND))
            previous = us
    return wrong == 0


@njit(cache=True, nogil=True)
def _ends_of_bins(words, borders, first_ms, times, us_shift):  # type: ignore[no-untyped-def]
    """(bins + 1,) index of the first event that is not before each border of the bins."""
    ends = np.empty(len(times), np.int64)
    for k in range(len(times)):
        millisecond = times[k] // MILLISECOND - first_ms
        if millisecond < 0 or millisecond >= len(borders) - 1:
            ends[k] = borders[0] if millisecond < 0 else borders[-1]
            continue
        us = times[k] % MILLISECOND
        low, high = borders[millisecond], borders[millisecond + 1]
        while low < high:
            middle = (low + high) // 2
            if np.int64(words[middle] >> np.uint32(us_shift)) < us:
                low = middle + 1
            else:
                high = middle
        ends[k] = low
    return ends
