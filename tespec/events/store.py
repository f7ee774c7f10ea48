"""The packed store: 4 bytes an event, lossless to the microsecond, memory-mapped.

A folder of three files. `events.u32` holds one little-endian word an event: x in 11 bits, y in 10, polarity in 1, the
microsecond within its millisecond in 10. `index.i64` holds the index of the first event of every millisecond, from the
millisecond of the first event to the one after the last. `header.json` says what they are and where they came from.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.errors import UserError
from tespec.events.packing import MAX_HEIGHT, MAX_WIDTH, pack_words, unpack_words
from tespec.events.provenance import describe
from tespec.events.stream import Events, EventStream

VERSION = 1
FORMAT = "tespec packed events"
HEADER, WORDS, INDEX = "header.json", "events.u32", "index.i64"
AGAIN = "pack the recording again"
CHUNK_MS = 100  # packed at a time
LONGEST_MS = 7 * 24 * 3600 * 1000  # a week, whose index is 4.8 GB; anything longer is a broken time
LATEST_MS = 1 << 52  # 140,000 years; in us it fits 64 bits


def pack(stream: EventStream, folder: Path, source: Path | None = None) -> Path:
    """Write `stream` as a packed store, a tenth of a second at a time, into a new folder that appears when it is whole.

    Args:
        stream: any recording.
        folder: where the store goes; must not exist.
        source: file or folder the stream was read from, whose size and SHA-256 go into the header.

    Returns:
        `folder`.

    Raises:
        UserError: the folder exists, the sensor is larger than 2048x1024 px, or the recording longer than a week.
    """
    if folder.exists():
        raise UserError(folder, "exists already", "remove it or choose another folder")
    if stream.width > MAX_WIDTH or stream.height > MAX_HEIGHT:
        size = f"{stream.width}x{stream.height} px"
        raise UserError(folder, f"a sensor of {size} does not fit the packed store", "give one of 2048x1024 px at most")
    if (stream.t_last - stream.t_first) // 1000 >= LONGEST_MS:
        days = (stream.t_last - stream.t_first) / 86_400e6
        raise UserError(folder, f"a recording of {days:.0f} days cannot be", "check the times of its events")
    origin = None if source is None else describe(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        count = _write_events(stream, temporary)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "height": stream.height,
            "width": stream.width,
            "count": count,
            "first_ms": stream.t_first // 1000,
            "clamped": stream.clamped,
            "source": origin,
        }
        (temporary / HEADER).write_text(json.dumps(header, indent=1) + "\n")
        os.chmod(temporary, 0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _write_events(stream: EventStream, folder: Path) -> int:
    first_ms, milliseconds = stream.t_first // 1000, stream.t_last // 1000 - stream.t_first // 1000 + 1
    written = 0
    with (folder / WORDS).open("wb") as words, (folder / INDEX).open("wb") as index:
        np.zeros(1, "<i8").tofile(index)
        for begin in range(0, milliseconds, CHUNK_MS):
            end = min(begin + CHUNK_MS, milliseconds)
            events = stream.slice((first_ms + begin) * 1000, (first_ms + end) * 1000)
            pack_words(*events).astype("<u4").tofile(words)
            ends = (first_ms + np.arange(begin + 1, end + 1)) * 1000
            (written + np.searchsorted(events.t, ends)).astype("<i8").tofile(index)
            written += len(events.t)
    return written


class StoreStream:
    """Events of a packed store, memory-mapped; see `EventStream`."""

    def __init__(
        self, folder: Path, words: NDArray[np.uint32], index: NDArray[np.int64], header: dict[str, Any]
    ) -> None:
        self.height, self.width = header["height"], header["width"]
        self.count, self.clamped = header["count"], header["clamped"]
        self._folder, self._words, self._index, self._first_ms = folder, words, index, header["first_ms"]
        self.t_first, self.t_last = 0, 0
        if self.count:
            last = len(index) - 2
            self.t_first, self.t_last = int(self._read(0, 1).t[0]), int(self._read(last, last + 1).t[-1])

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us).

        Raises:
            UserError: the words read are damaged.
        """
        last = len(self._index) - 1
        first = min(max(t0 // 1000 - self._first_ms, 0), last)
        events = self._read(first, min(max(-(-t1 // 1000) - self._first_ms, first), last))
        begin, end = np.searchsorted(events.t, (t0, t1))
        x, y, t, p = events
        return Events(x[begin:end], y[begin:end], t[begin:end], p[begin:end])

    def _read(self, first: int, end: int) -> Events:
        """Events of the milliseconds `first` to `end`, counted from the first of the recording."""
        borders = self._index[first : end + 1]
        words = self._words[borders[0] : borders[-1]]
        *events, whole = unpack_words(words, borders - borders[0], self._first_ms + first, self.height, self.width)
        if not whole:
            raise UserError(self._folder / WORDS, "damaged: events outside of the sensor or out of order", AGAIN)
        return Events(*events)


def open_store(folder: Path) -> StoreStream:
    """Open a packed store.

    Raises:
        UserError: a file is missing, truncated, of another version, or does not fit the others.
    """
    header = _read_header(folder / HEADER)
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
    index = np.asarray(np.memmap(folder / INDEX, "<i8", mode="r"))
    fits = index[0] == 0 and index[-1] == count and (index[1:] >= index[:-1]).all()
    if not fits or (count and not (index[1] > 0 and index[-2] < count)):
        raise UserError(folder / INDEX, "does not fit the events", AGAIN)
    words = np.asarray(np.memmap(folder / WORDS, "<u4", mode="r")) if count else np.empty(0, "<u4")
    return StoreStream(folder, words, index, header)


def _read_header(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(path, "no such file", AGAIN)
    try:
        header: dict[str, Any] = json.loads(path.read_text())
        version, first_ms = header["version"], header["first_ms"]
        numbers = [header[name] for name in ("height", "width", "count", "clamped")]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(path, "not a readable header", AGAIN) from error
    if version != VERSION:
        raise UserError(path, f"format version {version!r}, this harness reads {VERSION}", AGAIN)
    sizes_fit = all(isinstance(number, int) and number >= 0 for number in numbers)
    if not sizes_fit or not (0 < numbers[0] <= MAX_HEIGHT and 0 < numbers[1] <= MAX_WIDTH):
        raise UserError(path, "its numbers make no sense", AGAIN)
    if not isinstance(first_ms, int) or abs(first_ms) > LATEST_MS:
        raise UserError(path, f"its first millisecond is {first_ms!r}", AGAIN)
    return header
