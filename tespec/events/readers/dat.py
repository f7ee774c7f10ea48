"""Prophesee's `.dat`: header, one byte for the event type, one for its size, then the events.

An event has two 32-bit words: its time, and its x, y and polarity.
"""

from pathlib import Path

import numpy as np
from numba import njit

from tespec.core.errors import UserError
from tespec.core.files import atomic_write
from tespec.core.settings import Size
from tespec.events.readers import Column, Reader, check_events, record_reader, resolve_size
from tespec.events.readers.prophesee import read_header, sensor_size

# event types that hold x, y, polarity (prophesee-automotive-dataset-toolbox, dat_events_tools.py)
TYPES = (0, 12)
RECORD = np.dtype("<u8")  # time in the low 32 bits; x, y and polarity in the high ones
PERIOD = 1 << 32  # us (71.6 minutes) after which times wrap around to 0
STEP_BACK = 60_000_000  # us; the longest step back across a wrap-around
NO_TIME = -1 << 62  # there is no time before
NO_JUMP = 1  # the time before was no jump; not the start of a period
X_BITS, Y_BITS = 14, 14
VERSION = "2"  # earlier ones have 9 bits for x and 8 for y (Prophesee's load_atis_data.m)


def reads(path: Path) -> bool:
    """Whether this is a file whose name ends in `.dat`."""
    return path.suffix.lower() == ".dat" and path.is_file()


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.dat` recording.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    fields, start = read_header(path)
    version = fields.get("version", VERSION)  # files without one are read as version 2
    if version != VERSION:
        raise UserError(
            path,
            f"has the unsupported format version {version}",
            f"give a file of version {VERSION}",
        )
    size = resolve_size(path, sensor, sensor_size(fields), default)
    kind = np.fromfile(path, np.uint8, 2, offset=start)
    if len(kind) < 2 or kind[0] not in TYPES or kind[1] != RECORD.itemsize:
        event_type = "missing" if len(kind) < 2 else f"{kind[0]} of {kind[1]} bytes"
        raise UserError(
            path,
            f"its event type is {event_type}, not 0 or 12 of 8 bytes",
            "give a file of change detection (CD) events",
        )
    return record_reader(path, size, RECORD, start + len(kind), _decode_dat, [NO_TIME, NO_JUMP])


@njit(cache=True, nogil=True)
def _decode_dat(records, state):  # type: ignore[no-untyped-def]
    """Decode records (N,) to events, N > 0.

    Times have 32 bits. A step of more than half a period is a jump. Downwards it is a wrap-around,
    upwards a gap without events, or, within a minute of a whole period, a step back across a
    wrap-around. If the next step is a jump too, the time between them was a bad one, and the period
    before it goes on.

    `state` is the time before these records and, if it was a jump, the start of the period before
    it; it is updated in place.
    """
    words = records.view(np.uint32)
    count = len(records)
    x, y = np.empty(count, np.uint16), np.empty(count, np.uint16)
    t, p = np.empty(count, np.int64), np.empty(count, np.uint8)
    previous, before_jump = state
    if previous == NO_TIME:
        previous = np.int64(words[0])
    start = previous // PERIOD * PERIOD  # of the current period
    for i in range(count):
        word = words[2 * i + 1]
        x[i], y[i] = word & ((1 << X_BITS) - 1), word >> X_BITS & ((1 << Y_BITS) - 1)
        t[i], p[i] = words[2 * i] + start, word >> (X_BITS + Y_BITS) & 1
    if max(t.max(), previous) - min(t.min(), previous) <= PERIOD // 2:
        state[:] = t[-1], NO_JUMP  # none of these can be a jump
        return x, y, t, p
    for i in range(count):
        start = previous // PERIOD * PERIOD  # of the period of the previous time
        jump = words[2 * i] + start - previous
        if abs(jump) <= PERIOD // 2:
            before_jump = NO_JUMP
        elif before_jump != NO_JUMP:
            start = before_jump
            before_jump = NO_JUMP
        else:
            before_jump = start
            if jump < 0:
                start += PERIOD
            elif jump > PERIOD - STEP_BACK:
                start -= PERIOD
        t[i] = words[2 * i] + start
        previous = t[i]
    state[:] = previous, before_jump
    return x, y, t, p


def write_dat(
    path: Path, x: Column, y: Column, t: Column, p: Column, height: int, width: int
) -> None:
    """Atomically write events to a `.dat` file that names its sensor size.

    Args:
        path: file to write.
        x: (N,) columns in px.
        y: (N,) rows in px.
        t: (N,) times in us, below 2^32.
        p: (N,) polarities, 0 or 1.
        height: rows of the sensor in px.
        width: columns of the sensor in px.

    Raises:
        ValueError: the events are off the sensor, or their times do not fit in 32 bits.
    """
    check_events(x, y, t, p, height, width)
    if len(t) and not 0 <= t.min() <= t.max() < PERIOD:
        raise ValueError(f"times {t.min()} to {t.max()} us do not fit in 32 bits")
    header = (
        f"% Data file containing CD events.\n% Version {VERSION}\n"
        f"% Height {height}\n% Width {width}\n"
    )
    times, columns, rows, on = np.stack([t, x, y, p]).astype("<u4")
    words = columns | rows << X_BITS | on << (X_BITS + Y_BITS)
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        file.write(header.encode() + bytes((12, RECORD.itemsize)))
        np.stack([times, words], axis=1).tofile(file)
