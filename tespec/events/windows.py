"""Histograms of a sequence of windows of one recording."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.events.histogram import CLIP, bin_times, check_window, count_events, first_after, rvt_bin_times
from tespec.events.spatial import Region, View, apply_maps
from tespec.events.store import PackedEvents
from tespec.events.stream import EventStream


def window_histograms(
    stream: EventStream,
    windows: NDArray[np.integer] | Sequence[int] | Sequence[tuple[int, int]],
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
        stream: any recording.
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
        if rule == "edges" and isinstance(stream, PackedEvents):
            stream.count_events(bin_times(start, end, bins), seen, clip, histogram, fresh=True)
            continue
        events = stream.slice(start, first_after(end, rule))
        if not len(events.t):
            histogram[...] = 0
            continue
        if rule == "rvt":
            times = rvt_bin_times(int(events.t[0]), int(events.t[-1]), bins)
        else:
            times = bin_times(start, end, bins)
        x, y, t, p = region.apply(events)
        sizes = {"height": region.height, "width": region.width, "clip": clip}
        count_events(x, y, t, p, times, out=histogram, fresh=True, **sizes)
        if view is not None:
            histogram[...] = apply_maps(histogram, view, 0)
    return histograms


def window_words(
    stream: PackedEvents,
    windows: NDArray[np.integer] | Sequence[int] | Sequence[tuple[int, int]],
    bins: int,
    *,
    rule: str = "edges",
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The packed events that `window_histograms` counts, for `tespec.events.on_device.count_words`.

    Args:
        stream: a packed recording.
        windows: see `window_histograms`, as for the other arguments.
        bins: time bins per window.
        rule: "edges" or "rvt".

    Returns:
        words (N,) uint32 of the store, window by window and bin by bin, and (T, bins) how many fall into each bin.

    Raises:
        ValueError: see `window_histograms`.
        UserError: the words read are damaged.
    """
    limits = _limits(windows)
    counts, found = np.zeros((len(limits), bins), np.int64), [np.empty(0, np.uint32)]
    for row, (start, end) in zip(counts, limits.tolist(), strict=True):
        check_window(start, end, bins, rule, CLIP)
        times = bin_times(start, end, bins)
        if rule == "rvt":
            events = stream.slice(start, first_after(end, rule))
            if not len(events.t):
                continue
            times = rvt_bin_times(int(events.t[0]), int(events.t[-1]), bins)
        words, row[...] = stream.words_of_bins(times)
        found.append(words)
    return np.concatenate(found), counts


def _limits(windows: NDArray[np.integer] | Sequence[int] | Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """(T, 2) first time and end of each window."""
    limits = np.asarray(windows, np.int64)
    if limits.ndim == 1 and len(limits) > 1:
        limits = np.stack([limits[:-1], limits[1:]], axis=1)
    if limits.ndim != 2 or limits.shape[1] != 2:
        raise ValueError(f"windows have the shape {limits.shape} instead of (T + 1,) or (T, 2)")
    return limits
