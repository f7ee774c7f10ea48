"""Prophesee `.dat`: a text header, two bytes of type and size, then two 32-bit words an event."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.errors import UserError
from tespec.events.readers.header import read_header, resolve_size
from tespec.events.stream import ArrayStream, Events

TYPES = (0, 12)  # event types that hold x, y, polarity (prophesee-automotive-dataset-toolbox, dat_events_tools.py)
RECORD = np.dtype([("t", "<u4"), ("word", "<u4")])
SCAN = 1 << 22  # events checked at a time for time that steps back
X_BITS, Y_BITS = 14, 14


class DatStream:
    """Events of a `.dat` file, memory-mapped; see `EventStream`."""

    def __init__(self, records: NDArray[np.void], height: int, width: int) -> None:
        self.height, self.width, self.count, self.clamped = height, width, len(records), 0
        self._records = records
        self.t_first, self.t_last = (int(records["t"][0]), int(records["t"][-1])) if self.count else (0, 0)

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us)."""
        # np.searchsorted would first copy the times of the whole file, since they do not lie side by side.
        begin, end = (bisect_left(self._records["t"], limit) for limit in (t0, t1))
        return decode(self._records[begin:end])


def decode(records: NDArray[np.void]) -> Events:
    """Events of packed records: x in bits 0-13, y in bits 14-27, polarity in bit 28."""
    word = np.ascontiguousarray(records["word"])
    x = (word & ((1 << X_BITS) - 1)).astype(np.uint16)
    y = ((word >> X_BITS) & ((1 << Y_BITS) - 1)).astype(np.uint16)
    p = ((word >> (X_BITS + Y_BITS)) & 1).astype(np.uint8)
    return Events(x, y, records["t"].astype(np.int64), p)


def open_dat(path: Path, height: int | None = None, width: int | None = None) -> DatStream | ArrayStream:
    """Open a `.dat` recording; it is read into memory only where its time steps back, which is then mended.

    Raises:
        UserError: empty or truncated file, another event type, no sensor size, or events outside of the sensor.
    """
    header = read_header(path)
    size = resolve_size(path, header, height, width)
    body = path.stat().st_size - header.size - 2
    with path.open("rb") as file:
        file.seek(header.size)
        kind = file.read(2)
    if len(kind) < 2 or kind[0] not in TYPES or kind[1] != RECORD.itemsize:
        raise UserError(path, f"its event type is {list(kind)}, not 0 or 12 of 8 bytes", "give a CD events file")
    if body % RECORD.itemsize:
        raise UserError(path, f"truncated: {body % RECORD.itemsize} bytes after the last whole event", "copy it again")
    if not body:
        return DatStream(np.empty(0, RECORD), *size)
    records = np.memmap(path, RECORD, mode="r", offset=header.size + 2)
    sorted_times = _check(path, records, *size)
    return DatStream(records, *size) if sorted_times else ArrayStream(*decode(records), *size)


def _check(path: Path, records: NDArray[np.void], height: int, width: int) -> bool:
    """Whether times never step back; coordinates outside of the sensor are refused."""
    ordered, last = True, 0
    for begin in range(0, len(records), SCAN):
        part = records[begin : begin + SCAN]
        x, y, t, _ = decode(part)
        if int(x.max()) >= width or int(y.max()) >= height:
            found = f"{int(x.max()) + 1}x{int(y.max()) + 1}"
            raise UserError(path, f"has events outside of the {width}x{height} px sensor ({found})", "copy it again")
        ordered = ordered and int(t[0]) >= last and bool((np.diff(t) >= 0).all())
        last = int(t[-1])
    return ordered


def write_dat(
    path: Path,
    x: NDArray[np.integer],
    y: NDArray[np.integer],
    t: NDArray[np.integer],
    p: NDArray[np.integer],
    height: int,
    width: int,
) -> None:
    """Write events as a `.dat` file with its sensor size, atomically.

    Raises:
        ValueError: a time that does not fit 32 bits, or a coordinate outside of the sensor.
    """
    stream = ArrayStream(x, y, t, p, height, width)
    if stream.t_last >= 1 << 32 or stream.t_first < 0:
        raise ValueError(f"times {stream.t_first} to {stream.t_last} us do not fit 32 bits")
    events = stream.slice(stream.t_first, stream.t_last + 1)
    records = np.empty(stream.count, RECORD)
    records["t"] = events.t
    records["word"] = (
        events.x.astype(np.uint32)
        | (events.y.astype(np.uint32) << X_BITS)
        | (events.p.astype(np.uint32) << (X_BITS + Y_BITS))
    )
    text = f"% Data file containing CD events.\n% Version 2\n% Height {height}\n% Width {width}\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode() + bytes((12, RECORD.itemsize)))
            records.tofile(file)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
