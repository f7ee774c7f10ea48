"""Prophesee `.dat`: a text header, two bytes of type and size, then two 32-bit words an event.

Times are in us, in 32 bits; in recordings that are longer than these bits reach, they begin again from 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import whole_file
from tespec.events.readers.header import read_header, sensor_size
from tespec.events.readers.records import Records
from tespec.events.readers.sensor import resolve_size
from tespec.events.scans import Scan, scan_once
from tespec.events.stream import ArrayStream, Events
from tespec.events.time_order import TimeOrder, scan_times

TYPES = (0, 12)  # event types that hold x, y, polarity (prophesee-automotive-dataset-toolbox, dat_events_tools.py)
RECORD = np.dtype([("t", "<u4"), ("word", "<u4")])
PERIOD = 1 << 32  # us, 71.6 minutes, after which the times begin again from 0
X_BITS, Y_BITS = 14, 14
AT_ONCE = 1 << 20  # events looked at at a time


class DatStream:
    """Events of a `.dat` file, read as they are asked for; see `EventStream`."""

    def __init__(self, records: Records, height: int, width: int, scan: Scan) -> None:
        self.height, self.width, self.count = height, width, len(records)
        self._words, self._order = records.field("word"), TimeOrder(records.field("t"), scan, PERIOD)
        self.t_first, self.t_last, self.clamped = self._order.first, self._order.last, self._order.clamped

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us)."""
        begin, end = self._order.search(t0), self._order.search(t1)
        word = np.ascontiguousarray(self._words[begin:end])
        x = (word & ((1 << X_BITS) - 1)).astype(np.uint16)
        y = ((word >> X_BITS) & ((1 << Y_BITS) - 1)).astype(np.uint16)
        p = ((word >> (X_BITS + Y_BITS)) & 1).astype(np.uint8)
        return Events(x, y, self._order.read(begin, end), p)


def open_dat(path: Path, height: int | None = None, width: int | None = None) -> DatStream:
    """Open a `.dat` recording; it is read through when it is opened for the first time, and stays on disk.

    Args:
        path: the file.
        height: rows of the sensor in px, where the header does not name them.
        width: columns, likewise.

    Raises:
        UserError: empty or truncated file, another event type, no sensor size or one that contradicts
            the header, or events outside of the sensor.
    """
    header = read_header(path)
    rows, columns = resolve_size(path, height, width, sensor_size(header))
    with path.open("rb") as file:
        file.seek(header.size)
        kind = file.read(2)
    if len(kind) < 2 or kind[0] not in TYPES or kind[1] != RECORD.itemsize:
        found = "missing" if len(kind) < 2 else f"{kind[0]} of {kind[1]} bytes"
        raise UserError(path, f"its event type is {found}, not 0 or 12 of 8 bytes", "give a file of CD events")
    body = path.stat().st_size - header.size - len(kind)
    if body % RECORD.itemsize:
        raise UserError(path, f"truncated: {body % RECORD.itemsize} bytes after the last whole event", "copy it again")
    if not body:
        raise UserError(path, "holds no events", "give a recording with events")
    records = Records(path, RECORD, header.size + len(kind), body // RECORD.itemsize)
    scan = scan_once(path, lambda: _scan(records))
    if scan.columns > columns or scan.rows > rows:
        found = f"{scan.columns}x{scan.rows}"
        raise UserError(
            path, f"has events on {found} px, its sensor is {columns}x{rows} px", "copy it again, or give its true size"
        )
    return DatStream(records, rows, columns, scan)


def _scan(records: Records) -> Scan:
    columns = rows = 0
    for begin in range(0, len(records), AT_ONCE):
        found = _extent(np.ascontiguousarray(records.field("word")[begin : begin + AT_ONCE]))
        columns, rows = max(columns, found[0]), max(rows, found[1])
    return scan_times(records.field("t"), PERIOD)._replace(columns=columns, rows=rows)


@njit(cache=True, nogil=True)
def _extent(words):  # type: ignore[no-untyped-def]
    columns, rows = np.uint32(0), np.uint32(0)
    for word in words:
        columns = max(columns, word & np.uint32((1 << X_BITS) - 1))
        rows = max(rows, (word >> np.uint32(X_BITS)) & np.uint32((1 << Y_BITS) - 1))
    return int(columns) + 1, int(rows) + 1


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
        ValueError: a time that does not fit 32 bits, or events outside of the sensor.
    """
    stream = ArrayStream(x, y, t, p, height, width)
    if stream.t_last >= PERIOD or stream.t_first < 0:
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
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(text.encode() + bytes((12, RECORD.itemsize)))
        records.tofile(file)
