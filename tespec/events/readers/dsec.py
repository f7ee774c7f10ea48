"""DSEC's `events.h5`: columns of events, and the offset of their times."""

from collections.abc import Iterator
from pathlib import Path

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, arrays, hdf5, resolve_size

INDEX, OFFSET = "ms_to_idx", "t_offset"
LARGEST_OFFSET = 1 << 60  # us; the sum with a 32-bit time fits 64 bits
SENSOR = (480, 640)  # (height, width) in px


def reads(path: Path) -> bool:
    """Whether an HDF5 file has events and DSEC's offset or index of their times."""
    is_hdf5 = path.suffix.lower() in hdf5.SUFFIXES
    return is_hdf5 and hdf5.holds(path, *hdf5.COLUMNS) and hdf5.holds(path, OFFSET, INDEX)


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open an `events.h5` file; times are t + t_offset, on the clock of the labels."""
    count, *others = (len(hdf5.dataset(path, name, "iub")) for name in hdf5.COLUMNS)
    if any(length != count for length in others):
        raise UserError(path, f"its columns x, y, t, p have different lengths {[count, *others]}", hdf5.AGAIN)
    with hdf5.translate_errors(path, OFFSET):
        offset = int(hdf5.dataset(path, OFFSET, "iu", 0)[()])
    if abs(offset) > LARGEST_OFFSET:
        raise UserError(path, f"{OFFSET} is out of range: {offset}", hdf5.AGAIN)
    size = resolve_size(path, sensor, default=default or SENSOR)

    def chunks() -> Iterator[Events]:
        for columns in hdf5.read_slices(path, *hdf5.COLUMNS):
            events = arrays.as_events(path, *columns)
            yield events._replace(t=events.t + offset)

    return Reader(path, *size, count, chunks)
