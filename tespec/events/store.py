"""The packed store: 4 bytes an event, lossless to the microsecond, memory-mapped.

A folder of three files. `events.u32` holds one little-endian word an event: x in 11 bits, y in 10, polarity in 1, the
microsecond within its millisecond in 10. `index.i64` holds the index of the first event of every millisecond, from the
millisecond of the first event to the one after the last. `header.json` says what they are and where they came from.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.errors import UserError
from tespec.events.stream import Events, EventStream

VERSION = 1
HEADER, WORDS, INDEX = "header.json", "events.u32", "index.i64"
X_BITS, Y_BITS, P_BITS, US_BITS = 11, 10, 1, 10
Y_SHIFT, P_SHIFT, US_SHIFT = X_BITS, X_BITS + Y_BITS, X_BITS + Y_BITS + P_BITS
CHUNK_US = 1_000_000


def pack(stream: EventStream, folder: Path, source: Path | None = None) -> Path:
    """Write `stream` as a packed store, second by second, into a new folder that appears when it is whole.

    Args:
        stream: any recording.
        folder: where the store goes; must not exist.
        source: file the stream was read from, whose size and SHA-256 go into the header.

    Raises:
        UserError: the folder exists, or the sensor is larger than 2048x1024 px.
    """
    if folder.exists():
        raise UserError(folder, "exists already", "remove it or choose another folder")
    if stream.width > 1 << X_BITS or stream.height > 1 << Y_BITS:
        size = f"{stream.width}x{stream.height} px"
        raise UserError(folder, f"a sensor of {size} does not fit the packed store", "downsample it to 2048x1024 px")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        first_ms = stream.t_first // 1000
        counts = [np.zeros(1, np.int64)]
        with (temporary / WORDS).open("wb") as file:
            for begin in range(first_ms * 1000, stream.t_last + 1, CHUNK_US):
                events = stream.slice(begin, begin + CHUNK_US)
                encode(events).tofile(file)
                last = min(CHUNK_US // 1000, stream.t_last // 1000 - begin // 1000 + 1)
                counts.append(np.bincount((events.t - begin) // 1000, minlength=last))
        np.concatenate(counts).cumsum().astype("<i8").tofile(temporary / INDEX)
        header = {
            "format": "tespec packed events",
            "version": VERSION,
            "height": stream.height,
            "width": stream.width,
            "count": stream.count,
            "first_ms": first_ms,
            "clamped": stream.clamped,
            "source": _source(source),
        }
        (temporary / HEADER).write_text(json.dumps(header, indent=1))
        os.chmod(temporary, 0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def encode(events: Events) -> NDArray[np.uint32]:
    """(N,) packed words."""
    word = events.x.astype("<u4")
    word |= events.y.astype("<u4") << Y_SHIFT
    word |= events.p.astype("<u4") << P_SHIFT
    word |= (events.t % 1000).astype("<u4") << US_SHIFT
    return word


def _source(path: Path | None) -> dict[str, Any] | None:
    if path is None or not path.is_file():
        return None
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}


class StoreStream:
    """Events of a packed store, memory-mapped; see `EventStream`."""

    def __init__(self, words: NDArray[np.uint32], index: NDArray[np.int64], header: dict[str, Any]) -> None:
        self.height, self.width = header["height"], header["width"]
        self.count, self.clamped = header["count"], header["clamped"]
        self._words, self._index, self._first_ms = words, index, header["first_ms"]
        self.t_first, self.t_last = 0, 0
        if self.count:
            whole = self._first_ms * 1000, (self._first_ms + len(index) - 1) * 1000
            self.t_first, self.t_last = int(self._ms(whole[0]).t[0]), int(self._ms(whole[1] - 1).t[-1])

    def _ms(self, time: int) -> Events:
        ms = time // 1000 * 1000
        return self.slice(ms, ms + 1000)

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us)."""
        last = len(self._index) - 1
        first_bin = min(max(t0 // 1000 - self._first_ms, 0), last)
        end_bin = min(max(-(-t1 // 1000) - self._first_ms, first_bin), last)
        words = np.asarray(self._words[self._index[first_bin] : self._index[end_bin]])
        per_ms = np.diff(self._index[first_bin : end_bin + 1])
        ms = np.repeat(np.arange(first_bin, end_bin, dtype=np.int64) + self._first_ms, per_ms)
        t = ms * 1000 + (words >> US_SHIFT)
        begin, end = np.searchsorted(t, (t0, t1))
        words, t = words[begin:end], t[begin:end]
        x = (words & ((1 << X_BITS) - 1)).astype(np.uint16)
        y = (words >> Y_SHIFT & ((1 << Y_BITS) - 1)).astype(np.uint16)
        p = (words >> P_SHIFT & 1).astype(np.uint8)
        return Events(x, y, t, p)


def open_store(folder: Path) -> StoreStream:
    """Open a packed store.

    Raises:
        UserError: a file is missing, truncated, of another version, or does not fit the others.
    """
    header = _read_header(folder / HEADER)
    for name, item in ((WORDS, 4), (INDEX, 8)):
        path = folder / name
        if not path.is_file():
            raise UserError(path, "no such file", "pack the recording again")
        if path.stat().st_size % item:
            raise UserError(path, "truncated", "pack the recording again")
    index = np.fromfile(folder / INDEX, "<i8")
    if (folder / WORDS).stat().st_size != 4 * header["count"]:
        raise UserError(folder / WORDS, f"does not hold {header['count']} events", "pack the recording again")
    if not len(index) or index[0] != 0 or index[-1] != header["count"] or (np.diff(index) < 0).any():
        raise UserError(folder / INDEX, "does not fit the events", "pack the recording again")
    words = np.memmap(folder / WORDS, "<u4", mode="r") if header["count"] else np.empty(0, "<u4")
    return StoreStream(words, index, header)


def _read_header(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(path, "no such file", "pack the recording again")
    try:
        header: dict[str, Any] = json.loads(path.read_text())
        numbers = [header[name] for name in ("version", "height", "width", "count", "first_ms", "clamped")]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UserError(path, "not a readable header", "pack the recording again") from error
    if not all(isinstance(number, int) for number in numbers) or min(numbers[1:3]) < 1 or min(numbers[3:]) < 0:
        raise UserError(path, "its numbers make no sense", "pack the recording again")
    if header["version"] != VERSION:
        raise UserError(path, f"format version {header['version']}, this harness reads {VERSION}", "pack it again")
    return header
