"""Event histograms (Eq. 3): how many events of each polarity fell on each pixel in each time bin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.events.spatial import Region, View
from tespec.events.store import PackedEvents
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


BLOCK = 1 << 12  # events counted together, whose places stay in the first-level cache
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

    Returns:
        (2*bins, height, width) uint8: bins 0 to bins - 1 of the negative events, then those of the positive ones.

    Raises:
        ValueError: unknown rule, empty window, a clip that does not fit a byte, arrays of different lengths, times out
            of order, or events outside of the sensor.
    """
    check_window(t_start, t_end, bins, rule, clip)
    check_events(x, y, t, p, height, width)
    if not _rising(np.ascontiguousarray(t)):
        raise ValueError("the events are not sorted by time")
    times = bin_times(t_start, t_end, bins)
    if rule == "rvt":
        begin, end = np.searchsorted(t, (t_start, first_after(t_end, rule)))
        if begin < end:
            times = rvt_bin_times(int(t[begin]), int(t[end - 1]), bins)
    columns, rows = np.ascontiguousarray(x, np.uint16), np.ascontiguousarray(y, np.uint16)
    histogram = np.empty((2 * bins, height, width), np.uint8)
    _count(columns, rows, np.ascontiguousarray(p, np.uint8), np.searchsorted(t, times), np.uint8(clip), histogram)
    return histogram


@njit(cache=True, nogil=True)
def _rising(t):  # type: ignore[no-untyped-def]
    earlier, later, falls = t[:-1], t[1:], False
    for i in range(len(later)):
        falls |= later[i] < earlier[i]
    return not falls


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


Windows = NDArray[np.integer] | Sequence[int] | Sequence[tuple[int, int]]


def window_histograms(
    stream: PackedEvents,
    windows: Windows,
    bins: int,
    *,
    rule: str = "edges",
    clip: int = CLIP,
    region: Region | None = None,
    view: View | None = None,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Histograms of `windows`, negative polarity first.

    Args:
        stream: an open recording.
        windows: (T + 1,) borders of windows side by side, or (T, 2) first time and end of each; in us.
        bins: time bins per window.
        rule: "edges" or "rvt", see `event_histogram`; "rvt" goes by the first and last event of the whole sensor, and
            counts events at a border on both sides of it.
        clip: largest count.
        region: part of the sensor that is used, and its downsampling; default: all of it.
        view: flip and zoom of the region; default: as it is. Nothing is seen where it shows what lies outside.
        out: C-contiguous array for the result, whatever it holds; default: a new one.

    Returns:
        (T, 2*bins, H, W) uint8; a window without events is zero.

    Raises:
        ValueError: windows of another shape, or see `event_histogram`.
        UserError: the words read are damaged.
    """
    limits = _limits(windows)
    region = region or Region(stream.height, stream.width)
    shape = (len(limits), 2 * bins, region.height, region.width)
    histograms = np.empty(shape, np.uint8) if out is None else out
    if histograms.shape != shape or histograms.dtype != np.uint8 or not histograms.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous uint8 {shape}, not {histograms.dtype} {histograms.shape}")
    seen = region.seen(view)
    for histogram, (start, end) in zip(histograms, limits.tolist(), strict=True):
        check_window(start, end, bins, rule, clip)
        times = _bins_of(stream, start, end, bins, rule)
        if times is None:
            histogram[...] = 0
        else:
            stream.count_bins(times, seen, clip, histogram)
    return histograms


def window_words(
    stream: PackedEvents, windows: Windows, bins: int, *, rule: str = "edges", region: Region | None = None
) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """The packed events that `window_histograms` counts, for `tespec.events.on_device.count_words`.

    Returns:
        words (N,) uint32 of the store, window by window and bin by bin, without those that the region drops, and
        (T, bins) how many fall into each bin.

    Raises:
        ValueError, UserError: see `window_histograms`.
    """
    limits = _limits(windows)
    seen = (region or Region(stream.height, stream.width)).seen()
    counts, found = np.zeros((len(limits), bins), np.int32), [np.empty(0, np.uint32)]
    for row, (start, end) in zip(counts, limits.tolist(), strict=True):
        check_window(start, end, bins, rule, CLIP)
        times = _bins_of(stream, start, end, bins, rule)
        if times is not None:
            words, row[...] = stream.words_of_bins(times, seen)
            found.append(words)
    return np.concatenate(found), counts


def _bins_of(stream: PackedEvents, start: int, end: int, bins: int, rule: str) -> NDArray[np.int64] | None:
    """Borders of a window's bins; None where the rule goes by events and there is none."""
    if rule == "edges":
        return bin_times(start, end, bins)
    t = stream.slice(start, first_after(end, rule)).t
    return rvt_bin_times(int(t[0]), int(t[-1]), bins) if len(t) else None


def _limits(windows: Windows) -> NDArray[np.int64]:
    """(T, 2) first time and end of each window."""
    limits = np.asarray(windows, np.int64)
    if limits.ndim == 1 and len(limits) > 1:
        limits = np.stack([limits[:-1], limits[1:]], axis=1)
    if limits.ndim != 2 or limits.shape[1] != 2:
        raise ValueError(f"windows have the shape {limits.shape} instead of (T + 1,) or (T, 2)")
    return limits
