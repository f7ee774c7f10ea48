"""Prophesee `.raw` in the encodings EVT2 and EVT3 (Prophesee's "Data Encoding Formats"), decoded into memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba import njit

from tespec.errors import UserError
from tespec.events.readers.header import LARGEST, Header, read_header, resolve_size
from tespec.events.stream import ArrayStream

# EVT3: 16-bit words, their kind in the upper four bits.
EVT3_ADDR_Y, EVT3_ADDR_X, EVT3_BASE_X, EVT3_VECT_12, EVT3_VECT_8, EVT3_TIME_LOW, EVT3_TIME_HIGH = 0, 2, 3, 4, 5, 6, 8
EVT3_WRAP = 1 << 24  # us covered by the 12 + 12 bits of time
# EVT2: 32-bit words, their kind in the upper four bits; kinds 0 and 1 are OFF and ON events.
EVT2_TIME_HIGH = 8


def open_raw(path: Path, height: int | None = None, width: int | None = None) -> ArrayStream:
    """Decode a `.raw` recording; external triggers and other words that are no events are skipped.

    Args:
        path: the file.
        height: rows of the sensor in px, where the header does not name them or is wrong.
        width: columns, likewise.

    Raises:
        UserError: empty or truncated file, another encoding, no sensor size, or events outside of the sensor.
    """
    header = read_header(path)
    encoding = _encoding(path, header)
    rows, columns = resolve_size(path, header, height, width)
    bytes_per_word = 2 if encoding == 3 else 4
    body = path.stat().st_size - header.size
    if body % bytes_per_word:
        raise UserError(path, f"truncated: {body % bytes_per_word} bytes after the last whole word", "copy it again")
    words = np.fromfile(path, "<u2" if encoding == 3 else "<u4", offset=header.size)
    if encoding == 3:
        x, y, t, p = _decode_evt3(words, _count_evt3(words))
    else:
        x, y, t, p = _decode_evt2(words, int(((words >> 28) <= 1).sum()))
    if not len(t):
        raise UserError(path, "holds no events", "give a recording with events")
    if int(x.max()) >= columns or int(y.max()) >= rows:
        found = f"{int(x.max()) + 1}x{int(y.max()) + 1}"
        raise UserError(
            path, f"has events on {found} px, its sensor is {columns}x{rows} px", "copy it again, or give its true size"
        )
    return ArrayStream(x, y, t, p, rows, columns)


def _encoding(path: Path, header: Header) -> int:
    named = header.fields.get("evt", header.fields.get("format", "").removeprefix("EVT"))
    for number in (2, 3):
        if named == str(number) or named.startswith((f"{number}.0", f"{number};")):
            return number
    what = f"its header names the encoding {named!r}" if named else "its header does not name an encoding"
    raise UserError(path, what, "give an EVT2 or EVT3 recording")


@njit(cache=True, nogil=True)
def _count_evt3(words):  # type: ignore[no-untyped-def]
    count, timed = 0, False
    for word in words:
        kind = word >> 12
        timed = timed or kind == EVT3_TIME_HIGH
        if not timed:
            continue
        if kind == EVT3_ADDR_X:
            count += 1
        elif kind in (EVT3_VECT_12, EVT3_VECT_8):
            bits = word & (0xFFF if kind == EVT3_VECT_12 else 0xFF)
            while bits:
                bits &= bits - 1
                count += 1
    return count


@njit(cache=True, nogil=True)
def _decode_evt3(words, count):  # type: ignore[no-untyped-def]
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    n, row, base, polarity = 0, 0, 0, 0
    high, low, wraps, timed = 0, 0, 0, False
    for word in words:
        kind, value = word >> 12, int(word & 0xFFF)
        if kind == EVT3_TIME_HIGH:
            # Only the high word tells of a wrap: the low one steps back by a few us where rows are read out of turn.
            if timed and high - value > 1 << 11:
                wraps += 1
            if value != high or not timed:
                low = 0
            high, timed = value, True
        elif kind == EVT3_TIME_LOW:
            low = value
        elif kind == EVT3_ADDR_Y:
            row = value & 0x7FF
        elif kind == EVT3_BASE_X:
            base, polarity = value & 0x7FF, value >> 11
        elif timed and kind == EVT3_ADDR_X:
            x[n], y[n], p[n] = value & 0x7FF, row, value >> 11
            t[n] = wraps * EVT3_WRAP + (high << 12) + low
            n += 1
        elif kind in (EVT3_VECT_12, EVT3_VECT_8):
            length = 12 if kind == EVT3_VECT_12 else 8
            if timed:
                for bit in range(length):
                    if value >> bit & 1:
                        x[n], y[n], p[n] = base + bit, row, polarity
                        t[n] = wraps * EVT3_WRAP + (high << 12) + low
                        n += 1
            base = min(base + length, LARGEST)  # off every sensor, and never back onto it by overflow
    return x, y, t, p


@njit(cache=True, nogil=True)
def _decode_evt2(words, count):  # type: ignore[no-untyped-def]
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    n, high, wraps, timed = 0, 0, 0, False
    for word in words:
        kind, value = word >> 28, int(word & 0x0FFFFFFF)
        if kind == EVT2_TIME_HIGH:
            if timed and high - value > 1 << 27:
                wraps += 1
            high, timed = value, True
        elif kind <= 1 and timed:
            x[n], y[n], p[n] = value >> 11 & 0x7FF, value & 0x7FF, kind
            t[n] = (((wraps << 28) + high) << 6) + (value >> 22)
            n += 1
    return x[:n], y[:n], t[:n], p[:n]
