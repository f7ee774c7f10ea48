"""Prophesee's HDF5: rows of events in chunks of its codec ECF, decoded here without its plugin.

Source: prophesee-ai/hdf5_ecf, ecf_codec.cpp; prophesee-ai/openeb, hdf5_event_file_writer.cpp.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numba import njit

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, resolve_size
from tespec.events.readers.arrays import as_events
from tespec.events.readers.hdf5 import (
    COPY_AGAIN,
    SUFFIXES,
    checked_dataset,
    has_datasets,
    open_file,
    read_slices,
    translate_errors,
)
from tespec.events.readers.prophesee import sensor_size

EVENTS = "CD/events"
COLUMNS = {"x": np.dtype("<u2"), "y": np.dtype("<u2"), "p": np.dtype("<i2"), "t": np.dtype("<i8")}
ECF_FILTER_ID = 0x8ECF
MAX_CHUNK_EVENTS = 65_535  # events per chunk, a limit of the codec
MAX_CHUNK_BYTES = 1 << 21  # bytes of an encoded chunk; an event has at most 30
PADDING = 32  # bytes after a chunk, which a damaged one may run into
DAMAGED = 1 << 40  # position after a damaged part of a chunk, beyond the end of any chunk


def reads(path: Path) -> bool:
    """Whether an HDF5 file has Prophesee's events."""
    return path.suffix.lower() in SUFFIXES and has_datasets(path, EVENTS)


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open an HDF5 recording of Prophesee's software.

    `CD/events` are rows of x, y, p and t in us, in chunks encoded with ECF, or with a filter that
    `checked_dataset` allows. The sensor's size is in an attribute of the file or of the group `CD`,
    named as in the header of a `.raw` file.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    with translate_errors(path, EVENTS):
        events = checked_dataset(path, EVENTS, ECF_FILTER_ID)
        columns = {name: events.dtype[name] for name in events.dtype.names or ()}
        attributes = {**open_file(path)["CD"].attrs, **open_file(path).attrs}
        fields = {
            name.lower(): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in attributes.items()
        }
    if events.ndim != 1 or columns != COLUMNS:
        raise UserError(
            path,
            f"{EVENTS} is {events.dtype} of shape {events.shape}, not rows of x, y, p, t",
            COPY_AGAIN,
        )
    size = resolve_size(path, sensor, sensor_size(fields), default)
    is_encoded = [number for number, _ in events.encoding] == [ECF_FILTER_ID]
    read = _read_encoded if is_encoded else _read_rows
    return Reader(path, *size, len(events), lambda: read(path))


def _read_rows(path: Path) -> Iterator[Events]:
    for (rows,) in read_slices(path, EVENTS):
        yield as_events(path, rows["x"], rows["y"], rows["t"], rows["p"])


def _read_encoded(path: Path) -> Iterator[Events]:
    events = checked_dataset(path, EVENTS, ECF_FILTER_ID)
    for begin in range(0, len(events), events.chunks[0]):
        count = min(events.chunks[0], len(events) - begin)
        with translate_errors(path, EVENTS):
            has_valid_size = events.stored["size"][begin // events.chunks[0]] <= MAX_CHUNK_BYTES
            filter_mask, chunk = (
                events.id.read_direct_chunk((begin,)) if has_valid_size else (0, b"")
            )
        decoded = decode(chunk)
        if filter_mask or len(decoded.t) < count:  # the last chunk may have more events
            raise UserError(
                path, f"events {begin:,} to {begin + count:,} of {EVENTS} are damaged", COPY_AGAIN
            )
        yield Events(decoded.x[:count], decoded.y[:count], decoded.t[:count], decoded.p[:count])


def decode(chunk: bytes) -> Events:
    """Decode a chunk of ECF; a damaged chunk gives no events."""
    return Events(*_decode(np.frombuffer(chunk + bytes(PADDING), np.uint8), len(chunk)))


@njit(cache=True, nogil=True)
def _decode(data, length):  # type: ignore[no-untyped-def]
    """Decode a chunk of `length` bytes and padding to columns of events.

    A chunk has the number of events and two flags (4 bytes), the first time (8 bytes), runs of
    equal times, and then rows, columns and polarities: all three of an event in 24 bits; or runs of
    equal rows, then columns and polarities in 12 bits; or runs of equal rows, vectors of columns,
    and runs of equal polarities.
    """
    head = _read_uint(data, 0, 4)
    n = head >> 2 if head >> 2 <= MAX_CHUNK_EVENTS else 0
    rows_packed = head >> 1 & 1
    columns_packed = head & 1
    size = n + 5  # the last group or vector may go beyond the end
    x, y = np.empty(size, np.uint16), np.empty(size, np.uint16)
    t, p = np.empty(size, np.int64), np.empty(size, np.uint8)
    pos = _decode_times(data, 12, length, _read_uint(data, 4, 8), t[:n])
    i = 0
    if not rows_packed:
        pos = _decode_runs(data, pos, length, y[:n], 2, 5)
    if rows_packed or columns_packed:
        # Four events are in three words of four quarters each. The j-th event has the low j
        # quarters of word j - 1, and above them the high 3 - j quarters of word j.
        size, quarter = (4, 8) if rows_packed else (2, 4)  # bytes of a word, bits of a quarter
        start = pos
        pos += (n + 3) // 4 * 3 * size
        for group in range(start, pos if pos <= length else start, 3 * size):
            previous = 0
            for j in range(4):
                word = _read_uint(data, group + j * size, size)
                event = (
                    previous & ((1 << j * quarter) - 1) | word >> (j + 1) * quarter << j * quarter
                )
                x[i], p[i] = event >> 1 & 0x7FF, event & 1
                if rows_packed:
                    y[i] = event >> 12
                previous = word
                i += 1
    else:
        while i < n and pos < length:
            vector = _read_uint(data, pos, 2)
            pos += 2
            for j in range(6):
                if j == 0 or vector >> (5 - j) & 1:
                    x[i] = (vector >> 5) + j
                    i += 1
        pos = _decode_runs(data, pos, length, p[:n], 1, 7)
    if pos != length:
        n = 0  # damaged
    return x[:n], y[:n], t[:n], p[:n]


@njit(cache=True, nogil=True)
def _decode_times(data, pos, length, time, t):  # type: ignore[no-untyped-def]
    """Decode runs of equal times to `t` (N,), and return the position after them.

    A byte has the rise of the time, and in its low four bits the length of the run. A rise of 15 us
    or more comes before it, four bits per byte, the low ones first.
    """
    i = 0
    while i < len(t) and pos < length:
        shift = 0
        while data[pos] >> 4 == 15 and shift < 64:
            time += np.int64(data[pos] & 15) << shift
            shift += 4
            pos += 1
        time += data[pos] >> 4
        run, pos = _read_run(data, pos + 1, data[pos] & 15, 15)
        t[i : i + run] = time
        i += run
    return pos if i == len(t) else DAMAGED


@njit(cache=True, nogil=True)
def _decode_runs(data, pos, length, column, size, bits):  # type: ignore[no-untyped-def]
    """Decode runs of equal values to a column (N,), and return the position after them.

    A run is a number of `size` bytes: its low `bits` are the length of the run, those above them
    the value.
    """
    i = 0
    while i < len(column) and pos < length:
        word, longest = _read_uint(data, pos, size), (1 << bits) - 1
        run, pos = _read_run(data, pos + size, word & longest, longest)
        column[i : i + run] = word >> bits
        i += run
    return pos if i == len(column) else DAMAGED


@njit(cache=True, nogil=True)
def _read_run(data, pos, run, longest):  # type: ignore[no-untyped-def]
    """Return the length of a run and the position after it.

    A length of `longest` stands for the number in the next two bytes.
    """
    return (_read_uint(data, pos, 2), pos + 2) if run == longest else (np.int64(run), pos)


@njit(cache=True, nogil=True)
def _read_uint(data, pos, size):  # type: ignore[no-untyped-def]
    """Little-endian number of `size` bytes."""
    number = np.int64(0)
    for i in range(size):
        number |= np.int64(data[pos + i]) << 8 * i
    return number
