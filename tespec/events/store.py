"""The packed store: 4 bytes an event, lossless to the microsecond, memory-mapped.

A folder of three files. `events.u32` holds one little-endian word an event: x in 11 bits, y in 10, polarity in 1, the
microsecond within its millisecond in 10. `index.i64` holds the index of the first event of every millisecond, from the
millisecond of the first event to the one after the last. `header.json` says what they are and where they came from.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_json
from tespec.events.histogram import count_words, find_words
from tespec.events.provenance import SourceHash
from tespec.events.stream import Events

VERSION = 2
FORMAT = "tespec packed events"
HEADER, WORDS, INDEX = "header.json", "events.u32", "index.i64"
STORE = ".store"  # what the folder of a store adds to the name of the file it was made from
AGAIN = "pack the recording again"
LONGEST_MS = 7 * 24 * 3600 * 1000  # a week, whose index is 4.8 GB; anything longer is a broken time
LATEST_MS = 1 << 52  # 140,000 years; in us it fits 64 bits


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
    """Read a packed store through and compare it with the SHA-256 in its header.

    Raises:
        UserError: it cannot be opened, or its files are not those that were written.
    """
    open_store(folder)
    header = header_of(folder)
    for name in (WORDS, INDEX):
        if SourceHash(folder / name).describe()["sha256"] != header["sha256"].get(name):
            raise UserError(folder / name, "is not what was written", AGAIN)


class PackedEvents:
    """Events of a packed store in `folder`, memory-mapped; see `EventStream`."""

    _moved: NDArray[np.uint32] | None = None  # see `rectified`

    def __init__(
        self, folder: Path, words: NDArray[np.uint32], index: NDArray[np.int64], header: dict[str, Any]
    ) -> None:
        self.height, self.width = header["height"], header["width"]
        self.count, self.clamped = header["count"], header["clamped"]
        self.folder, self._words, self._index, self._first_ms = folder, words, index, header["first_ms"]
        last = len(index) - 2
        self.t_first, self.t_last = int(self._read(0, 1).t[0]), int(self._read(last, last + 1).t[-1])

    def rectified(self, places: NDArray[np.int16]) -> PackedEvents:
        """The same events at other pixels; those that are moved off the sensor are left out.

        `count`, `t_first`, `t_last` and `clamped` stay those of all events.

        Args:
            places: (H, W, 2) x and y of each pixel, below 0 where it lies outside of the sensor.
        """
        column, row = places[..., 0].astype(np.int64), places[..., 1].astype(np.int64)
        table = np.full((MAX_HEIGHT, MAX_WIDTH), DAMAGED, np.uint32)
        moved = np.where((column < 0) | (row < 0), OUTSIDE, column | row << Y_SHIFT)
        table[: self.height, : self.width] = moved
        other = copy(self)
        other._moved = table.ravel()
        return other

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us).

        Raises:
            UserError: the words read are damaged.
        """
        events = self._read(*self._milliseconds(t0, t1))
        begin, end = np.searchsorted(events.t, (t0, t1))
        x, y, t, p = events
        return Events(x[begin:end], y[begin:end], t[begin:end], p[begin:end])

    def count_events(
        self,
        times: NDArray[np.int64],
        seen: tuple[NDArray[np.int32], NDArray[np.int32]],
        clip: int,
        out: NDArray[np.uint8],
        fresh: bool = False,
    ) -> None:
        """Count the events of a window on top of `out`, as `slice`, `Region.apply`, `count_events` and `apply_maps` do.

        Args:
            times: (bins + 1,) borders of the bins in us, rising.
            seen: where the events are counted, `Region.seen`.
            clip: largest count, at most 255.
            out: (2 * bins, H, W) uint8 of the region's size.
            fresh: whatever `out` holds is not counted on top of but replaced.

        Raises:
            UserError: the words read are damaged.
        """
        first, end = self._milliseconds(int(times[0]), int(times[-1]))
        words, borders = self._words_of(first, end)
        sizes = self._first_ms + first, times, self.height, self.width
        self._require(count_words(LAYOUT, words, borders, *sizes, *seen, np.uint8(clip), out, fresh))

    def words_of_bins(self, times: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Words (N,) of a window's events as they are stored, and (bins,) how many of them fall into each bin.

        Args:
            times: (bins + 1,) borders of the bins in us, rising.

        Raises:
            UserError: the words read are damaged.
        """
        first, end = self._milliseconds(int(times[0]), int(times[-1]))
        words, borders = self._words_of(first, end)
        ends, whole = find_words(LAYOUT, words, borders, self._first_ms + first, times, self.height, self.width)
        self._require(whole)
        return words[ends[0] : ends[-1]], np.diff(ends)

    def _milliseconds(self, t0: int, t1: int) -> tuple[int, int]:
        """The milliseconds that hold t0 <= t < t1 (us), counted from the first of the recording."""
        last = len(self._index) - 1
        first = min(max(t0 // 1000 - self._first_ms, 0), last)
        return first, min(max(-(-t1 // 1000) - self._first_ms, first), last)

    def _words_of(self, first: int, end: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Words of these milliseconds, and where each of them begins and ends."""
        borders = self._index[first : end + 1]
        words, borders = self._words[borders[0] : borders[-1]], borders - borders[0]
        if self._moved is not None:
            words, borders, whole = move_words(words, borders, self._moved)
            self._require(whole)
        return words, borders

    def _read(self, first: int, end: int) -> Events:
        """Events of the milliseconds `first` to `end`, counted from the first of the recording."""
        words, borders = self._words_of(first, end)
        *events, whole = unpack_words(words, borders, self._first_ms + first, self.height, self.width)
        self._require(whole)
        return Events(*events)

    def _require(self, whole: bool) -> None:
        if not whole:
            raise UserError(self.folder / WORDS, "damaged: events outside of the sensor or out of order", AGAIN)


def open_store(folder: Path) -> PackedEvents:
    """Open a packed store.

    Raises:
        UserError: a file is missing, truncated, of another version, or does not fit the others.
    """
    header = header_of(folder)
    count = header["count"]
    for name in (WORDS, INDEX):
        if not (folder / name).is_file():
            raise UserError(folder / name, "no such file", AGAIN)
    if (folder / WORDS).stat().st_size != 4 * count:
        size = (folder / WORDS).stat().st_size
        raise UserError(folder / WORDS, f"has {size} bytes, not the {4 * count} of {count} events", AGAIN)
    size = (folder / INDEX).stat().st_size
    if size < 16 or size % 8:
        raise UserError(folder / INDEX, f"truncated: {size} bytes", AGAIN)
    if size > 8 * (LONGEST_MS + 2):
        raise UserError(folder / INDEX, f"has {size} bytes, those of more than a week", AGAIN)
    index = np.asarray(np.memmap(folder / INDEX, "<i8", mode="r"))
    fits = index[0] == 0 and index[-1] == count and (index[1:] >= index[:-1]).all()
    if not (fits and index[1] > 0 and index[-2] < count):
        raise UserError(folder / INDEX, "does not fit the events", AGAIN)
    words = np.asarray(np.memmap(folder / WORDS, "<u4", mode="r"))
    return PackedEvents(folder, words, index, header)


def header_of(folder: Path) -> dict[str, Any]:
    """What the header of a packed store says.

    Raises:
        UserError: it is missing, of another version, or makes no sense.
    """
    path = folder / HEADER
    if not path.is_file():
        raise UserError(path, "no such file", AGAIN)
    try:
        header: dict[str, Any] = read_json(path)
        version, first_ms = header["version"], header["first_ms"]
        numbers = [header[name] for name in ("height", "width", "count", "clamped")]
        if not isinstance(header["source"], dict | None) or not isinstance(header["sha256"], dict):
            raise TypeError("its source or its hashes")
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise UserError(path, "not a readable header", AGAIN) from error
    if version != VERSION:
        raise UserError(path, f"format version {version!r}, this harness reads {VERSION}", AGAIN)
    sizes_fit = all(isinstance(number, int) and number >= 0 for number in numbers)
    if not sizes_fit or not (0 < numbers[0] <= MAX_HEIGHT and 0 < numbers[1] <= MAX_WIDTH and numbers[2]):
        raise UserError(path, "its numbers make no sense", AGAIN)
    if not isinstance(first_ms, int) or abs(first_ms) > LATEST_MS:
        raise UserError(path, f"its first millisecond is {first_ms!r}", AGAIN)
    return header


X_BITS, Y_BITS, P_BITS = 11, 10, 1
MAX_WIDTH, MAX_HEIGHT = 1 << X_BITS, 1 << Y_BITS
Y_SHIFT, P_SHIFT, US_SHIFT = X_BITS, X_BITS + Y_BITS, X_BITS + Y_BITS + P_BITS
OUTSIDE, DAMAGED = 1 << P_SHIFT, 1 << US_SHIFT  # in the table of `move_words`: leaves the sensor; never was on it


class Layout(NamedTuple):
    """Where the parts of a word lie, for kernels of other files: numba's cache notices changes of their own alone."""

    columns: int
    rows: int
    y_shift: int
    p_shift: int
    us_shift: int


LAYOUT = Layout(MAX_WIDTH, MAX_HEIGHT, Y_SHIFT, P_SHIFT, US_SHIFT)


@njit(cache=True, nogil=True)
def pack_words(x, y, t, p):  # type: ignore[no-untyped-def]
    """Words (N,) uint32 of events inside of `MAX_WIDTH` x `MAX_HEIGHT` px."""
    words = np.empty(len(t), np.uint32)
    for i in range(len(t)):
        words[i] = x[i] | (y[i] << Y_SHIFT) | (p[i] << P_SHIFT) | ((t[i] % 1000) << US_SHIFT)
    return words


@njit(cache=True, nogil=True)
def unpack_words(words, borders, first_ms, height, width):  # type: ignore[no-untyped-def]
    """Events of whole milliseconds.

    Args:
        words: (N,) uint32.
        borders: (M + 1,) indices into `words`, rising from 0 to N: where each of M milliseconds begins and ends.
        first_ms: the first millisecond.
        height: rows of the sensor.
        width: columns of the sensor.

    Returns:
        x, y, t, p, and whether the words are whole: inside of the sensor and in order of time.
    """
    count = len(words)
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    whole = True
    for k in range(len(borders) - 1):
        start, previous = (first_ms + k) * 1000, 0
        for i in range(borders[k], borders[k + 1]):
            word = words[i]
            column, row, us = word & (MAX_WIDTH - 1), (word >> Y_SHIFT) & (MAX_HEIGHT - 1), word >> US_SHIFT
            whole &= column < width and row < height and previous <= us < 1000
            x[i], y[i], p[i], t[i] = column, row, (word >> P_SHIFT) & 1, start + us
            previous = us
    return x, y, t, p, whole


@njit(cache=True, nogil=True)
def move_words(words, borders, table):  # type: ignore[no-untyped-def]
    """Words of whole milliseconds at other pixels.

    Args:
        words: (N,) uint32.
        borders: (M + 1,) indices into `words`: where each of M milliseconds begins and ends.
        table: (2^21,) uint32 coordinate bits for each value of a word's own, or `OUTSIDE` or `DAMAGED`.

    Returns:
        (K,) words that stay on the sensor, (M + 1,) their borders, and whether all words were on it.
    """
    moved, ends = np.empty(len(words), np.uint32), np.empty_like(borders)
    kept, seen = np.int64(0), np.uint32(0)
    ends[0] = 0
    for k in range(len(borders) - 1):
        for i in range(borders[k], borders[k + 1]):
            word = words[i]
            place = table[word & np.uint32((1 << P_SHIFT) - 1)]
            moved[kept] = (word & ~np.uint32((1 << P_SHIFT) - 1)) | place
            seen |= place
            kept += np.int64(place < np.uint32(OUTSIDE))
        ends[k + 1] = kept
    return moved[:kept], ends, seen < np.uint32(DAMAGED)
