"""Prophesee's `.raw`: after the header words in the encoding EVT2, EVT2.1 or EVT3.

Source: Prophesee, "Data Encoding Formats"; prophesee-ai/openeb,
hal/cpp/include/metavision/hal/decoders.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Reader, record_reader, resolve_size
from tespec.events.readers.prophesee import (
    SYSTEMS,
    read_header,
    sensor_size,
    system_id,
)

# EVT3: 16-bit words, their kind in the upper four bits.
EVT3_ADDR_Y, EVT3_ADDR_X, EVT3_BASE_X, EVT3_VECT_12, EVT3_VECT_8 = 0, 2, 3, 4, 5
EVT3_TIME_LOW, EVT3_TIME_HIGH = 6, 8
# EVT2: 32-bit words, their kind in the upper four bits; kinds 0 and 1 are OFF and ON events.
# EVT2.1: such a word with a 32-bit mask; its bits are the pixels from x on that have an event.
EVT2_TIME_HIGH = 8
# range of the high time word, which then wraps around to 0
EVT3_HIGHS, EVT2_HIGHS = 1 << 12, 1 << 28
NO_TIME = -(1 << 62)  # high word before the first time
OFF_SENSOR = 1 << 14  # px, beyond any column
# by the field evt of older headers
NAMES = {"2": "EVT2", "2.0": "EVT2", "2.1": "EVT21", "3": "EVT3", "3.0": "EVT3"}
# system ids, -1 for none, with EVT2.1 whose 32-bit halves are swapped ("legacy")
SWAPPED = (-1, *range(1, 0x37))


def reads(path: Path) -> bool:
    """Whether a file is named as one."""
    return path.suffix.lower() == ".raw" and path.is_file()


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.raw` recording; triggers and other words are skipped.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    fields, start = read_header(path)
    evt = fields.get("evt", "")
    number = system_id(fields)
    described = fields.get("format") or NAMES.get(evt, evt) or SYSTEMS.get(number, "")
    encoding, _, options = described.partition(";")
    if encoding == "EVT21":
        order = dict(re.findall(r"(\w+)=(\w+)", options)).get("endianness")
        usual = "legacy" if number in SWAPPED else "little"
        encoding += f" {order or fields.get('endianness') or usual}"
    if encoding not in DECODERS:
        problem = f"the unsupported encoding {encoding!r}" if encoding else "no encoding"
        raise UserError(path, f"its header has {problem}", "give an EVT2, EVT2.1 or EVT3 recording")
    size = resolve_size(path, sensor, sensor_size(fields), default)
    word, decode = DECODERS[encoding]
    return record_reader(path, size, np.dtype(word), start, decode, [0, 0, 0, NO_TIME, 0])


@njit(cache=True, nogil=True)
def _decode_evt3(words, state):  # type: ignore[no-untyped-def]
    """Decode a block of words to events; `state` is updated in place."""
    x, y, t, p = _empty_events(12 * len(words))
    row, base, polarity, high, low = state
    n = 0
    for word in words:
        kind = word >> 12
        value = int(word & 0xFFF)
        if kind == EVT3_TIME_HIGH:
            # Only the high word shows a wrap-around: the low word steps back a few us if rows are
            # read out of order.
            value = _unwrap(value, high, EVT3_HIGHS)
            if value != high:
                low = 0
            high = value
        elif kind == EVT3_TIME_LOW:
            low = value
        elif kind == EVT3_ADDR_Y:
            row = value & 0x7FF
        elif kind == EVT3_BASE_X:
            base = value & 0x7FF
            polarity = value >> 11
        elif high != NO_TIME and kind == EVT3_ADDR_X:
            x[n], y[n], t[n], p[n] = value & 0x7FF, row, (high << 12) + low, value >> 11
            n += 1
        elif kind in (EVT3_VECT_12, EVT3_VECT_8):
            length = 12 if kind == EVT3_VECT_12 else 8
            for bit in range(0 if high == NO_TIME else length):
                if value >> bit & 1:
                    x[n], y[n], t[n], p[n] = base + bit, row, (high << 12) + low, polarity
                    n += 1
            base = min(base + length, OFF_SENSOR)  # cannot overflow back onto the sensor
    state[:] = row, base, polarity, high, low
    return x[:n], y[:n], t[:n], p[:n]


@njit(cache=True, nogil=True)
def _decode_evt2(words, state):  # type: ignore[no-untyped-def]
    """Decode a block of EVT2 words; see `_decode_evt3`."""
    x, y, t, p = _empty_events(len(words))
    high = state[3]
    n = 0
    for word in words:
        kind = word >> 28
        value = int(word & 0x0FFFFFFF)
        if kind == EVT2_TIME_HIGH:
            high = _unwrap(value, high, EVT2_HIGHS)
        elif kind <= 1 and high != NO_TIME:
            time = (high << 6) + (value >> 22)
            x[n], y[n], t[n], p[n] = value >> 11 & 0x7FF, value & 0x7FF, time, kind
            n += 1
    state[3] = high
    return x[:n], y[:n], t[:n], p[:n]


def _decode_evt21(words: NDArray[np.uint64], state: NDArray[np.int64], mask: int) -> Sequence[Any]:
    """Decode a block of EVT2.1 words as EVT2 words: one per event, and those without events.

    `mask` is the position of the mask in each word, 0 for its low half and 1 for its high half.
    """
    halves = words.view("<u4").reshape(-1, 2)
    words, masks = halves[:, 1 - mask], halves[:, mask]
    has_events = words >> 28 <= 1
    masks = np.where(has_events, masks, np.uint32(1))
    index, pixel = np.nonzero(
        np.unpackbits(masks.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    )
    columns = (words >> 11 & 0x7FF)[index] + pixel
    # a larger one would change the time
    return _decode_evt2((words[index] + (pixel.astype(np.uint32) << 11))[columns < 1 << 11], state)


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
def _unwrap(value, latest, period):  # type: ignore[no-untyped-def]
    """Unwrap a counter that restarts after `period`, a power of two.

    Returns the candidate closest to `latest`, or the value itself if that is `NO_TIME`.
    """
    if latest == NO_TIME:
        return np.int64(value)
    return latest + ((value - latest + period // 2) & (period - 1)) - period // 2


# by encoding, and the order of the halves of EVT2.1: type of a word, and its decoder
DECODERS: dict[str, tuple[str, Callable[..., Sequence[Any]]]] = {
    "EVT2": ("<u4", _decode_evt2),
    "EVT21 little": ("<u8", partial(_decode_evt21, mask=0)),
    "EVT21 legacy": ("<u8", partial(_decode_evt21, mask=1)),
    "EVT3": ("<u2", _decode_evt3),
}
