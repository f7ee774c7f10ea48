"""Packed events: 4 bytes each, lossless to the microsecond, in memory or in the memory-mapped files of a store.

A store is a folder of three files. `events.u32` holds one little-endian word an event: x in 11 bits, y in 10, polarity
in 1, the microsecond within its millisecond in 10. `index.i64` holds the index of the first event of every millisecond,
from the millisecond of the first event to the one after the last. `header.json` says what they are and where they came
from. Whatever is missing, truncated, damaged or of another version is a `UserError`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_json
from tespec.events.provenance import SourceHash
from tespec.events.spatial import Seen
from tespec.events.stream import Events, check_events

VERSION, FORMAT = 2, "tespec packed events"
HEADER, WORDS, INDEX = "header.json", "events.u32", "index.i64"
STORE = ".store"  # what the folder of a store adds to the name of the file it was made from
NUMBERS = ("height", "width", "count", "clamped", "first_ms")  # of a header
AGAIN = "pack the recording again"
MAPPED = 128  # stores whose files are mapped at once: two open files each
LONGEST_MS = 7 * 24 * 3600 * 1000  # a week, whose index is 4.8 GB; anything longer is a broken time
LATEST_MS = 1 << 52  # 140,000 years; in us it fits 64 bits
MILLISECOND = 1000  # us
FAST_US = 1 << 31  # an hour
BLOCK = 1 << 12  # words counted together, whose places stay in the first-level cache

X_BITS, Y_BITS = 11, 10
MAX_WIDTH, MAX_HEIGHT = 1 << X_BITS, 1 << Y_BITS
P_SHIFT = X_BITS + Y_BITS
US_SHIFT = P_SHIFT + 1
OUTSIDE = MAX_WIDTH << X_BITS  # in a table of rectified pixels: a row that no region has

Arrays = tuple[NDArray[np.uint32], NDArray[np.int64]]  # words and index


class PackedEvents:
    """An open recording.

    Attributes:
        path: of the store or the recording, for messages.
        height: rows of the sensor in px.
        width: columns of the sensor in px.
        count: number of events.
        t_first: time of the first event in us; 0 if there is none.
        t_last: time of the last event in us; 0 if there is none.
        clamped: number of events whose time stepped back and was raised to the latest time before it.
    """

    _table: NDArray[np.uint32] | None = None  # see `rectified`
    _cells: tuple[Seen, NDArray[np.int32]] | None = None  # where each of its pixels was last counted

    def __init__(
        self, path: Path, size: tuple[int, int], first_ms: int, clamped: int, arrays: Callable[[], Arrays]
    ) -> None:
        self.path, (self.height, self.width), self.clamped = path, size, clamped
        self._first_ms, self._arrays = first_ms, arrays
        words, index = arrays()
        self.count, last, self.t_first, self.t_last = len(words), len(index) - 2, 0, 0
        if self.count:
            self.t_first, self.t_last = int(self._read(0, 1).t[0]), int(self._read(last, last + 1).t[-1])

    def rectified(self, pixels: NDArray[np.int16]) -> PackedEvents:
        """The same events at other pixels; those that leave the sensor are left out.

        `count`, `t_first`, `t_last` and `clamped` stay those of all events.

        Args:
            pixels: (H, W, 2) x and y of each pixel, below 0 where it lies outside of the sensor.
        """
        x, y = pixels[..., 0].astype(np.int64), pixels[..., 1].astype(np.int64)
        other, x_y = copy(self), x | y << X_BITS
        other._cells = None
        other._table = np.where((x < 0) | (y < 0), OUTSIDE, x_y).astype(np.uint32)
        return other

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us)."""
        x, y, t, p = self._read(*self._milliseconds(t0, t1))
        begin, end = np.searchsorted(t, (t0, t1))
        return Events(x[begin:end], y[begin:end], t[begin:end], p[begin:end])

    def count_bins(self, times: NDArray[np.int64], seen: Seen, clip: int, out: NDArray[np.uint8]) -> None:
        """Count the events of a window.

        Args:
            times: (bins + 1,) borders of the bins in us, rising.
            seen: where the events are counted, see `Region.seen`.
            clip: largest count, at most 255.
            out: (2 * bins, H, W) of the region's size, negative polarity first; whatever it holds is replaced.
        """
        words, ends = self._bins(times)
        cells = None
        if self._table is not None and len(seen[0]) == len(seen[1]) == 1:
            if self._cells is None or self._cells[0] is not seen:
                self._cells = seen, _cells_of(self._table, *seen, out.shape[-1])
            cells = self._cells[1]
        elif self._table is not None:
            words, ends = _rectify(words, ends, self._table)
        _count_words(words, ends, cells, *seen, np.uint8(clip), out)

    def words_of_bins(self, times: NDArray[np.int64], seen: Seen) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Words (N,) of a window's events that `seen` does not drop, and (bins,) how many of them each bin has.

        Words of rectified events have the rectified pixel. See `count_bins` for arguments and errors.
        """
        words, ends = self._bins(times)
        if self._table is not None:
            words, ends = _rectify(words, ends, self._table)
        return _seen_words(words, ends, *seen)

    def _milliseconds(self, t0: int, t1: int) -> tuple[int, int]:
        """The milliseconds that hold t0 <= t < t1 (us), counted from the first of the recording."""
        last = len(self._arrays()[1]) - 1
        first = min(max(t0 // MILLISECOND - self._first_ms, 0), last)
        return first, min(max(-(-t1 // MILLISECOND) - self._first_ms, first), last)

    def _words_of(self, first: int, end: int) -> Arrays:
        """Words of these milliseconds, and where each of them begins and ends."""
        words, index = self._arrays()
        borders = index[first : end + 1]
        words, borders = words[borders[0] : borders[-1]], borders - borders[0]
        if not _sound(words, borders, self.height, self.width):
            raise UserError(self.path / WORDS, "damaged: events outside of the sensor or out of order", AGAIN)
        return words, borders

    def _bins(self, times: NDArray[np.int64]) -> Arrays:
        """Words of the milliseconds of a window, and (bins + 1,) index of the first one not before each border."""
        first, end = self._milliseconds(int(times[0]), int(times[-1]))
        words, borders = self._words_of(first, end)
        return words, _ends_of_bins(words, borders, self._first_ms + first, times)

    def _read(self, first: int, end: int) -> Events:
        """Events of the milliseconds `first` to `end`, counted from the first of the recording."""
        words, borders = self._words_of(first, end)
        if self._table is not None:
            words, borders = _rectify(words, borders, self._table)
        return Events(*_unpack(words, borders, self._first_ms + first))


class ArrayStream(PackedEvents):
    """Events of arrays, in memory.

    Args:
        x: (N,) columns in px.
        y: (N,) rows in px.
        t: (N,) times in us; a time that steps back is raised to the latest time before it.
        p: (N,) polarities, 0 or 1.
        height: rows of the sensor in px.
        width: columns of the sensor in px.

    Raises:
        ValueError: lengths differ, a coordinate lies outside of the sensor, a polarity is neither 0 nor 1, or sensor or
            duration are larger than a store takes.
    """

    def __init__(
        self,
        x: NDArray[np.integer],
        y: NDArray[np.integer],
        t: NDArray[np.integer],
        p: NDArray[np.integer],
        height: int,
        width: int,
    ) -> None:
        check_events(x, y, t, p, height, width)
        times = np.asarray(t, np.int64)
        ordered = np.maximum.accumulate(times) if len(times) else times
        first_ms, last_ms = ordered[[0, -1]] // MILLISECOND if len(times) else (0, -1)
        if height > MAX_HEIGHT or width > MAX_WIDTH or last_ms - first_ms > LONGEST_MS:
            raise ValueError(f"events of {last_ms - first_ms} ms on {width}x{height} px cannot be packed")
        index = np.searchsorted(ordered, MILLISECOND * np.arange(first_ms, last_ms + 2))
        words = pack_words(*map(np.ascontiguousarray, (x, y, ordered, p)))
        clamped = int((ordered != times).sum())
        super().__init__(Path("arrays"), (height, width), int(first_ms), clamped, lambda: (words, index))


def open_store(folder: Path) -> PackedEvents:
    """Open a packed store."""
    header, sizes = header_of(folder), {}
    for name in (WORDS, INDEX):
        if not (folder / name).is_file():
            raise UserError(folder / name, "no such file", AGAIN)
        sizes[name] = (folder / name).stat().st_size
    if sizes[WORDS] != 4 * header["count"]:
        what = f"has {sizes[WORDS]} bytes, not the {4 * header['count']} of {header['count']} events"
        raise UserError(folder / WORDS, what, AGAIN)
    if not 16 <= sizes[INDEX] <= 8 * (LONGEST_MS + 2) or sizes[INDEX] % 8:
        raise UserError(folder / INDEX, f"has {sizes[INDEX]} bytes, truncated or more than a week's", AGAIN)
    mapped = partial(_mapped, folder, (folder / HEADER).stat().st_mtime_ns)
    _, index = mapped()
    if (
        index[0]
        or index[1] < 1
        or index[-2] >= index[-1]
        or index[-1] != header["count"]
        or (index[1:] < index[:-1]).any()
    ):
        raise UserError(folder / INDEX, "does not fit the events", AGAIN)
    return PackedEvents(folder, (header["height"], header["width"]), header["first_ms"], header["clamped"], mapped)


@lru_cache(maxsize=MAPPED)
def _mapped(folder: Path, made_ns: int) -> Arrays:
    """Files of a store that was made at a time in ns, mapped again where they have not been used for long."""
    words, index = (np.memmap(folder / name, kind, mode="r") for name, kind in ((WORDS, "<u4"), (INDEX, "<i8")))
    return np.asarray(words), np.asarray(index)


def header_of(folder: Path) -> dict[str, Any]:
    """What the header of a packed store says."""
    path = folder / HEADER
    if not path.is_file():
        raise UserError(path, "no such file", AGAIN)
    try:
        header: dict[str, Any] = read_json(path)
        height, width, count, clamped, first_ms = (header[name] for name in NUMBERS)
        fits = 0 < height <= MAX_HEIGHT and 0 < width <= MAX_WIDTH and count > 0 <= clamped
        fits &= abs(first_ms) <= LATEST_MS and all(isinstance(header[name], int) for name in NUMBERS)
        if not isinstance(header["source"], dict | None) or not isinstance(header["sha256"], dict):
            raise TypeError("its source or its hashes")
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise UserError(path, "not a readable header", AGAIN) from error
    if header.get("version") != VERSION:
        raise UserError(path, f"format version {header.get('version')!r}, this harness reads {VERSION}", AGAIN)
    if not fits:
        raise UserError(path, "its numbers make no sense", AGAIN)
    return header


def store_of(path: Path) -> Path:
    """Where the packed store of a recording lies: beside its file, or in its folder; a store is its own."""
    if (path / HEADER).is_file():
        return path
    return path / f"events{STORE}" if path.is_dir() else path.with_name(path.name + STORE)


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a packed store that can be opened."""
    try:
        open_store(folder)
    except UserError:
        return False
    return True


def verify_store(folder: Path) -> None:
    """Read a packed store through and compare it with the SHA-256 in its header."""
    open_store(folder)
    header = header_of(folder)
    for name in (WORDS, INDEX):
        if SourceHash(folder / name).describe()["sha256"] != header["sha256"].get(name):
            raise UserError(folder / name, "is not what was written", AGAIN)


@njit(cache=True, nogil=True)
def pack_words(x, y, t, p):  # type: ignore[no-untyped-def]
    """Words (N,) uint32 of events in time order inside of `MAX_WIDTH` x `MAX_HEIGHT` px."""
    words = np.empty(len(t), np.uint32)
    if len(t) and t[-1] - t[0] < FAST_US:
        first = t[0] // MILLISECOND * MILLISECOND
        for i in range(len(t)):  # 32-bit divisions, several at once
            words[i] = np.uint32(t[i] - first) % np.uint32(MILLISECOND)
    else:
        for i in range(len(t)):
            words[i] = t[i] % MILLISECOND
    for i in range(len(t)):
        pixel = np.uint32(x[i]) | np.uint32(y[i]) << np.uint32(X_BITS) | np.uint32(p[i]) << np.uint32(P_SHIFT)
        words[i] = pixel | words[i] << np.uint32(US_SHIFT)
    return words


@njit(cache=True, nogil=True)
def _unpack(words, borders, first_ms):  # type: ignore[no-untyped-def]
    """Columns x, y, t and p of the words of whole milliseconds."""
    count = len(words)
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    for k in range(len(borders) - 1):
        for i in range(borders[k], borders[k + 1]):
            word = words[i]
            x[i], y[i] = word & (MAX_WIDTH - 1), (word >> X_BITS) & (MAX_HEIGHT - 1)
            p[i], t[i] = (word >> P_SHIFT) & 1, (first_ms + k) * MILLISECOND + (word >> US_SHIFT)
    return x, y, t, p


@njit(cache=True, nogil=True)
def _sound(words, borders, height, width):  # type: ignore[no-untyped-def]
    """Whether all words lie on the sensor, and microseconds rise within each millisecond and stay below its end."""
    wrong = np.uint32(0)
    for word in words:
        x, y = word & np.uint32(MAX_WIDTH - 1), (word >> np.uint32(X_BITS)) & np.uint32(MAX_HEIGHT - 1)
        wrong |= np.uint32(x >= np.uint32(width)) | np.uint32(y >= np.uint32(height))
    for k in range(len(borders) - 1):
        begin, end = borders[k], borders[k + 1]
        if begin < end:
            earlier, later = words[begin : end - 1], words[begin + 1 : end]
            for i in range(len(later)):
                wrong |= np.uint32((later[i] >> np.uint32(US_SHIFT)) < (earlier[i] >> np.uint32(US_SHIFT)))
            wrong |= np.uint32((words[end - 1] >> np.uint32(US_SHIFT)) >= np.uint32(MILLISECOND))
    return wrong == 0


@njit(cache=True, nogil=True)
def _ends_of_bins(words, borders, first_ms, times):  # type: ignore[no-untyped-def]
    """(bins + 1,) index of the first event of whole milliseconds that is not before each border of the bins."""
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
            if np.int64(words[middle] >> np.uint32(US_SHIFT)) < us:
                low = middle + 1
            else:
                high = middle
        ends[k] = low
    return ends


@njit(cache=True, nogil=True)
def _rectify(words, ends, table):  # type: ignore[no-untyped-def]
    """Sound words at their rectified pixels, without those that leave the sensor, and their new `ends`.

    `table` holds (height, width) uint32 the rectified pixel of each pixel, x | y << X_BITS, or `OUTSIDE`.
    """
    of_x, of_y = np.uint64(MAX_WIDTH - 1), np.uint64(MAX_HEIGHT - 1)
    moved, kept = np.empty(ends[-1] - ends[0], np.uint32), np.int64(0)
    new_ends = np.zeros_like(ends)
    for k in range(len(ends) - 1):
        for word in words[ends[k] : ends[k + 1]]:
            pixel = table[(np.uint64(word) >> np.uint64(X_BITS)) & of_y, np.uint64(word) & of_x]
            moved[kept] = ((word >> np.uint32(P_SHIFT)) << np.uint32(P_SHIFT)) | pixel
            kept += np.int64(pixel != OUTSIDE)
        new_ends[k + 1] = kept
    return moved[:kept], new_ends


@njit(cache=True, nogil=True)
def _cells_of(table, rows, columns, width):  # type: ignore[no-untyped-def]
    """(height, width) int32 cell of a plane at which each pixel is seen once it is rectified; below 0: at none."""
    cells = np.empty(table.shape, np.int32)
    for y in range(len(table)):
        for x in range(table.shape[1]):
            column, row = columns[0, table[y, x] & (MAX_WIDTH - 1)], rows[0, table[y, x] >> X_BITS]
            cells[y, x] = row * width + column if (row | column) >= 0 else -1
    return cells


@njit(cache=True, nogil=True)
def _count_words(words, ends, cells, rows, columns, clip, histogram):  # type: ignore[no-untyped-def]
    """Count sound words of each bin.

    Args:
        words: (N,) uint32.
        ends: (bins + 1,) where the words of each bin begin and end.
        cells: of `_cells_of`, in place of rows and columns; None: those.
        rows: (K, 2049) at which rows of the histogram each of the sensor's is seen; below 0: nowhere.
        columns: (L, 2049) likewise of columns.
        clip: uint8 largest count.
        histogram: (2 * bins, H, W) uint8, replaced.
    """
    bins, wide = len(ends) - 1, np.uint64(histogram.shape[2])
    area, counts = histogram.shape[1] * histogram.shape[2], histogram.reshape(-1)
    places, shown, again = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    for k in range(bins):
        first, positive = np.uint64(k * area), np.uint64(bins * area)
        # Bin by bin, so that the zeros still lie in a cache when events jump about in them.
        counts[k * area : (k + 1) * area] = 0
        counts[(bins + k) * area : (bins + k + 1) * area] = 0
        for begin in range(ends[k], ends[k + 1], BLOCK):
            given = words[begin : min(begin + BLOCK, ends[k + 1])]
            # Places first, counts after: neither loop has a branch to mispredict, and stores hold up nothing.
            if cells is not None:
                _add(counts, places, _place_by_cell(given, cells, first, positive, places), clip)
                continue
            kept = _place(given, rows[0], columns[0], first, positive, wide, places, shown)
            _add(counts, places, kept, clip)
            for i in range(len(rows)):
                for j in range(len(columns)):
                    if i or j:
                        some = _place(shown[:kept], rows[i], columns[j], first, positive, wide, places, again)
                        _add(counts, places, some, clip)


@njit(cache=True, nogil=True)
def _place(words, rows, columns, first, positive, wide, places, shown):  # type: ignore[no-untyped-def]
    """Number of words that are seen; their places go into `places`, they themselves into `shown`."""
    of_x, of_y = np.uint64(MAX_WIDTH - 1), np.uint64(MAX_HEIGHT - 1)
    kept = np.int64(0)
    for i in range(len(words)):
        word = np.uint64(words[i])
        column, row = columns[word & of_x], rows[(word >> np.uint64(X_BITS)) & of_y]
        polarity = (word >> np.uint64(P_SHIFT)) & np.uint64(1)
        places[kept] = np.uint32(first + polarity * positive + np.uint64(row) * wide + np.uint64(column))
        shown[kept] = words[i]
        kept += np.int64((column | row) >= 0)
    return kept


@njit(cache=True, nogil=True)
def _place_by_cell(words, cells, first, positive, places):  # type: ignore[no-untyped-def]
    """As `_place`, by one cell for each pixel of the sensor."""
    of_x, of_y = np.uint64(MAX_WIDTH - 1), np.uint64(MAX_HEIGHT - 1)
    kept = np.int64(0)
    for i in range(len(words)):
        word = np.uint64(words[i])
        cell = cells[(word >> np.uint64(X_BITS)) & of_y, word & of_x]
        places[kept] = np.uint32(first + ((word >> np.uint64(P_SHIFT)) & np.uint64(1)) * positive + np.uint64(cell))
        kept += np.int64(cell >= 0)
    return kept


@njit(cache=True, nogil=True)
def _add(counts, places, number, clip):  # type: ignore[no-untyped-def]
    for i in range(number):
        counts[places[i]] += np.uint8(counts[places[i]] < clip)


@njit(cache=True, nogil=True)
def _seen_words(words, ends, rows, columns):  # type: ignore[no-untyped-def]
    """Words of all bins that are seen somewhere, and (bins,) how many each bin has; see `_count_words`."""
    numbers, kept, zero = np.empty(len(ends) - 1, np.int64), np.int64(0), np.uint64(0)
    places, shown = np.empty(max(1, np.diff(ends).max()), np.uint32), np.empty(ends[-1] - ends[0], np.uint32)
    for k in range(len(numbers)):
        given = words[ends[k] : ends[k + 1]]
        numbers[k] = _place(given, rows[0], columns[0], zero, zero, zero, places, shown[kept:])
        kept += numbers[k]
    return shown[:kept], numbers
