"""Packed events: 4 bytes each, lossless to the microsecond, in memory or in memory-mapped files.

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
from operator import index as as_integer
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import OPEN_FILES, UNREADABLE, read_json, regular_file
from tespec.events.readers import Events

VERSION = 3
FORMAT = "tespec packed events"
HEADER, WORDS, INDEX = "header.json", "events.u32", "index.i64"
STORE = ".store"  # suffix of a store's folder, after the name of the file it was made from
PACK_AGAIN = "pack the recording again, or copy the store again"
LONGEST_HOURS = 8  # with an index of 0.2 GB; a longer recording has a damaged timestamp
LATEST = 10**17  # us since 1970: the year 5138; today's time in nanoseconds is a larger number
MILLISECOND = 1000  # us
CACHE_BLOCK = 1 << 12  # events counted per block; the indices of their cells stay in the L1 cache
MAX_COUNT = 10  # largest count

X_BITS, Y_BITS = 11, 10
MAX_WIDTH, MAX_HEIGHT = (1 << X_BITS) - 1, 1 << Y_BITS
P_SHIFT = X_BITS + Y_BITS
US_SHIFT = P_SHIFT + 1
ON = np.uint32(1 << P_SHIFT)
OUTSIDE = np.uint32(MAX_WIDTH)  # a rectified pixel outside of the sensor: a column of no sensor

Arrays = tuple[NDArray[np.uint32], NDArray[np.int64]]  # packed events and index
# rows (K, 2048) and columns (L, 2048), see `tespec.events.histogram.Region.cell_maps`
CellMaps = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass
class Facts:
    """Summary of a recording's events, complete after reading them once."""

    height: int  # rows of the sensor in px
    width: int  # columns of the sensor in px
    count: int = 0  # events on the sensor
    t_first: int = 0  # us, of the first and the last event
    t_last: int = 0
    clamped: int = 0  # events with a corrected time, see `tespec.events.packing.in_order`
    dropped: int = 0  # events off the sensor, which are not in `count`


class PackedEvents:
    """An open recording.

    Attributes:
        path: the store or recording, for messages.
        height: rows of the sensor in px.
        width: columns of the sensor in px.
        count: number of events.
        t_first: time of the first event in us.
        t_last: time of the last event in us.
        clamped: number of events with a corrected time.
        dropped: number of events off the sensor, which were left out.
        facts: all of these numbers.
    """

    def __init__(self, path: Path, facts: Facts, arrays: Callable[[], Arrays]) -> None:
        self.path = path
        self.facts = facts
        self.height, self.width = facts.height, facts.width
        self.count = facts.count
        self.t_first, self.t_last = facts.t_first, facts.t_last
        self.clamped, self.dropped = facts.clamped, facts.dropped
        self._arrays = arrays
        self._first_ms = facts.t_first // MILLISECOND
        # (height, width) rectified x | y << X_BITS of each pixel, or `OUTSIDE`; None: not rectified
        self._new_pixels: NDArray[np.uint32] | None = None

    def rectified(self, pixels: NDArray[np.int16]) -> "PackedEvents":
        """Return the same events at other pixels, without those that leave the sensor.

        `pixels` (H, W, 2) holds the new x and y of each pixel, negative if outside of the sensor.
        The attributes still describe all events.
        """
        x, y = pixels[..., 0].astype(np.int64), pixels[..., 1].astype(np.int64)
        rectified = copy(self)
        is_outside = (x < 0) | (y < 0)
        rectified._new_pixels = np.where(is_outside, OUTSIDE, x | y << X_BITS).astype(np.uint32)
        return rectified

    def slice(self, t0: int, t1: int) -> Events:
        """Read the events of a time interval.

        Args:
            t0: start in us, inclusive.
            t1: end in us, exclusive.

        Returns:
            x and y (N,) uint16 in px, t (N,) int64 in us, p (N,) uint8 in {0, 1}.
        """
        return self._rectify(self._slice(t0, t1))

    def latest(self, end: int, count: int) -> Events:
        """Read the last `count` events before the time `end` in us, fewer if there are not so many.

        Events that rectification removes count as well. Returns the others as `slice` does.
        """
        index = self._arrays()[1]
        last = min(max(end // MILLISECOND - self._first_ms, 0), len(index) - 1)
        # the millisecond that holds the first of the events before the one of `end`
        first = max(0, int(np.searchsorted(index, index[last] - count, side="right")) - 1)
        x, y, t, p = self._slice((self._first_ms + first) * MILLISECOND, end)
        return self._rectify(Events(x[-count:], y[-count:], t[-count:], p[-count:]))

    def _slice(self, t0: int, t1: int) -> Events:
        x, y, t, p = _unpack(*self._words_between(t0, t1))  # of complete milliseconds
        begin, end = np.searchsorted(t, (t0, t1))
        return Events(x[begin:end], y[begin:end], t[begin:end], p[begin:end])

    def _rectify(self, events: Events) -> Events:
        if self._new_pixels is None:
            return events
        pixels = self._new_pixels[events.y, events.x]
        visible = pixels != OUTSIDE
        moved = pixels[visible]
        return Events(
            (moved & MAX_WIDTH).astype(np.uint16),
            (moved >> X_BITS).astype(np.uint16),
            events.t[visible],
            events.p[visible],
        )

    def count_bins(self, times: NDArray[np.int64], maps: CellMaps, out: NDArray[np.uint8]) -> None:
        """Count events into a histogram.

        Args:
            times: (bins + 1,) borders of the time bins in us.
            maps: rows and columns of the histogram for sensor coordinates, see `Region.cell_maps`.
            out: (2*bins, H, W) histogram, overwritten.
        """
        words, offsets, first_ms = self._words_between(int(times[0]), int(times[-1]))
        ends = _ends_of_bins(words, offsets, first_ms, times)
        if self._new_pixels is not None:
            words = _rectify_words(words, self._new_pixels)
        _count_words(words, ends, *maps, out)

    def _words_between(self, t0: int, t1: int) -> tuple[NDArray[np.uint32], NDArray[np.int64], int]:
        """Return the words of the M milliseconds that cover t0 <= t < t1 (us).

        Returns:
            The words (N,), of which the first and the last millisecond may hold some outside of the
            interval; the index (M + 1,) of the first word of each millisecond, and N; and the
            number of the first millisecond.

        Raises:
            UserError: the words are damaged.
        """
        words, index = self._arrays()
        first = min(max(t0 // MILLISECOND - self._first_ms, 0), len(index) - 1)
        end = min(max(-(-t1 // MILLISECOND) - self._first_ms, first), len(index) - 1)
        words = words[index[first] : index[end]]
        offsets = index[first : end + 1] - index[first]
        if not _is_sound(words, offsets, self.height, self.width):
            raise UserError(
                self.path / WORDS,
                "damaged: events outside of the sensor or out of order",
                PACK_AGAIN,
            )
        return words, offsets, self._first_ms + first


def open_store(folder: Path) -> PackedEvents:
    """Open a packed store with memory-mapped files."""
    facts = _facts(header_of(folder))
    try:
        files = [(folder / name).stat() for name in (HEADER, WORDS, INDEX)]
        mapped = partial(_mapped, folder, *((file.st_size, file.st_mtime_ns) for file in files))
        words, index = mapped()
    except (FileNotFoundError, ValueError) as error:
        raise UserError(
            folder, f"{WORDS} or {INDEX} is missing or truncated", PACK_AGAIN
        ) from error
    except OSError as error:
        raise UserError(
            folder,
            f"cannot be opened ({error.strerror})",
            "check its disk and permissions, or allow more open files (ulimit -n)",
        ) from error
    milliseconds = facts.t_last // MILLISECOND - facts.t_first // MILLISECOND + 1
    matches = (
        len(words) == facts.count
        and len(index) == milliseconds + 1
        and words[0] >> US_SHIFT == facts.t_first % MILLISECOND
        and words[-1] >> US_SHIFT == facts.t_last % MILLISECOND
        and index[0] == 0 < index[1]
        and index[-2] < index[-1] == len(words)
        and (index[1:] >= index[:-1]).all()
    )
    if not matches:
        raise UserError(
            folder, f"{HEADER}, {WORDS} and {INDEX} do not match each other", PACK_AGAIN
        )
    return PackedEvents(folder, facts, mapped)


@lru_cache(maxsize=OPEN_FILES // 2)  # a store has two files
def _mapped(folder: Path, *states: tuple[int, int]) -> Arrays:
    """Memory-map the files of a store; `states`, their sizes and times, are only a key."""
    words = np.memmap(regular_file(folder / WORDS), "<u4", mode="r")
    index = np.memmap(regular_file(folder / INDEX), "<i8", mode="r")
    return np.asarray(words), np.asarray(index)


def header_of(folder: Path) -> dict[str, Any]:
    """Read and check the header of a packed store."""
    path = folder / HEADER
    try:
        header: dict[str, Any] = read_json(path)
        facts = _facts(header)
        source = header["source"]
        is_valid = (
            header["version"] == VERSION
            and 0 < facts.height <= MAX_HEIGHT
            and 0 < facts.width <= MAX_WIDTH
            and facts.count > 0
            and min(facts.clamped, facts.dropped) >= 0
            and -LATEST <= facts.t_first <= facts.t_last <= LATEST
            and facts.t_last - facts.t_first < LONGEST_HOURS * 3600 * 10**6
            and isinstance(header["sha256"], dict)
            and {"name", "sha256"} <= source.keys()
            and isinstance(source["files"], list)
            and all(isinstance(file, dict) for file in source["files"])
        )
    except (*UNREADABLE, KeyError, TypeError, AttributeError):
        is_valid = False
    if not is_valid:
        raise UserError(path, f"not a readable header of format version {VERSION}", PACK_AGAIN)
    return header


def _facts(header: dict[str, Any]) -> Facts:
    return Facts(*(as_integer(header[field.name]) for field in fields(Facts)))


def store_of(path: Path) -> Path:
    """Return the path of a recording's packed store, next to the file or inside the folder.

    A store returns its own path.
    """
    if (path / HEADER).is_file():
        return path
    return path / f"events{STORE}" if path.is_dir() else path.with_name(path.name + STORE)


def verify_store(folder: Path) -> None:
    """Compare the content of a packed store with the SHA-256 in its header."""
    words, index = open_store(folder)._arrays()
    for name, content in ((WORDS, words.data), (INDEX, index.data)):
        if hashlib.sha256(content).hexdigest() != header_of(folder)["sha256"].get(name):
            raise UserError(folder / name, "does not match its checksum", PACK_AGAIN)


@njit(cache=True, nogil=True)
def pack_words(x, y, t, p, count, next_ms, words):  # type: ignore[no-untyped-def]
    """Pack events in time order, inside `MAX_WIDTH` x `MAX_HEIGHT` px.

    Args:
        x: (N,) columns in px.
        y: (N,) rows in px.
        t: (N,) times in us.
        p: (N,) polarities, 0 or 1.
        count: number of earlier events of the recording.
        next_ms: first millisecond without an entry in the recording's index.
        words: uint32, at least N; its start is overwritten.

    Returns:
        (M,) int64 index of the first event of each millisecond from `next_ms` to that of the last
        event.
    """
    index = np.empty(t[-1] // MILLISECOND + 1 - next_ms, np.int64)
    for i in range(len(t)):  # a separate loop, which is vectorised
        words[i] = x[i] | y[i] << np.uint32(X_BITS) | np.uint32(p[i]) << np.uint32(P_SHIFT)
    start = (next_ms - 1) * MILLISECOND  # of the current millisecond, in us
    started = 0  # milliseconds with an entry in the index
    for i in range(len(t)):
        while t[i] >= start + MILLISECOND:
            index[started] = count + i
            start += MILLISECOND
            started += 1
        words[i] |= np.uint32(t[i] - start) << np.uint32(US_SHIFT)
    return index


@njit(cache=True, nogil=True)
def _fields(word):  # type: ignore[no-untyped-def]
    """Return column, row and polarity as uint64: unsigned indices need no check for sign."""
    wide = np.uint64(word)
    x = wide & np.uint64(MAX_WIDTH)
    y = (wide >> np.uint64(X_BITS)) & np.uint64(MAX_HEIGHT - 1)
    return x, y, (wide >> np.uint64(P_SHIFT)) & np.uint64(1)


@njit(cache=True, nogil=True)
def _unpack(words, offsets, first_ms):  # type: ignore[no-untyped-def]
    """Unpack the words of complete milliseconds into x, y, t and p."""
    count = len(words)
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    for k in range(len(offsets) - 1):
        for i in range(offsets[k], offsets[k + 1]):
            x[i], y[i], p[i] = _fields(words[i])
            t[i] = (first_ms + k) * MILLISECOND + (words[i] >> US_SHIFT)
    return x, y, t, p


@njit(cache=True, nogil=True)
def _is_sound(words, offsets, height, width):  # type: ignore[no-untyped-def]
    """Whether all events are on the sensor, with sorted microseconds below 1000."""
    columns, rows = np.uint32(width), np.uint32(height)
    wrong = np.uint32(0)
    for k in range(len(offsets) - 1):
        latest = np.uint32(0)  # us
        block = words[offsets[k] : offsets[k + 1]]
        for i in range(len(block)):  # 32-bit numbers by an index: this loop is vectorised
            x = block[i] & np.uint32(MAX_WIDTH)
            y = (block[i] >> np.uint32(X_BITS)) & np.uint32(MAX_HEIGHT - 1)
            us = block[i] >> np.uint32(US_SHIFT)
            wrong |= np.uint32(x >= columns) | np.uint32(y >= rows) | np.uint32(us < latest)
            latest = us
        wrong |= np.uint32(latest >= np.uint32(MILLISECOND))
    return wrong == 0


@njit(cache=True, nogil=True)
def _ends_of_bins(words, offsets, first_ms, times):  # type: ignore[no-untyped-def]
    """Index (bins + 1,) of the first word at or after each bin border."""
    ends = np.empty(len(times), np.int64)
    for k in range(len(times)):
        millisecond = min(max(times[k] // MILLISECOND - first_ms, 0), len(offsets) - 1)
        low = offsets[millisecond]
        high = offsets[min(millisecond + 1, len(offsets) - 1)]
        us = max(times[k] - (first_ms + millisecond) * MILLISECOND, 0)
        # The us are the highest bits of a word.
        ends[k] = low + np.searchsorted(words[low:high], np.uint64(us) << np.uint64(US_SHIFT))
    return ends


@njit(cache=True, nogil=True)
def _count_words(words, ends, rows, columns, histogram):  # type: ignore[no-untyped-def]
    """Count sound words (N,) uint32 in bins whose borders are the indices `ends` (bins + 1,).

    A word counts at the rows (K, 2048) and columns (L, 2048) of its pixel; negative rows and
    columns drop it. The histogram (2*bins, H, W) uint8 is overwritten.
    """
    bins, height, width = len(ends) - 1, histogram.shape[1], histogram.shape[2]
    counts = histogram.reshape(-1)
    positive, stride = np.uint64(bins * height * width), np.uint64(width)
    cells = np.empty(CACHE_BLOCK, np.uint32)
    visible, unused = np.empty(CACHE_BLOCK, np.uint32), np.empty(CACHE_BLOCK, np.uint32)
    for k in range(bins):
        _clear(histogram, k)
        first = np.uint64(k * height * width)
        for begin in range(ends[k], ends[k + 1], CACHE_BLOCK):
            block = words[begin : min(begin + CACHE_BLOCK, ends[k + 1])]
            count = _locate(block, rows[0], columns[0], first, positive, stride, cells, visible)
            _add(counts, cells, count)
            # A word is at the other rows and columns only if it is at the first.
            for i in range(len(rows)):
                for j in range(len(columns)):
                    if i or j:
                        again = visible[:count]
                        more = _locate(
                            again, rows[i], columns[j], first, positive, stride, cells, unused
                        )
                        _add(counts, cells, more)


@njit(cache=True, nogil=True)
def count_events(x, y, p, ends, histogram):  # type: ignore[no-untyped-def]
    """Count events of a sensor that has the size of the histogram.

    Args:
        x: (N,) uint16 columns in px.
        y: (N,) uint16 rows in px.
        p: (N,) uint8 polarities, 0 or 1.
        ends: (bins + 1,) indices of the first event at or after each bin border.
        histogram: (2*bins, H, W) uint8, overwritten.
    """
    bins = len(ends) - 1
    area = histogram.shape[1] * histogram.shape[2]
    width = np.uint32(histogram.shape[2])
    counts = histogram.reshape(-1)
    cells = np.empty(CACHE_BLOCK, np.uint32)
    for k in range(bins):
        first, positive = np.uint32(k * area), np.uint32(bins * area)
        _clear(histogram, k)
        for begin in range(ends[k], ends[k + 1], CACHE_BLOCK):
            # Slices from zero: their loop is vectorised.
            block = slice(begin, min(begin + CACHE_BLOCK, ends[k + 1]))
            xs = x[block]
            ys = y[block]
            ps = p[block]
            for i in range(len(xs)):
                pixel = np.uint32(ys[i]) * width + np.uint32(xs[i])
                cells[i] = first + np.uint32(ps[i]) * positive + pixel
            _add(counts, cells, len(xs))


@njit(cache=True, nogil=True)
def _clear(histogram, k):  # type: ignore[no-untyped-def]
    """Zero one bin, so that its zeros are still in the cache when its events are counted."""
    planes = histogram.reshape(len(histogram), -1)
    planes[k] = 0
    planes[len(planes) // 2 + k] = 0


@njit(cache=True, nogil=True)
def _rectify_words(words, new_pixels):  # type: ignore[no-untyped-def]
    """Return words (N,) at their new pixels, see `PackedEvents.rectified`, without their times."""
    moved = np.empty(len(words), np.uint32)
    for i in range(len(words)):
        x, y, _ = _fields(words[i])
        moved[i] = new_pixels[y, x] | words[i] & ON
    return moved


@njit(cache=True, nogil=True)
def _locate(words, rows, columns, first, positive, stride, cells, out):  # type: ignore[no-untyped-def]
    """Write the visible words into `out`, and the indices of their counts into `cells`.

    The counts are increased in another loop: neither has a branch to mispredict, and stores do not
    stall them. The count of a word is at `first`, of its bin's negative events, plus `positive` for
    positive ones, plus its column, plus `stride` for each row. Returns the number of visible words.
    """
    count = np.int64(0)
    for i in range(len(words)):
        x, y, on = _fields(words[i])
        column = columns[x]
        row = rows[y]
        cells[count] = np.uint32(
            first + on * positive + np.uint64(row) * stride + np.uint64(column)
        )
        out[count] = words[i]
        count += np.int64((column | row) >= 0)  # the next word overwrites one that is not visible
    return count


@njit(cache=True, nogil=True)
def _add(counts, cells, number):  # type: ignore[no-untyped-def]
    for i in range(number):  # adding a comparison avoids a branch
        counts[cells[i]] += np.uint8(counts[cells[i]] < np.uint8(MAX_COUNT))
