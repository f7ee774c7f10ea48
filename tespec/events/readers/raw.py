"""Prophesee's `.raw`: after the header words in the encoding EVT2, EVT2.1 or EVT3.

Source: Prophesee, "Data Encoding Formats"; prophesee-ai/openeb,
hal/cpp/include/metavision/hal/decoders.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, read_rows, resolve_size
from tespec.events.readers.prophesee import (
    BLOCK,
    SYSTEMS,
    number_of,
    read_header,
    size_of,
    system_id,
)

# EVT3: 16-bit words, their kind in the upper four bits.
EVT3_ADDR_Y, EVT3_ADDR_X, EVT3_BASE_X, EVT3_VECT_12, EVT3_VECT_8, EVT3_TIME_LOW, EVT3_TIME_HIGH = (
    0,
    2,
    3,
    4,
    5,
    6,
    8,
)
# EVT2: 32-bit words, their kind in the upper four bits; kinds 0 and 1 are OFF and ON events.
# EVT2.1: such a word with a 32-bit mask; its bits are the pixels from x on that have an event.
EVT2_TIME_HIGH = 8
# range of the high time word, which then wraps around to 0
EVT3_HIGHS, EVT2_HIGHS = 1 << 12, 1 << 28
OFF_SENSOR = 1 << 14  # px, beyond any column
# by the field evt of older headers
NAMES = {"2": "EVT2", "2.0": "EVT2", "2.1": "EVT21", "3": "EVT3", "3.0": "EVT3"}
WORDS = {"EVT2": "<u4", "EVT21 little": "<u8", "EVT21 legacy": "<u8", "EVT3": "<u2"}
# system ids, -1 for none, with EVT2.1 whose 32-bit halves are swapped ("legacy")
SWAPPED = (-1, *range(1, 0x37))


def reads(path: Path) -> bool:
    """Whether a file is named as one."""
    return path.suffix.lower() == ".raw" and path.is_file()


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.raw` recording; triggers and other words are skipped. See `tespec.events.readers`."""
    fields, start = read_header(path)
    described, evt, number = fields.get("format", ""), fields.get("evt", ""), system_id(fields)
    encoding = (described or NAMES.get(evt, evt) or SYSTEMS.get(number, "")).partition(";")[0]
    if encoding == "EVT21":
        order = dict(re.findall(r"(\w+)=(\w+)", described)).get("endianness") or fields.get(
            "endianness"
        )
        encoding += f" {order or ('legacy' if number in SWAPPED else 'little')}"
    if encoding not in WORDS:
        what = (
            f"its header has the unsupported encoding {encoding!r}"
            if encoding
            else "its header has no encoding"
        )
        raise UserError(path, what, "give an EVT2, EVT2.1 or EVT3 recording")
    size = resolve_size(path, sensor, size_of(fields), default)
    dtype = np.dtype(WORDS[encoding])
    count = number_of(path, start, dtype.itemsize)
    decode = _decode_evt3 if encoding == "EVT3" else _decode_evt2

    def chunks() -> Iterator[Events]:
        state = np.zeros(6, np.int64)  # of the decoder
        for words in read_rows(path, dtype, start, count, BLOCK):
            if encoding in ("EVT21 little", "EVT21 legacy"):
                low, high = words.view("<u4").reshape(-1, 2).T
                words = _to_evt2(high, low) if encoding == "EVT21 little" else _to_evt2(low, high)
            yield Events(*decode(words, state))

    return Reader(path, *size, count, chunks)


@njit(cache=True, nogil=True)
def _decode_evt3(words, state):  # type: ignore[no-untyped-def]
    """Decode a block of words to events; `state` is updated in place."""
    x, y, t, p = _empty_events(12 * len(words))
    n, (row, base, polarity, high, low, timed) = 0, state
    for word in words:
        kind, value = word >> 12, int(word & 0xFFF)
        if kind == EVT3_TIME_HIGH:
            # Only the high word shows a wrap-around: the low word steps back a few us if rows are
            # read out of order.
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
    x, y, t, p = _empty_events(len(words))
    n, high, timed = 0, state[3], state[5]
    for word in words:
        kind, value = word >> 28, int(word & 0x0FFFFFFF)
        if kind == EVT2_TIME_HIGH:
            high, timed = _unwrap(value, high, EVT2_HIGHS) if timed else value, 1
        elif kind <= 1 and timed:
            x[n], y[n], t[n], p[n] = (
                value >> 11 & 0x7FF,
                value & 0x7FF,
                (high << 6) + (value >> 22),
                kind,
            )
            n += 1
    state[3], state[5] = high, timed
    return x[:n], y[:n], t[:n], p[:n]


def _to_evt2(words: NDArray[np.uint32], masks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Convert EVT2.1 words (N,) with their masks to EVT2 words (M,), one per event and one per word without events."""
    has_events = words >> 28 <= 1
    masks = np.where(has_events, masks, np.uint32(1))
    index, pixel = np.nonzero(
        np.unpackbits(masks.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    )
    columns = (words >> 11 & 0x7FF)[index] + pixel
    # a larger one would change the time
    return (words[index] + (pixel.astype(np.uint32) << 11))[columns < 1 << 11]


@njit(cache=True, nogil=True)
def _empty_events(count):  # type: ignore[no-untyped-def]
    """Columns x, y, t, p for at most `count` events; memory is only used where they are filled."""
    return (
        np.empty(count, np.uint16),
        np.empty(count, np.uint16),
        np.empty(count, np.int64),
        np.empty(count, np.uint8),
    )


@njit(cache=True, nogil=True)
def _unwrap(value, latest, values):  # type: ignore[no-untyped-def]
    """Unwrap a counter that restarts after `values`: return the candidate closest to `latest`."""
    return latest + (value - latest + values // 2) % values - values // 2
