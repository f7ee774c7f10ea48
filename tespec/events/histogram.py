"""Event histograms (Eq. 3): the number of events per polarity, time bin and pixel."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tespec.events.readers import Column, check_events
from tespec.events.store import MAX_WIDTH, CellMaps, PackedEvents, count_events

RULES = ("edges", "rvt")
OUTSIDE_IMAGE = -1
# Source row of each output row (H,) and source column of each output column (W,); `OUTSIDE_IMAGE`
# outside of the image.
PixelMaps = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Region:
    """The upper rows and left columns of a sensor, downsampled.

    `keep` is "nearest" for the events of one of factor x factor sensor pixels, the one that
    nearest-exact subsampling picks: coordinates c with c % factor == factor // 2 (odd ones at
    factor 2, as in RVT's 1Mpx archive). This is bit-identical to subsampling the full histogram.
    "all" sums the events of all these pixels.
    """

    height: int  # rows of the histogram in px
    width: int  # columns of the histogram in px
    factor: int = 1  # sensor pixels per histogram pixel, along each side
    keep: str = "nearest"

    def cell_maps(self, maps: PixelMaps | None = None) -> CellMaps:
        """Map sensor coordinates to histogram rows (K, 2048) and columns (L, 2048).

        Zooming in repeats some sensor rows and columns: entry [k, c] is the k-th row or column
        that shows coordinate c, or `OUTSIDE_IMAGE`.
        """
        if maps is None:
            return _region_maps(self)
        (rows,), (columns,) = _region_maps(self)
        return _compose(rows, maps[0]), _compose(columns, maps[1])


@lru_cache(maxsize=64)
def _region_maps(region: Region) -> CellMaps:
    """Row (1, 2048) and column (1, 2048) of the region for each sensor coordinate, or
    `OUTSIDE_IMAGE`.
    """
    # those of packed events, and one outside of every region
    coordinates = np.arange(MAX_WIDTH + 1, dtype=np.int32)
    cells = coordinates // region.factor
    if region.keep == "nearest":
        cells[coordinates % region.factor != region.factor // 2] = OUTSIDE_IMAGE
    cells[-1] = OUTSIDE_IMAGE
    rows = np.where(cells < region.height, cells, OUTSIDE_IMAGE)
    columns = np.where(cells < region.width, cells, OUTSIDE_IMAGE)
    return rows[None].astype(np.int32), columns[None].astype(np.int32)


def _compose(cells: NDArray[np.int32], sources: NDArray[np.int64]) -> NDArray[np.int32]:
    """Map sensor coordinates to output cells (K, 2048).

    Args:
        cells: (2048,) cell of the region for each coordinate, or `OUTSIDE_IMAGE`.
        sources: cell of the region that each output cell shows, or `OUTSIDE_IMAGE`.
    """
    size = len(sources)
    filled = np.flatnonzero(sources != OUTSIDE_IMAGE)
    outputs = filled[np.argsort(sources[filled], kind="stable")]
    shown = sources[outputs]
    repeats = np.arange(len(shown)) - np.searchsorted(shown, shown)
    # The last column is for coordinates that the region drops.
    composed = np.full((int(repeats.max(initial=0)) + 1, size + 1), OUTSIDE_IMAGE, np.int32)
    composed[repeats, shown] = outputs
    return np.ascontiguousarray(composed[:, np.where(cells == OUTSIDE_IMAGE, size, cells)])


def bin_times(t_start: int, t_end: int, bins: int) -> NDArray[np.int64]:
    """Compute bin borders by the rule "edges" (Eq. 3), from the window's start to its end.

    Bin k holds the events with times[k] <= t < times[k + 1]. In exact arithmetic, these are the
    events with floor((t - t_start) / (t_end - t_start) * bins) == k.

    Returns:
        (bins + 1,) int64 times in us.

    Raises:
        ValueError: the window is empty, or `bins` is below 1.
    """
    if t_end <= t_start:
        raise ValueError(f"the window [{t_start}, {t_end}) us is empty")
    if bins < 1:
        raise ValueError(f"bins must be >= 1, not {bins}")
    span = t_end - t_start
    return np.array([t_start - (-k * span // bins) for k in range(bins + 1)], np.int64)


def rvt_bin_times(first: int, last: int, bins: int) -> NDArray[np.int64]:
    """Compute bin borders by the rule "rvt", from the window's first event to its last.

    Events fall into the same bins as in uzh-rpg/RVT, data/utils/representations.py, including the
    rounding: division and product in float32, the last event in the last bin, and all events in bin
    0 if they have the same time.

    Args:
        first: time of the first event in us.
        last: time of the last event in us.
        bins: time bins per window.

    Returns:
        (bins + 1,) int64 times in us.
    """
    span = max(last - first, 1)
    k = np.arange(1, bins)
    exact = np.array([-(-i * span // bins) for i in range(1, bins)], np.int64)
    # float32 moves a border by at most 4 roundings of 2**-24, plus 1 us.
    reach = (span >> 20) + 2
    candidates = exact[:, None] + np.arange(-reach, reach + 1)
    scaled = candidates.astype(np.float32) / np.float32(span) * np.float32(bins)
    before = (np.floor(scaled) < k[:, None]).sum(axis=1)
    return np.concatenate(([first], first + exact - reach + before, [last + 1])).astype(np.int64)


def _bin_times(
    rule: str, t_start: int, t_end: int, bins: int, select: Callable[[int, int], Column]
) -> NDArray[np.int64]:
    """Compute bin borders by a rule; `select` returns the times (N,) of t0 <= t < t1 in us."""
    if rule not in RULES:
        raise ValueError(f"unknown binning rule {rule!r}; choose from {', '.join(RULES)}")
    times = bin_times(t_start, t_end, bins)
    if rule == "rvt":
        # includes an event at t_end, as uzh-rpg/RVT, scripts/genx/preprocess_dataset.py
        t = select(t_start, t_end + 1)
        if len(t):
            times = rvt_bin_times(int(t[0]), int(t[-1]), bins)
    return times


def event_histogram(
    x: Column,
    y: Column,
    t: Column,
    p: Column,
    *,
    t_start: int,
    t_end: int,
    bins: int,
    height: int,
    width: int,
    rule: str = "edges",
) -> NDArray[np.uint8]:
    """Compute the event histogram of one time window, negative polarity first.

    Args:
        x: (N,) columns in px, inside the sensor.
        y: (N,) rows in px, inside the sensor.
        t: (N,) times in us, sorted; events outside of the window are ignored.
        p: (N,) polarities, 0 or 1.
        t_start: start of the window in us.
        t_end: end of the window in us; "edges" excludes and "rvt" includes an event at this time.
        bins: time bins per window.
        height: rows of the sensor in px.
        width: columns of the sensor in px.
        rule: "edges" divides the window from its start to its end (Eq. 3); "rvt" from its first to
            its last event, bit-identical to uzh-rpg/RVT, data/utils/representations.py.

    Returns:
        (2*bins, height, width) uint8, clipped to 10: bins 0 to bins - 1 of the negative events,
        then of the positive.

    Raises:
        ValueError: the arrays are not integers (N,) on the sensor and sorted by time, the window is
            empty, or the rule is unknown.

    Example:
        >>> x, y, t, p = np.array([[1, 2, 2], [0, 0, 0], [10, 30, 70], [0, 1, 1]])
        >>> histogram = event_histogram(
        ...     x, y, t, p, t_start=0, t_end=100, bins=2, height=1, width=3
        ... )
        >>> histogram[:, 0].tolist()  # negative in bins 0 and 1, then positive
        [[0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1]]
    """
    check_events(x, y, t, p, height, width)
    if (t[1:] < t[:-1]).any():
        raise ValueError("the events are not sorted by time")
    times = _bin_times(
        rule, t_start, t_end, bins, lambda t0, t1: t[slice(*np.searchsorted(t, (t0, t1)))]
    )
    histogram = np.empty((2 * bins, height, width), np.uint8)
    count_events(
        np.ascontiguousarray(x, np.uint16),
        np.ascontiguousarray(y, np.uint16),
        np.ascontiguousarray(p, np.uint8),
        np.searchsorted(t, times),
        histogram,
    )
    return histogram


def window_histograms(
    stream: PackedEvents,
    windows: ArrayLike,
    bins: int,
    *,
    rule: str = "edges",
    region: Region | None = None,
    maps: PixelMaps | None = None,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Compute the event histograms of windows of a recording; see `event_histogram`.

    Rule "rvt" bins by the first and last event of the full sensor, and counts events at a border in
    both windows.

    Args:
        stream: an open recording.
        windows: (T, 2) start and end of each window in us.
        bins: time bins per window.
        rule: "edges" or "rvt".
        region: part of the sensor to use, and its downsampling; default: the full sensor.
        maps: flip and zoom of the region, see `PixelMaps`; pixels from outside of it are zero;
            default: none.
        out: C-contiguous uint8 array (T, 2*bins, H, W) to overwrite with the result; default: a new
            array.

    Returns:
        (T, 2*bins, H, W) uint8, clipped to 10, negative polarity first.
    """
    limits = np.asarray(windows, np.int64)
    region = region or Region(stream.height, stream.width)
    if limits.ndim != 2 or limits.shape[1] != 2:
        raise ValueError(f"windows have the shape {limits.shape} instead of (T, 2)")
    shape = (len(limits), 2 * bins, region.height, region.width)
    if out is None:
        out = np.empty(shape, np.uint8)
    if out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous uint8 {shape}, not {out.dtype} {out.shape}")
    cell_maps = region.cell_maps(maps)
    for histogram, (start, end) in zip(out, limits.tolist(), strict=True):
        times = _bin_times(rule, start, end, bins, lambda t0, t1: stream.slice(t0, t1).t)
        stream.count_bins(times, cell_maps, histogram)
    return out
