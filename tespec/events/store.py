"""Packed events: 4 bytes each, lossless to the microsecond, in memory or in the memory-mapped files of a store.

A store is a folder of three files. `events.u32` holds one little-endian word per event: x in 11
bits, y in 10, polarity in 1, the microsecond within its millisecond in 10. `index.i64` holds the
index of the first event of every millisecond, from the millisecond of the first event to the one
after the last. `header.json` describes both and their source.
"""

import hashlib
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from operator import index as whole_number
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import OPEN_FILES, UNREADABLE, read_json, regular_file
from tespec.events.readers import Events

VERSION, FORMAT = 3, "tespec packed events"
HEADER, WORDS, INDEX = "header.json", "events.u32", "index.i64"
STORE = ".store"  # suffix of a store's folder, after the name of the file it was made from
AGAIN = "pack the recording again, or copy the store again"
MAPPED = OPEN_FILES // 2  # stores kept memory-mapped, with two open files each
LONGEST_HOURS = 8  # with an index of 0.2 GB; a longer recording has a damaged timestamp
LATEST = 10**17  # us since 1970: the year 5138; today's time in nanoseconds is a larger number
MILLISECOND = 1000  # us
BLOCK = 1 << 12  # events counted per block, whose histogram indices stay in the L1 cache
CLIP = 10  # largest count

X_BITS, Y_BITS = 11, 10
MAX_WIDTH, MAX_HEIGHT = 1 << X_BITS, 1 << Y_BITS
P_SHIFT = X_BITS + Y_BITS
US_SHIFT = P_SHIFT + 1
ON = np.uint32(1 << P_SHIFT)
# a rectified pixel outside of the sensor: a row that no region has
OUTSIDE = np.uint32(MAX_WIDTH << X_BITS)
NO_CELL = 1 << 31  # of a pixel outside of the histogram, which has fewer cells

Arrays = tuple[NDArray[np.uint32], NDArray[np.int64]]  # packed events and index
# rows and columns, see `tespec.events.histogram.Region.seen`
Seen = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass
class Facts:
    """What is known of a recording's events after reading them once."""

    height: int  # rows of the sensor in px
    width: int  # columns of the sensor in px
    count: int = 0  # events on the sensor
    t_first: int = 0  # us, of the first and the last event
    t_last: int = 0
    clamped: int = 0  # events whose time was mended, see `tespec.events.packing.in_order`
    dropped: int = 0  # events off the sensor, which are not in `count`


class PackedEvents:
    """An open recording: `height` and `width` of the sensor in px, `count` of events from `t_first` to `t_last` in us.

    `path` is the store or recording, for messages; `clamped` is the number of events whose time was
    mended, `dropped` of events off the sensor, which were left out; `facts` holds all of these
    numbers.
    """

    def __init__(self, path: Path, facts: Facts, arrays: Callable[[], Arrays]) -> None:
        self.path, self.facts, self._arrays = path, facts, arrays
        self.height, self.width, self.count = facts.height, facts.width, facts.count
        self.t_first, self.t_last = facts.t_first, facts.t_last
        self.clamped, self.dropped = facts.clamped, facts.dropped
        self._first_ms = facts.t_first // MILLISECOND
        # (height, width) rectified pixels, x | y << X_BITS, or `OUTSIDE`
        self._table: NDArray[np.uint32] | None = None
        # their histogram indices for the last `seen`
        self._cells: tuple[Seen, NDArray[np.uint32]] | None = None

    def rectified(self, pixels: NDArray[np.int16]) -> "PackedEvents":
        """Return the same events at other pixels, without those that leave the sensor.

        `pixels` (H, W, 2) holds the new x and y of each pixel, negative if outside of the sensor.
        The attributes still describe all events.
        """
        x, y = pixels[..., 0].astype(np.int64), pixels[..., 1].astype(np.int64)
        other = copy(self)
        other._cells = None
        other._table = np.where((x < 0) | (y < 0), OUTSIDE, x | y << X_BITS).astype(np.uint32)
        return other

    def slice(self, t0: int, t1: int) -> Events:
        """Return the events with t0 <= t < t1 (us)."""
        x, y, t, p = _unpack(*self._between(t0, t1))
        kept = slice(*np.searchsorted(t, (t0, t1)))
        events = Events(x[kept], y[kept], t[kept], p[kept])
        if self._table is None:
            return events
        pixels = self._table[events.y, events.x]
        x, y, inside = pixels & (MAX_WIDTH - 1), pixels >> X_BITS, pixels != OUTSIDE
        return Events(
            x[inside].astype(np.uint16),
            y[inside].astype(np.uint16),
            events.t[inside],
            events.p[inside],
        )

    def count_bins(self, times: NDArray[np.int64], seen: Seen, out: NDArray[np.uint8]) -> None:
        """Count the events between `times` (bins + 1,) in us into the histogram `out` (2 * bins, H, W).

        `seen` maps sensor coordinates to rows and columns of the histogram, see `Region.seen`.
        """
        words, borders, first_ms = self._between(int(times[0]), int(times[-1]))
        table, ends = self._table, _ends_of_bins(words, borders, first_ms, times)
        if table is None or max(len(seen[0]), len(seen[1])) > 1:
            _count_words(words, ends, table, *seen, out)
            return
        if (
            self._cells is None or self._cells[0] is not seen
        ):  # once for all windows with this `seen`
            row, column = seen[0][0].take(table >> X_BITS), seen[1][0].take(table & (MAX_WIDTH - 1))
            cells = np.where((row | column) < 0, NO_CELL, row * out.shape[-1] + column)
            self._cells = seen, cells.astype(np.uint32)
        _count_cells(words, ends, self._cells[1], np.empty(len(words), np.uint32), out)

    def _between(self, t0: int, t1: int) -> tuple[NDArray[np.uint32], NDArray[np.int64], int]:
        """Words of the milliseconds that cover t0 <= t < t1 (us), borders of each, and the first millisecond."""
        words, index = self._arrays()
        first = min(max(t0 // MILLISECOND - self._first_ms, 0), len(index) - 1)
        end = min(max(-(-t1 // MILLISECOND) - self._first_ms, first), len(index) - 1)
        words, borders = words[index[first] : index[end]], index[first : end + 1] - index[first]
        if not _sound(words, borders, self.height, self.width):
            raise UserError(
                self.path / WORDS, "damaged: events outside of the sensor or out of order", AGAIN
            )
        return words, borders, self._first_ms + first


def open_store(folder: Path) -> PackedEvents:
    """Open a packed store with memory-mapped files."""
    facts = _facts(header_of(folder))
    try:
        states = [(folder / name).stat() for name in (HEADER, WORDS, INDEX)]
        mapped = partial(_mapped, folder, *((each.st_size, each.st_mtime_ns) for each in states))
        words, index = mapped()
    except (FileNotFoundError, ValueError) as error:
        raise UserError(folder, f"{WORDS} or {INDEX} is missing or truncated", AGAIN) from error
    except OSError as error:
        remedy = "check its disk and permissions, or allow more open files (ulimit -n)"
        raise UserError(folder, f"cannot be opened ({error.strerror})", remedy) from error
    milliseconds = facts.t_last // MILLISECOND - facts.t_first // MILLISECOND + 1
    fits: Any = len(words) == facts.count and len(index) == milliseconds + 1
    ends = words[[0, -1]] >> US_SHIFT if fits else ()
    fits = fits and tuple(ends) == (facts.t_first % MILLISECOND, facts.t_last % MILLISECOND)
    fits = (
        fits
        and index[0] == 0 < index[1]
        and index[-2] < index[-1] == len(words)
        and (index[1:] >= index[:-1]).all()
    )
    if not fits:
        raise UserError(folder, f"{HEADER}, {WORDS} and {INDEX} do not match each other", AGAIN)
    return PackedEvents(folder, facts, mapped)


@lru_cache(maxsize=MAPPED)
def _mapped(folder: Path, *state: tuple[int, int]) -> Arrays:
    """Memory-map the files of a store, keyed by their state; files of stores unused for long are mapped again."""
    files = ((WORDS, "<u4"), (INDEX, "<i8"))
    words, index = (np.memmap(regular_file(folder / name), kind, mode="r") for name, kind in files)
    return np.asarray(words), np.asarray(index)


def header_of(folder: Path) -> dict[str, Any]:
    """Read and check the header of a packed store."""
    path = folder / HEADER
    try:
        header: dict[str, Any] = read_json(path)
        facts = _facts(header)
        fits = (
            0 < facts.height <= MAX_HEIGHT
            and 0 < facts.width <= MAX_WIDTH
            and header["version"] == VERSION
        )
        fits = fits and facts.count > 0 and facts.clamped >= 0 and facts.dropped >= 0
        fits = fits and -LATEST <= facts.t_first <= facts.t_last <= LATEST
        fits = fits and facts.t_last - facts.t_first < LONGEST_HOURS * 3600 * 10**6
        source = header["source"]
        fits = (
            fits
            and {"name", "sha256", "files"} <= source.keys()
            and isinstance(header["sha256"], dict)
        )
        fits = (
            fits
            and isinstance(source["files"], list)
            and all(isinstance(file, dict) for file in source["files"])
        )
    except (*UNREADABLE, KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise UserError(path, f"not a readable header of format version {VERSION}", AGAIN)
    return header


def _facts(header: dict[str, Any]) -> Facts:
    return Facts(*(whole_number(header[field.name]) for field in fields(Facts)))


def store_of(path: Path) -> Path:
    """Path of a recording's packed store: next to its file or inside its folder; a store returns its own path."""
    if (path / HEADER).is_file():
        return path
    return path / f"events{STORE}" if path.is_dir() else path.with_name(path.name + STORE)


def verify_store(folder: Path) -> None:
    """Compare the content of a packed store with the SHA-256 in its header."""
    words, index = open_store(folder)._arrays()
    for name, content in ((WORDS, words.data), (INDEX, index.data)):
        if hashlib.sha256(content).hexdigest() != header_of(folder)["sha256"].get(name):
            raise UserError(folder / name, "does not match its checksum", AGAIN)


@njit(cache=True, nogil=True)
def pack_words(x, y, t, p, count, next_ms, words):  # type: ignore[no-untyped-def]
    """Pack events in time order, inside `MAX_WIDTH` x `MAX_HEIGHT` px, after `count` other events of a recording.

    Their words fill the start of `words` uint32. Returns the index (M,) int64 of the first event of
    each millisecond from `next_ms` to that of the last event.
    """
    index = np.empty(t[-1] // MILLISECOND + 1 - next_ms, np.int64)
    for i in range(len(t)):  # a loop of its own is vectorised
        words[i] = x[i] | y[i] << np.uint32(X_BITS) | np.uint32(p[i]) << np.uint32(P_SHIFT)
    # of the current millisecond; of those in the index
    start, opened = (next_ms - 1) * MILLISECOND, 0
    for i in range(len(t)):
        while t[i] >= start + MILLISECOND:
            index[opened] = count + i
            start, opened = start + MILLISECOND, opened + 1
        words[i] |= np.uint32(t[i] - start) << np.uint32(US_SHIFT)
    return index


@njit(cache=True, nogil=True)
def _fields(word):  # type: ignore[no-untyped-def]
    """Column, row and polarity of a word as uint64: unsigned indices need no check for negative ones."""
    wide = np.uint64(word)
    x, y = wide & np.uint64(MAX_WIDTH - 1), (wide >> np.uint64(X_BITS)) & np.uint64(MAX_HEIGHT - 1)
    return x, y, (wide >> np.uint64(P_SHIFT)) & np.uint64(1)


@njit(cache=True, nogil=True)
def _unpack(words, borders, first_ms):  # type: ignore[no-untyped-def]
    """Unpack the words of complete milliseconds into x, y, t and p."""
    count = len(words)
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    for k in range(len(borders) - 1):
        for i in range(borders[k], borders[k + 1]):
            x[i], y[i], p[i] = _fields(words[i])
            t[i] = (first_ms + k) * MILLISECOND + (words[i] >> US_SHIFT)
    return x, y, t, p


@njit(cache=True, nogil=True)
def _sound(words, borders, height, width):  # type: ignore[no-untyped-def]
    """Whether all events are on the sensor, and the microseconds of each millisecond are sorted and below 1000."""
    wrong = np.uint32(0)
    for word in words:
        x, y = (
            word & np.uint32(MAX_WIDTH - 1),
            (word >> np.uint32(X_BITS)) & np.uint32(MAX_HEIGHT - 1),
        )
        wrong |= np.uint32(x >= np.uint32(width)) | np.uint32(y >= np.uint32(height))
    for k in range(len(borders) - 1):
        begin, end = borders[k], borders[k + 1]
        if begin < end:
            earlier, later = words[begin : end - 1], words[begin + 1 : end]
            for i in range(len(later)):
                wrong |= np.uint32(
                    (later[i] >> np.uint32(US_SHIFT)) < (earlier[i] >> np.uint32(US_SHIFT))
                )
            wrong |= np.uint32((words[end - 1] >> np.uint32(US_SHIFT)) >= np.uint32(MILLISECOND))
    return wrong == 0


@njit(cache=True, nogil=True)
def _ends_of_bins(words, borders, first_ms, times):  # type: ignore[no-untyped-def]
    """Index (bins + 1,) of the first event at or after each bin border, among the events of complete milliseconds."""
    ends = np.empty(len(times), np.int64)
    for k in range(len(times)):
        millisecond = min(max(times[k] // MILLISECOND - first_ms, 0), len(borders) - 1)
        low, high = borders[millisecond], borders[min(millisecond + 1, len(borders) - 1)]
        us = times[k] - (first_ms + millisecond) * MILLISECOND
        # The us are the highest bits of a word.
        ends[k] = low + np.searchsorted(
            words[low:high], np.uint64(max(us, 0)) << np.uint64(US_SHIFT)
        )
    return ends


@njit(cache=True, nogil=True)
def _count_words(words, ends, table, rows, columns, histogram):  # type: ignore[no-untyped-def]
    """Count valid words (N,) uint32 in bins whose borders are the word indices `ends` (bins + 1,).

    A word counts at the rows (K, 2049) and columns (L, 2049) of its pixel, moved by `table` if
    given; negative rows and columns drop it. The histogram (2 * bins, H, W) uint8 is overwritten.
    """
    bins, wide = len(ends) - 1, np.uint64(histogram.shape[2])
    area, counts = histogram.shape[1] * histogram.shape[2], histogram.reshape(-1)
    places, shown = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    again, moved = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    for k in range(bins):
        first, positive = np.uint64(k * area), np.uint64(bins * area)
        # Zero one bin at a time, so that its zeros are still in the cache when its events are
        # counted.
        counts[k * area : (k + 1) * area] = 0
        counts[(bins + k) * area : (bins + k + 1) * area] = 0
        for begin in range(ends[k], ends[k + 1], BLOCK):
            given = words[begin : min(begin + BLOCK, ends[k + 1])]
            if table is not None:
                given = _rectify(given, table, moved)
            # Indices first, counts after: neither loop has a branch to mispredict, and stores do
            # not stall them.
            kept = _place(given, rows[0], columns[0], first, positive, wide, places, shown)
            _add(counts, places, kept)
            for i in range(len(rows)):
                for j in range(len(columns)):
                    if i or j:
                        some = _place(
                            shown[:kept], rows[i], columns[j], first, positive, wide, places, again
                        )
                        _add(counts, places, some)


@njit(cache=True, nogil=True)
def _count_cells(words, ends, cells, moved, histogram):  # type: ignore[no-untyped-def]
    """Count words as `_count_words` does, at the `cells` (height, width) uint32 of their pixels; `NO_CELL` drops.

    `moved` (N,) uint32 is overwritten; an array from outside of the kernel is faster.
    """
    bins, area = len(ends) - 1, histogram.shape[1] * histogram.shape[2]
    counts = histogram.reshape(-1)
    for i in range(
        len(words)
    ):  # all before the first is counted: the cache cannot hold cells and histogram together
        x, y, on = _fields(words[i])
        moved[i] = cells[y, x] + np.uint32(on) * np.uint32(bins * area)
    for k in range(bins):
        counts[k * area : (k + 1) * area] = 0
        counts[(bins + k) * area : (bins + k + 1) * area] = 0
        for cell in moved[ends[k] : ends[k + 1]]:
            place = cell + np.uint32(k * area)
            if place < np.uint32(NO_CELL):
                counts[place] += np.uint8(counts[place] < np.uint8(CLIP))


@njit(cache=True, nogil=True)
def count_events(x, y, p, ends, histogram):  # type: ignore[no-untyped-def]
    """Count events as `_count_words` does, from columns (N,) of a sensor with the histogram's size."""
    bins, width = len(ends) - 1, np.uint32(histogram.shape[2])
    area, counts, places = (
        histogram.shape[1] * histogram.shape[2],
        histogram.reshape(-1),
        np.empty(BLOCK, np.uint32),
    )
    for k in range(bins):
        first, positive = np.uint32(k * area), np.uint32(bins * area)
        counts[k * area : (k + 1) * area] = 0
        counts[(bins + k) * area : (bins + k + 1) * area] = 0
        for begin in range(ends[k], ends[k + 1], BLOCK):
            some = slice(begin, min(begin + BLOCK, ends[k + 1]))
            xs, ys, ps = x[some], y[some], p[some]
            for i in range(len(xs)):
                places[i] = (
                    first
                    + np.uint32(ps[i]) * positive
                    + np.uint32(ys[i]) * width
                    + np.uint32(xs[i])
                )
            _add(counts, places, len(xs))


@njit(cache=True, nogil=True)
def _rectify(words, table, moved):  # type: ignore[no-untyped-def]
    """Write words, moved to their pixels in the table, into the array `moved`; drop those outside of the sensor."""
    kept = np.int64(0)
    for word in words:
        x, y, _ = _fields(word)
        pixel = table[y, x]
        moved[kept] = pixel | word & ON
        kept += np.int64(pixel != OUTSIDE)
    return moved[:kept]


@njit(cache=True, nogil=True)
def _place(words, rows, columns, first, positive, wide, places, shown):  # type: ignore[no-untyped-def]
    """Write visible words into `shown` and their histogram indices into `places`; return their number."""
    kept = np.int64(0)
    for i in range(len(words)):
        x, y, on = _fields(words[i])
        column, row = columns[x], rows[y]
        places[kept] = np.uint32(first + on * positive + np.uint64(row) * wide + np.uint64(column))
        shown[kept] = words[i]
        kept += np.int64((column | row) >= 0)
    return kept


@njit(cache=True, nogil=True)
def _add(counts, places, number):  # type: ignore[no-untyped-def]
    for i in range(number):  # adding a comparison avoids a branch
        counts[places[i]] += np.uint8(counts[places[i]] < np.uint8(CLIP))
