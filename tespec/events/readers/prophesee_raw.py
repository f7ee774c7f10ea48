"""Prophesee `.raw` in the encodings EVT2 and EVT3 (Prophesee's "Data Encoding Formats"), decoded block by block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numba import njit

from tespec.core.errors import UserError
from tespec.events.readers.header import Header, read_header, sensor_size
from tespec.events.readers.records import read_records
from tespec.events.readers.sensor import resolve_size
from tespec.events.stream import Events, Reader

# EVT3: 16-bit words, their kind in the upper four bits.
EVT3_ADDR_Y, EVT3_ADDR_X, EVT3_BASE_X, EVT3_VECT_12, EVT3_VECT_8, EVT3_TIME_LOW, EVT3_TIME_HIGH = 0, 2, 3, 4, 5, 6, 8
EVT3_HIGHS, EVT2_HIGHS = 1 << 12, 1 << 28  # values of the high word, after which it begins again from 0
# EVT2: 32-bit words, their kind in the upper four bits; kinds 0 and 1 are OFF and ON events.
EVT2_TIME_HIGH = 8


BLOCK = 1 << 20  # words decoded at a time
OFF_SENSOR = 1 << 14  # px, beyond any column
STATE = 6  # numbers that decoding carries from word to word


def open_raw(path: Path, height: int | None = None, width: int | None = None) -> Reader:
    """Open a `.raw` recording; external triggers and other words that are no events are skipped.

    Args:
        path: the file.
        height: rows of the sensor in px, where the header does not name them.
        width: columns, likewise.

    Raises:
        UserError: empty or truncated file, another encoding, or no sensor size or one that contradicts the header.
    """
    header = read_header(path)
    encoding = _encoding(path, header)
    size = resolve_size(path, height, width, sensor_size(header))
    dtype = np.dtype("<u2" if encoding == 3 else "<u4")
    body = path.stat().st_size - header.size
    if body % dtype.itemsize:
        raise UserError(path, f"truncated: {body % dtype.itemsize} bytes after the last whole word", "copy it again")
    count = body // dtype.itemsize
    decode = _decode_evt3 if encoding == 3 else _decode_evt2

    def chunks() -> Iterator[Events]:
        state = np.zeros(STATE, np.int64)
        for words in read_records(path, dtype, header.size, count, BLOCK):
            yield Events(*decode(words, state))

    return Reader(path, *size, count, chunks)


def _encoding(path: Path, header: Header) -> int:
    named = header.fields.get("evt", header.fields.get("format", "").removeprefix("EVT"))
    for number in (2, 3):
        if named == str(number) or named.startswith((f"{number}.0", f"{number};")):
            return number
    what = f"its header names the encoding {named!r}" if named else "its header does not name an encoding"
    raise UserError(path, what, "give an EVT2 or EVT3 recording")


@njit(cache=True, nogil=True)
def _continued(value, latest, values):  # type: ignore[no-untyped-def]
    """Unwrap a counter that wraps after `values`: the candidate closest to `latest`."""
    return latest + (value - latest + values // 2) % values - values // 2


@njit(cache=True, nogil=True)
def _decode_evt3(words, state):  # type: ignore[no-untyped-def]
    """Events of a block of words; `state` is that before it, and becomes that after it."""
    count = 0
    for word in words:
        kind = word >> 12
        if kind == EVT3_ADDR_X:
            count += 1
        elif kind in (EVT3_VECT_12, EVT3_VECT_8):
            bits = word & (0xFFF if kind == EVT3_VECT_12 else 0xFF)
            while bits:
                bits &= bits - 1
                count += 1
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    n, row, base, polarity = 0, state[0], state[1], state[2]
    high, low, timed = state[3], state[4], state[5]
    for word in words:
        kind, value = word >> 12, int(word & 0xFFF)
        if kind == EVT3_TIME_HIGH:
            # Only the high word tells of a wrap: the low one steps back by a few us where rows are read out of turn.
            value = _continued(value, high, EVT3_HIGHS) if timed else value
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
            x[n], y[n], p[n] = value & 0x7FF, row, value >> 11
            t[n] = (high << 12) + low
            n += 1
        elif kind in (EVT3_VECT_12, EVT3_VECT_8):
            length = 12 if kind == EVT3_VECT_12 else 8
            if timed:
                for bit in range(length):
                    if value >> bit & 1:
                        x[n], y[n], p[n] = base + bit, row, polarity
                        t[n] = (high << 12) + low
                        n += 1
            base = min(base + length, OFF_SENSOR)  # and never back onto it by overflow
    state[0], state[1], state[2] = row, base, polarity
    state[3], state[4], state[5] = high, low, timed
    return x[:n], y[:n], t[:n], p[:n]


@njit(cache=True, nogil=True)
def _decode_evt2(words, state):  # type: ignore[no-untyped-def]
    """See `_decode_evt3`."""
    count = 0
    for word in words:
        count += word >> 28 <= 1
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    n, high, timed = 0, state[3], state[5]
    for word in words:
        kind, value = word >> 28, int(word & 0x0FFFFFFF)
        if kind == EVT2_TIME_HIGH:
            high, timed = _continued(value, high, EVT2_HIGHS) if timed else value, 1
        elif kind <= 1 and timed:
            x[n], y[n], p[n] = value >> 11 & 0x7FF, value & 0x7FF, kind
            t[n] = (high << 6) + (value >> 22)
            n += 1
    state[3], state[5] = high, timed
    return x[:n], y[:n], t[:n], p[:n]


READS = {".raw": open_raw}
