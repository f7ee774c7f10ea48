"""Event histograms (Eq. 3): how many events of each polarity fell on each pixel in each time bin."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.events.binning import bin_times, check_window, first_after, rvt_bin_times
from tespec.events.stream import check_events

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


def __getattr__(name: str) -> Any:
    """`event_histogram_torch` under this module's name, without importing torch before it is asked for."""
    if name == "event_histogram_torch":
        from tespec.events.histogram_torch import event_histogram_torch

        return event_histogram_torch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
