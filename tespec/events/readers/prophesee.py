"""Prophesee's `.dat` and `.raw` files: a text header of lines that start with `%`, then words of fixed size.

After the header, `.dat` has one byte each for event type and size, then two 32-bit words per event; `.raw` has words in
the encoding EVT2 or EVT3 (Prophesee, "Data Encoding Formats").
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numba import njit

from tespec.core.errors import UserError
from tespec.core.files import whole_file
from tespec.core.settings import Size
from tespec.events.readers import Column, Events, Reader, check_events, read_rows, resolve_size

LONGEST_HEADER = 1 << 16  # bytes; real headers have a few hundred
BLOCK = 1 << 16  # events or words per read, which stay in the CPU cache
TYPES = (0, 12)  # event types that hold x, y, polarity (prophesee-automotive-dataset-toolbox, dat_events_tools.py)
RECORD = np.dtype([("t", "<u4"), ("word", "<u4")])
PERIOD = 1 << 32  # us (71.6 minutes) after which times wrap around to 0
X_BITS, Y_BITS = 14, 14
VERSION = "2"  # earlier ones have 9 bits for x and 8 for y (Prophesee's load_atis_data.m)
# EVT3: 16-bit words, their kind in the upper four bits.
EVT3_ADDR_Y, EVT3_ADDR_X, EVT3_BASE_X, EVT3_VECT_12, EVT3_VECT_8, EVT3_TIME_LOW, EVT3_TIME_HIGH = 0, 2, 3, 4, 5, 6, 8
# EVT2: 32-bit words, their kind in the upper four bits; kinds 0 and 1 are OFF and ON events.
EVT2_TIME_HIGH = 8
EVT3_HIGHS, EVT2_HIGHS = 1 << 12, 1 << 28  # range of the high time word, which then wraps around to 0
OFF_SENSOR = 1 << 14  # px, beyond any column


def read_header(path: Path) -> tuple[dict[str, str], Size | None, int]:
    """Read a header: fields by lower-case name, sensor (height, width) in px if named, and its own size in bytes."""
    with path.open("rb") as file:
        head = file.read(LONGEST_HEADER)
    if head[:1] != b"%":
        what = "does not start with a header (lines that start with %)" if head else "the file is empty"
        raise UserError(path, what, "copy it again, or give a Prophesee recording")
    fields: dict[str, str] = {}
    offset, line = 0, ""
    while head[offset : offset + 1] == b"%" and line != "end":
        end = head.find(b"\n", offset)
        if end < 0:
            raise UserError(path, "its header is incomplete", "copy it again")
        line = head[offset + 1 : end].decode("ascii", "replace").strip()
        name, _, value = line.partition(" ")
        fields[name.lower()] = value.strip()
        offset = end + 1
    # Recorders write the size in three notations.
    sides = dict(re.findall(r"\b(height|width)=(\d+)\b", fields.get("format", "")))
    if geometry := re.fullmatch(r"(\d+)x(\d+)", fields.get("geometry", "")):
        sides |= {"width": geometry[1], "height": geometry[2]}
    sides |= {side: fields[side] for side in ("height", "width") if side in fields}
    named = len(sides) == 2 and all(re.fullmatch(r"[0-9]{1,9}", text) for text in sides.values())
    return fields, (int(sides["height"]), int(sides["width"])) if named else None, offset


def _number_of(path: Path, begin: int, size: int) -> int:
    """Number of events or words of `size` bytes from byte `begin` of a file to its end."""
    count, rest = divmod(path.stat().st_size - begin, size)
    if rest:
        raise UserError(path, f"truncated: {rest} bytes after the last complete event or word", "copy it again")
    return count


def open_dat(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.dat` recording; see `tespec.events.readers`."""
    fields, named, start = read_header(path)
    if (version := fields.get("version", VERSION)) != VERSION:
        raise UserError(path, f"has the unsupported format version {version}", f"give a file of version {VERSION}")
    size = resolve_size(path, sensor, named, default)
    with path.open("rb") as file:
        file.seek(start)
        kind = file.read(2)
    if len(kind) < 2 or kind[0] not in TYPES or kind[1] != RECORD.itemsize:
        found = "missing" if len(kind) < 2 else f"{kind[0]} of {kind[1]} bytes"
        raise UserError(path, f"its event type is {found}, not 0 or 12 of 8 bytes", "give a file of CD events")
    begin = start + len(kind)
    count = _number_of(path, begin, RECORD.itemsize)

    def chunks() -> Iterator[Events]:
        latest = None
        for records in read_rows(path, RECORD, begin, count, BLOCK):
            words = records.view("<u4")
            *columns, latest = _decode_dat(words, int(words[0]) if latest is None else latest)
            yield Events(*columns)

    return Reader(path, *size, count, chunks)


@njit(cache=True, nogil=True)
def _empty(count):  # type: ignore[no-untyped-def]
    return np.empty(count, np.uint16), np.empty(count, np.uint16), np.empty(count, np.int64), np.empty(count, np.uint8)


@njit(cache=True, nogil=True)
def _unwrap(value, latest, values):  # type: ignore[no-untyped-def]
    """Unwrap a counter that restarts after `values`: return the candidate closest to `latest`."""
    return latest + (value - latest + values // 2) % values - values // 2


@njit(cache=True, nogil=True)
def _decode_dat(words, latest):  # type: ignore[no-untyped-def]
    """Decode words (2 * N,) to events, and return the latest time; `latest` is the latest time before them."""
    x, y, t, p = _empty(len(words) // 2)
    start = latest // PERIOD * PERIOD  # of the current period
    for i in range(len(t)):
        word = words[2 * i + 1]
        x[i], y[i] = word & ((1 << X_BITS) - 1), word >> X_BITS & ((1 << Y_BITS) - 1)
        t[i], p[i] = words[2 * i] + start, word >> (X_BITS + Y_BITS) & 1
    if t.min() < latest or t.max() >= latest + PERIOD // 2:  # rare: a step back, or a wrap-around
        for i in range(len(t)):
            t[i] = _unwrap(t[i], latest, PERIOD)
            latest = max(latest, t[i])
    return x, y, t, p, max(latest, t.max())


def write_dat(path: Path, x: Column, y: Column, t: Column, p: Column, height: int, width: int) -> None:
    """Atomically write events (N,) with times in us below 2^32 to a `.dat` file that names its sensor size."""
    check_events(x, y, t, p, height, width)
    if len(t) and not 0 <= t.min() <= t.max() < PERIOD:
        raise ValueError(f"times {t.min()} to {t.max()} us do not fit in 32 bits")
    times, columns, rows, on = (np.asarray(values, RECORD["t"]) for values in (t, x, y, p))
    text = f"% Data file containing CD events.\n% Version {VERSION}\n% Height {height}\n% Width {width}\n"
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(text.encode() + bytes((12, RECORD.itemsize)))
        np.stack([times, columns | rows << X_BITS | on << (X_BITS + Y_BITS)], axis=1).tofile(file)


def open_raw(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.raw` recording; triggers and other words are skipped. See `tespec.events.readers`."""
    fields, named, start = read_header(path)
    encoding = fields.get("evt") or fields.get("format", "").partition(";")[0].removeprefix("EVT")
    if encoding not in ("2", "2.0", "3", "3.0"):
        what = f"its header has the unsupported encoding {encoding!r}" if encoding else "its header has no encoding"
        raise UserError(path, what, "give an EVT2 or EVT3 recording")
    dtype, decode = (np.dtype("<u4"), _decode_evt2) if encoding[0] == "2" else (np.dtype("<u2"), _decode_evt3)
    size = resolve_size(path, sensor, named, default)
    count = _number_of(path, start, dtype.itemsize)

    def chunks() -> Iterator[Events]:
        state = np.zeros(6, np.int64)  # of the decoder
        for words in read_rows(path, dtype, start, count, BLOCK):
            yield Events(*decode(words, state))

    return Reader(path, *size, count, chunks)


@njit(cache=True, nogil=True)
def _decode_evt3(words, state):  # type: ignore[no-untyped-def]
    """Decode a block of words to events; `state` is updated in place."""
    x, y, t, p = _empty(12 * len(words))  # upper bound; memory is only used where it is filled
    n, (row, base, polarity, high, low, timed) = 0, state
    for word in words:
        kind, value = word >> 12, int(word & 0xFFF)
        if kind == EVT3_TIME_HIGH:
            # Only the high word shows a wrap-around: the low word steps back a few us if rows are read out of order.
            value = _unwrap(value, high, EVT3_HIGHS) if timed else value
            if value != high or not timed:
                low = 0
            high, timed = value, 1
        elif kind == EVT3_TIME_LOW:
            low = value
        elif kind == EVT3_ADDR_Y:
            row = value & 0x7FF
        elif kind == EVT3_BASE_X:
            base, polarity = value & 0x7FF, value >> 11
        elif timed and kind == EVT3_ADDR_X:
            x[n], y[n], t[n], p[n] = value & 0x7FF, row, (high << 12) + low, value >> 11
            n += 1
        elif kind in (EVT3_VECT_12, EVT3_VECT_8):
            length = 12 if kind == EVT3_VECT_12 else 8
            for bit in range(length if timed else 0):
                if value >> bit & 1:
                    x[n], y[n], t[n], p[n] = base + bit, row, (high << 12) + low, polarity
                    n += 1
            base = min(base + length, OFF_SENSOR)  # cannot overflow back onto the sensor
    state[:] = row, base, polarity, high, low, timed
    return x[:n], y[:n], t[:n], p[:n]


@njit(cache=True, nogil=True)
def _decode_evt2(words, state):  # type: ignore[no-untyped-def]
    """Decode a block of EVT2 words; see `_decode_evt3`."""
    x, y, t, p = _empty(len(words))
    n, high, timed = 0, state[3], state[5]
    for word in words:
        kind, value = word >> 28, int(word & 0x0FFFFFFF)
        if kind == EVT2_TIME_HIGH:
            high, timed = _unwrap(value, high, EVT2_HIGHS) if timed else value, 1
        elif kind <= 1 and timed:
            x[n], y[n], t[n], p[n] = value >> 11 & 0x7FF, value & 0x7FF, (high << 6) + (value >> 22), kind
            n += 1
    state[3], state[5] = high, timed
    return x[:n], y[:n], t[:n], p[:n]
