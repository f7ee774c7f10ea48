"""Event histograms (Eq. 3): how many events of each polarity fell on each pixel in each time bin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from tespec.events.readers import Column, check_events
from tespec.events.store import CLIP, MAX_WIDTH, PackedEvents, Seen

RULES = ("edges", "rvt")
BLOCK = 1 << 12  # events counted together, whose places stay in the first-level cache
COORDINATES = MAX_WIDTH + 1  # of packed events, and one that no region has
DROPPED = -1


class FlipZoom(NamedTuple):
    """A flip and zoom of an image: as index maps of its sides, and as scale and shift for boxes.

    Attributes:
        rows: (H,) source row of each row of the result; `DROPPED` outside of the image.
        columns: (W,) source column of each column, likewise.
        scale: factors along rows and columns; negative where flipped.
        shift: where the source's upper and left edge come to lie, in px.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    scale: tuple[float, float] = (1.0, 1.0)
    shift: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Region:
    """The upper rows and left columns of a sensor, downsampled.

    Counting the events that nearest-exact sub-sampling keeps gives the same bits as sub-sampling the full histogram,
    with a quarter of the events and of the memory at factor 2.

    Attributes:
        height: rows of the result in px.
        width: columns of the result in px.
        factor: sensor pixels per pixel of the result, along each side.
        keep: "nearest" keeps the events of one sensor pixel in factor x factor, the one that nearest-exact
            sub-sampling picks: coordinates c with c % factor == factor // 2 (odd ones at factor 2, as in RVT's 1Mpx
            archive); "all" sums them.
    """

    height: int
    width: int
    factor: int = 1
    keep: str = "nearest"

    def seen(self, view: FlipZoom | None = None) -> Seen:
        """(K, 2049) at which rows, and (L, 2049) at which columns each of the sensor's is seen.

        `DROPPED` where there is no first, second ... place: zooming in shows some of them several times.
        """
        if view is None:
            return _places(self)
        (rows,), (columns,) = _places(self)
        return _seen(rows, view.rows), _seen(columns, view.columns)


@lru_cache(maxsize=64)
def _places(region: Region) -> Seen:
    """(1, 2049) at which row, and (1, 2049) at which column each of the sensor's lands, or `DROPPED`."""
    coordinates = np.arange(COORDINATES, dtype=np.int32)
    places = coordinates // region.factor
    if region.keep == "nearest":
        places[coordinates % region.factor != region.factor // 2] = DROPPED
    places[-1] = DROPPED
    rows, columns = (np.where(places < side, places, DROPPED)[None] for side in (region.height, region.width))
    return rows.astype(np.int32), columns.astype(np.int32)


def _seen(places: NDArray[np.int32], sources: NDArray[np.int64]) -> NDArray[np.int32]:
    """(K, 2049) the places at which coordinates are seen that land at `places`; see `FlipZoom` for `sources`."""
    size = len(sources)
    where = np.flatnonzero(sources != DROPPED)
    order = where[np.argsort(sources[where], kind="stable")]
    shown = sources[order]
    nth = np.arange(len(shown)) - np.searchsorted(shown, shown)
    # The last column is that of what the region drops.
    seen = np.full((int(nth.max(initial=0)) + 1, size + 1), DROPPED, np.int32)
    seen[nth, shown] = order
    return np.ascontiguousarray(seen[:, np.where(places == DROPPED, size, places)])


def apply_maps(image: NDArray[Any], view: FlipZoom, outside: float) -> NDArray[Any]:
    """Image (..., H, W) as it is seen; pixels from outside of it get the value `outside`.

    Where nothing changes, the image itself is returned.
    """
    seen = image
    # One side after the other takes a third of the time of indexing both at once; most sides stay as they are.
    for axis, sources in ((-2, view.rows), (-1, view.columns)):
        if np.array_equal(sources, np.arange(image.shape[axis])):
            continue
        seen = seen.take(sources, axis=axis)
        seen.swapaxes(axis, -1)[..., sources == DROPPED] = outside
    return seen


def bin_times(t_start: int, t_end: int, bins: int) -> NDArray[np.int64]:
    """Bins of the rule "edges" (Eq. 3), which divides the window between its borders.

    Returns:
        (bins + 1,) times in us: bin k holds the events with times[k] <= t < times[k + 1], which are those with
        floor((t - t_start) / (t_end - t_start) * bins) == k in exact arithmetic.

    Raises:
        ValueError: an empty window, or no bins.
    """
    if t_end <= t_start:
        raise ValueError(f"the window [{t_start}, {t_end}) us is empty")
    if bins < 1:
        raise ValueError(f"{bins} bins")
    span = t_end - t_start
    return np.array([t_start - (-k * span // bins) for k in range(bins + 1)], np.int64)


def rvt_bin_times(first: int, last: int, bins: int) -> NDArray[np.int64]:
    """Bins of the rule "rvt", which divides the window between its first and its last event (us).

    The bin of an event is that of uzh-rpg/RVT, data/utils/representations.py, including its rounding: division and
    product in float32, the last event in the last bin, and all events in bin 0 where they have one time.

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
    """Counts of the events of one window, negative polarity first.

    Args:
        x: (N,) columns in px, inside the sensor.
        y: (N,) rows, likewise.
        t: (N,) times in us, sorted; events outside of the window are left out.
        p: (N,) polarities, 0 or 1.
        t_start: first time of the window in us.
        t_end: end of the window in us; an event at it is outside by "edges" and inside by "rvt".
        bins: time bins per window.
        height: rows of the sensor.
        width: columns of the sensor.
        rule: "edges" divides the window between its borders (Eq. 3); "rvt" between its first and its last event, bit by
            bit as uzh-rpg/RVT, data/utils/representations.py, does.

    Returns:
        (2*bins, height, width) uint8, clipped to 10: bins 0 to bins - 1 of the negative events, then of the positive.

    Raises:
        ValueError: what is given does not fit these descriptions.
    """
    if rule not in RULES:
        raise ValueError(f"unknown binning rule {rule!r}; choose from {', '.join(RULES)}")
    check_events(x, y, t, p, height, width)
    if (t[1:] < t[:-1]).any():
        raise ValueError("the events are not sorted by time")
    times = bin_times(t_start, t_end, bins)
    if rule == "rvt":
        begin, end = np.searchsorted(t, (t_start, t_end + 1))  # which has the event at the end
        if begin < end:
            times = rvt_bin_times(int(t[begin]), int(t[end - 1]), bins)
    columns, rows, on = (np.ascontiguousarray(each, kind) for each, kind in ((x, "u2"), (y, "u2"), (p, "u1")))
    histogram = np.empty((2 * bins, height, width), np.uint8)
    _count(columns, rows, on, np.searchsorted(t, times), np.uint8(CLIP), histogram)
    return histogram


@njit(cache=True, nogil=True)
def _count(x, y, p, borders, clip, histogram):  # type: ignore[no-untyped-def]
    bins, width = len(borders) - 1, np.uint32(histogram.shape[2])
    area, counts, cells = histogram.shape[1] * histogram.shape[2], histogram.reshape(-1), np.empty(BLOCK, np.uint32)
    for k in range(bins):
        first, positive = np.uint32(k * area), np.uint32(bins * area)
        # Bin by bin, so that the zeros still lie in a cache when events jump about in them.
        counts[k * area : (k + 1) * area] = 0
        counts[(bins + k) * area : (bins + k + 1) * area] = 0
        for begin in range(borders[k], borders[k + 1], BLOCK):
            some = slice(begin, min(begin + BLOCK, borders[k + 1]))
            xs, ys, ps = x[some], y[some], p[some]
            # Cells first, counts after: stores hold up nothing. A sum in place of a branch spares its misprediction.
            for i in range(len(xs)):
                cells[i] = first + np.uint32(ps[i]) * positive + np.uint32(ys[i]) * width + np.uint32(xs[i])
            for i in range(len(xs)):
                counts[cells[i]] += np.uint8(counts[cells[i]] < clip)


def window_histograms(
    stream: PackedEvents,
    windows: ArrayLike,
    bins: int,
    *,
    rule: str = "edges",
    region: Region | None = None,
    view: FlipZoom | None = None,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Histograms of windows (T, 2), first time and end of each in us, negative polarity first; see `event_histogram`.

    By rule "rvt" bins go by the first and last event of the whole sensor, and events at a border count on both sides.

    Args:
        stream: an open recording.
        windows: as above.
        bins: time bins per window.
        rule: "edges" or "rvt".
        region: part of the sensor that is used, and its downsampling; default: all of it.
        view: flip and zoom of the region; default: as it is. What it shows from outside of the region is zero.
        out: C-contiguous array for the result (T, 2*bins, H, W) uint8, whatever it holds; default: a new one.

    Raises:
        ValueError: windows or `out` of another shape, unknown rule, empty window, or no bins.
        UserError: the words read are damaged.
    """
    limits, region = np.asarray(windows, np.int64), region or Region(stream.height, stream.width)
    if limits.ndim != 2 or limits.shape[1] != 2:
        raise ValueError(f"windows have the shape {limits.shape} instead of (T, 2)")
    if rule not in RULES:
        raise ValueError(f"unknown binning rule {rule!r}; choose from {', '.join(RULES)}")
    shape = (len(limits), 2 * bins, region.height, region.width)
    histograms = np.empty(shape, np.uint8) if out is None else out
    if histograms.shape != shape or histograms.dtype != np.uint8 or not histograms.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous uint8 {shape}, not {histograms.dtype} {histograms.shape}")
    seen = region.seen(view)
    for histogram, (start, end) in zip(histograms, limits.tolist(), strict=True):
        times = bin_times(start, end, bins)
        if rule == "rvt":
            t = stream.slice(start, end + 1).t  # as uzh-rpg/RVT, scripts/genx/preprocess_dataset.py
            if len(t):
                times = rvt_bin_times(int(t[0]), int(t[-1]), bins)
        stream.count_bins(times, seen, histogram)
    return histograms
