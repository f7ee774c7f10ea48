"""Event histograms (Eq. 3): how many events of each polarity fell on each pixel in each time bin."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.events.stream import check_events

RULES = ("edges", "rvt")


def first_after(t_end: int, rule: str) -> int:
    """The first time in us that is no longer in a window that ends at `t_end`.

    By "edges" an event at the end belongs to the next window; by "rvt" to both, as uzh-rpg/RVT,
    scripts/genx/preprocess_dataset.py, takes events from the first not before a window to the last not after it.
    """
    return t_end + (rule == "rvt")


def check_window(t_start: int, t_end: int, bins: int, rule: str, clip: int) -> None:
    """Check the arguments that every histogram shares.

    Raises:
        ValueError: unknown rule, empty window, no bins, or a clip that does not fit a byte.
    """
    if rule not in RULES:
        raise ValueError(f"unknown binning rule {rule!r}; choose from {', '.join(RULES)}")
    if t_end <= t_start:
        raise ValueError(f"the window [{t_start}, {t_end}) us is empty")
    if bins < 1 or not 0 < clip < 256:
        raise ValueError(f"bins ({bins}) must be positive and clip ({clip}) between 1 and 255")


def bin_times(t_start: int, t_end: int, bins: int) -> NDArray[np.int64]:
    """Bins of the rule "edges" (Eq. 3), which divides the window between its borders.

    Returns:
        (bins + 1,) times in us: bin k holds the events with times[k] <= t < times[k + 1], which are those with
        floor((t - t_start) / (t_end - t_start) * bins) == k in exact arithmetic.
    """
    span = t_end - t_start
    return np.array([t_start - (-k * span // bins) for k in range(bins + 1)], np.int64)


def rvt_bin_times(first: int, last: int, bins: int) -> NDArray[np.int64]:
    """Bins of the rule "rvt", which divides the window between its first and its last event.

    The bin of an event is that of uzh-rpg/RVT, data/utils/representations.py, including its rounding: division and
    product in float32, the last event in the last bin, and all events in bin 0 where they have one time.

    Args:
        first: time of the window's first event in us.
        last: time of its last event in us.
        bins: number of bins.

    Returns:
        (bins + 1,) times in us: bin k holds the events with times[k] <= t < times[k + 1].
    """
    span = max(last - first, 1)
    k = np.arange(1, bins)
    exact = np.array([-(-i * span // bins) for i in range(1, bins)], np.int64)
    # float32 moves a border by at most 4 roundings of 2**-24, and one more us.
    reach = (span >> 20) + 2
    candidates = exact[:, None] + np.arange(-reach, reach + 1)
    scaled = candidates.astype(np.float32) / np.float32(span) * np.float32(bins)
    before = (np.floor(scaled) < k[:, None]).sum(axis=1)
    return np.concatenate(([first], first + exact - reach + before, [last + 1])).astype(np.int64)


CLIP = 10


def event_histogram(
    x: NDArray[np.integer],
    y: NDArray[np.integer],
    t: NDArray[np.integer],
    p: NDArray[np.integer],
    *,
    t_start: int,
    t_end: int,
    bins: int,
    height: int,
    width: int,
    rule: str = "edges",
    clip: int = CLIP,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Counts of the events of one window, negative polarity first.

    Args:
        x: (N,) columns in px, inside the sensor.
        y: (N,) rows in px, inside the sensor.
        t: (N,) times in us, sorted; events outside of the window are left out.
        p: (N,) polarities, 0 or 1.
        t_start: first time of the window in us.
        t_end: end of the window in us; an event at it is outside by "edges" and inside by "rvt".
        bins: time bins per window.
        height: rows of the sensor.
        width: columns of the sensor.
        rule: "edges" divides the window between its borders (Eq. 3); "rvt" between its first and its last event, bit by
            bit as uzh-rpg/RVT, data/utils/representations.py, does.
        clip: largest count; counts saturate there.
        out: C-contiguous (2*bins, height, width) uint8 to count on top of; default: new zeros.

    Returns:
        (2*bins, height, width) uint8: bins 0 to bins - 1 of the negative events, then those of the positive ones.

    Raises:
        ValueError: unknown rule, empty window, a clip that does not fit a byte, arrays of different lengths, times out
            of order, or events outside of the sensor.
    """
    check_window(t_start, t_end, bins, rule, clip)
    times = bin_times(t_start, t_end, bins)
    if rule == "rvt":
        begin, end = np.searchsorted(t, (t_start, first_after(t_end, rule)))
        if begin < end:
            times = rvt_bin_times(int(t[begin]), int(t[end - 1]), bins)
    return count_events(x, y, t, p, times, height=height, width=width, clip=clip, out=out)


def count_events(
    x: NDArray[np.integer],
    y: NDArray[np.integer],
    t: NDArray[np.integer],
    p: NDArray[np.integer],
    times: NDArray[np.int64],
    *,
    height: int,
    width: int,
    clip: int = CLIP,
    out: NDArray[np.uint8] | None = None,
    fresh: bool = False,
) -> NDArray[np.uint8]:
    """Counts of events in bins given by their times; see `event_histogram` for the rest.

    Args:
        x: (N,) columns in px.
        y: (N,) rows in px.
        t: (N,) times in us, sorted.
        p: (N,) polarities, 0 or 1.
        times: (bins + 1,) times in us, sorted: bin k holds the events with times[k] <= t < times[k + 1].
        height: rows of the sensor.
        width: columns of the sensor.
        clip: largest count.
        out: array to count on top of.
        fresh: whatever `out` holds is not counted on top of but replaced.

    Raises:
        ValueError: see `event_histogram`.
    """
    check_events(x, y, t, p, height, width)
    if not _rising(np.ascontiguousarray(t)):
        raise ValueError("the events are not sorted by time")
    shape = (2 * (len(times) - 1), height, width)
    histogram = np.empty(shape, np.uint8) if out is None else out
    if histogram.shape != shape or histogram.dtype != np.uint8 or not histogram.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous uint8 {shape}, not {histogram.dtype} {histogram.shape}")
    columns, rows = np.ascontiguousarray(x, np.uint16), np.ascontiguousarray(y, np.uint16)
    positive = np.ascontiguousarray(p, np.uint8)
    cells = histogram.reshape(-1)
    borders = np.searchsorted(t, times)
    _count(columns, rows, positive, borders, np.uint8(clip), cells, width, height * width, fresh or out is None)
    return histogram


@njit(cache=True, nogil=True)
def _rising(t):  # type: ignore[no-untyped-def]
    falls = False
    for i in range(1, len(t)):
        falls |= t[i] < t[i - 1]
    return not falls


@njit(cache=True, nogil=True)
def _count(x, y, p, borders, clip, cells, width, area, fresh):  # type: ignore[no-untyped-def]
    bins = len(borders) - 1
    # Unsigned indices spare the test for negative ones, and the sum in place of a branch spares its misprediction.
    for k in range(bins):
        negative, positive = np.uint64(k * area), np.uint64(bins * area)
        if fresh:
            # Bin by bin, so that the zeros still lie in a cache when events jump about in them.
            cells[k * area : (k + 1) * area] = 0
            cells[(bins + k) * area : (bins + k + 1) * area] = 0
        for i in range(borders[k], borders[k + 1]):
            cell = negative + np.uint64(p[i]) * positive + np.uint64(y[i]) * np.uint64(width) + np.uint64(x[i])
            cells[cell] += np.uint8(cells[cell] < clip)


MILLISECOND = 1000  # us


@njit(cache=True, nogil=True)
def count_words(layout, words, borders, first_ms, times, height, width, rows, columns, clip, histogram, fresh):  # type: ignore[no-untyped-def]
    """Count the events of whole milliseconds that fall into bins of time; equal to unpacking and counting them.

    Args:
        layout: of the words, `tespec.events.store.LAYOUT`.
        words: (N,) uint32.
        borders: (M + 1,) indices into `words`, rising from 0 to N: where each of M milliseconds begins and ends.
        first_ms: the first millisecond.
        times: (bins + 1,) int64 borders of the bins in us, rising.
        height: rows of the sensor.
        width: columns of the sensor.
        rows: (K, >= 1024) at which rows of the histogram each of the sensor's is seen; below 0: nowhere.
        columns: (L, >= 2048) likewise of columns.
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
    longest = max(1, np.diff(ends).max())
    places, shown, again = np.empty(longest, np.uint32), np.empty(longest, np.uint32), np.empty(longest, np.uint32)
    cells, whole = histogram.reshape(-1), True
    for k in range(bins):
        negative, positive = np.uint64(k * area), np.uint64(bins * area)
        if fresh:
            # Bin by bin, so that the zeros still lie in a cache when events jump about in them.
            cells[k * area : (k + 1) * area] = 0
            cells[(bins + k) * area : (bins + k + 1) * area] = 0
        given = words[ends[k] : ends[k + 1]]
        whole &= _inside(layout, given, height, width)
        # Places first, counts after: neither loop has a branch to mispredict, and stores do not hold up what follows.
        kept = _place(layout, given, rows[0], columns[0], negative, positive, wide, places, shown)
        _add(cells, places, kept, clip)
        for i in range(len(rows)):
            for j in range(len(columns)):
                if i or j:
                    some = _place(layout, shown[:kept], rows[i], columns[j], negative, positive, wide, places, again)
                    _add(cells, places, some, clip)
    return whole


@njit(cache=True, nogil=True)
def find_words(layout, words, borders, first_ms, times, height, width):  # type: ignore[no-untyped-def]
    """Where the words of each bin of time lie; see `count_words` for the arguments.

    Returns:
        (bins + 1,) int64 index of the first word that is not before each border of the bins, and whether the words are
        whole, as `count_words` says.
    """
    whole = _in_order(words, borders, layout.us_shift)
    ends = _ends_of_bins(words, borders, first_ms, times, layout.us_shift)
    return ends, whole and _inside(layout, words[ends[0] : ends[-1]], height, width)


@njit(cache=True, nogil=True)
def _inside(layout, words, height, width):  # type: ignore[no-untyped-def]
    """Whether all coordinates are those of the sensor."""
    outside = np.uint32(0)
    for word in words:
        x, y = word & np.uint32(layout.columns - 1), (word >> np.uint32(layout.y_shift)) & np.uint32(layout.rows - 1)
        outside |= np.uint32(x >= np.uint32(width)) | np.uint32(y >= np.uint32(height))
    return outside == 0


@njit(cache=True, nogil=True)
def _place(layout, words, rows, columns, negative, positive, wide, places, shown):  # type: ignore[no-untyped-def]
    """Number of words that are seen; their places go into `places`, they themselves into `shown`."""
    of_x, of_y = np.uint64(layout.columns - 1), np.uint64(layout.rows - 1)
    y_shift, p_shift = np.uint64(layout.y_shift), np.uint64(layout.p_shift)
    kept = np.int64(0)
    for i in range(len(words)):
        word = np.uint64(words[i])
        x, y = word & of_x, (word >> y_shift) & of_y
        column, row, polarity = columns[x], rows[y], (word >> p_shift) & np.uint64(1)
        places[kept] = np.uint32(negative + polarity * positive + np.uint64(row) * wide + np.uint64(column))
        shown[kept] = words[i]
        kept += np.int64((column | row) >= 0)
    return kept


@njit(cache=True, nogil=True)
def _add(cells, places, count, clip):  # type: ignore[no-untyped-def]
    for i in range(count):
        cells[places[i]] += np.uint8(cells[places[i]] < clip)


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
