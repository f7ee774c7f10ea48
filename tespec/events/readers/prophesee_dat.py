"""Prophesee `.dat`: a text header, two bytes of type and size, then two 32-bit words an event.

Times are in us, in 32 bits; in recordings that are longer than these bits reach, they begin again from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import whole_file
from tespec.events.readers.header import read_header, sensor_size
from tespec.events.readers.records import read_records
from tespec.events.readers.sensor import resolve_size
from tespec.events.store import ArrayStream
from tespec.events.stream import Events, Reader

TYPES = (0, 12)  # event types that hold x, y, polarity (prophesee-automotive-dataset-toolbox, dat_events_tools.py)
RECORD = np.dtype([("t", "<u4"), ("word", "<u4")])
PERIOD = 1 << 32  # us, 71.6 minutes, after which the times begin again from 0
X_BITS, Y_BITS = 14, 14
VERSION = "2"  # earlier ones have 9 bits for x and 8 for y (Prophesee's load_atis_data.m)
BLOCK = 1 << 20  # events read together


def open_dat(path: Path, height: int | None = None, width: int | None = None) -> Reader:
    """Open a `.dat` recording.

    Args:
        path: the file.
        height: rows of the sensor in px, where the header does not name them.
        width: columns, likewise.

    Raises:
        UserError: empty or truncated file, another version or event type, or no sensor size or one that contradicts
            the header.
    """
    header = read_header(path)
    version = header.fields.get("version", VERSION)
    if version != VERSION:
        raise UserError(path, f"is version {version} of the format", f"give a file of version {VERSION}")
    rows, columns = resolve_size(path, height, width, sensor_size(header))
    with path.open("rb") as file:
        file.seek(header.size)
        kind = file.read(2)
    if len(kind) < 2 or kind[0] not in TYPES or kind[1] != RECORD.itemsize:
        found = "missing" if len(kind) < 2 else f"{kind[0]} of {kind[1]} bytes"
        raise UserError(path, f"its event type is {found}, not 0 or 12 of 8 bytes", "give a file of CD events")
    begin = header.size + len(kind)
    count, rest = divmod(path.stat().st_size - begin, RECORD.itemsize)
    if rest:
        raise UserError(path, f"truncated: {rest} bytes after the last whole event", "copy it again")
    if not count:
        raise UserError(path, "holds no events", "give a recording with events")

    def chunks() -> Iterator[Events]:
        for records in read_records(path, RECORD, begin, count, BLOCK):
            word = np.ascontiguousarray(records["word"])
            x = (word & ((1 << X_BITS) - 1)).astype(np.uint16)
            y = ((word >> X_BITS) & ((1 << Y_BITS) - 1)).astype(np.uint16)
            p = ((word >> (X_BITS + Y_BITS)) & 1).astype(np.uint8)
            yield Events(x, y, records["t"], p)

    return Reader(path, rows, columns, count, chunks, period=PERIOD)


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
    text = f"% Data file containing CD events.\n% Version {VERSION}\n% Height {height}\n% Width {width}\n"
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(text.encode() + bytes((12, RECORD.itemsize)))
        records.tofile(file)


READS = {".dat": open_dat}
