"""Event histograms (Eq. 5): how many events of each polarity fell on each pixel in each time bin."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

RULES = ("edges", "rvt")
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
        t: (N,) times in us, sorted, t_start <= t < t_end.
        p: (N,) polarities, 0 or 1.
        t_start: first time of the window in us.
        t_end: end of the window in us, exclusive.
        bins: time bins per window.
        height: rows of the sensor.
        width: columns of the sensor.
        rule: "edges" divides the window between its borders (Eq. 5); "rvt" divides it between its first and last event,
            as uzh-rpg/RVT, data/utils/representations.py, does, so that a lone event lies in bin 0.
        clip: largest count; counts saturate there.
        out: (2*bins, height, width) uint8 zeros to count into; default: a new array.

    Returns:
        (2*bins, height, width) uint8.

    Raises:
        ValueError: unknown rule, empty window, or a clip that does not fit a byte.
    """
    if rule not in RULES:
        raise ValueError(f"unknown binning rule {rule!r}; choose from {', '.join(RULES)}")
    if t_end <= t_start or not 0 < clip < 256:
        raise ValueError(f"window [{t_start}, {t_end}) us and clip {clip} must be positive, clip below 256")
    histogram = np.zeros((2 * bins, height, width), np.uint8) if out is None else out
    if len(t):
        borders = bin_borders(t, t_start, t_end, bins, rule)
        _count(x, y, p, borders, clip, histogram)
    return histogram


def bin_borders(t: NDArray[np.integer], t_start: int, t_end: int, bins: int, rule: str = "edges") -> NDArray[np.int64]:
    """(bins + 1,) indices: events borders[k] to borders[k + 1] of the sorted times `t` lie in bin k."""
    first, last = (t_start, t_end) if rule == "edges" else (int(t[0]), max(int(t[-1]), int(t[0]) + 1))
    # floor((t - first) * bins / (last - first)) >= k exactly where t >= first + ceil(k * (last - first) / bins)
    inner = [first + -(-k * (last - first) // bins) for k in range(1, bins)]
    return np.concatenate(([0], np.searchsorted(t, inner), [len(t)])).astype(np.int64)


@njit(cache=True, nogil=True)
def _count(x, y, p, borders, clip, histogram):  # type: ignore[no-untyped-def]
    bins = len(borders) - 1
    for k in range(bins):
        for i in range(borders[k], borders[k + 1]):
            channel = k + bins if p[i] else k
            count = histogram[channel, y[i], x[i]]
            if count < clip:
                histogram[channel, y[i], x[i]] = count + 1
