"""DSEC's `events.h5`: columns of events, and the offset of their times."""

from pathlib import Path

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Reader, hdf5, resolve_size
from tespec.events.readers.columns import read_columns

INDEX, OFFSET = "ms_to_idx", "t_offset"
LARGEST_OFFSET = 1 << 60  # us; the sum with a 32-bit time fits 64 bits
SENSOR = (480, 640)  # (height, width) in px


def reads(path: Path) -> bool:
    """Whether an HDF5 file has events and DSEC's offset or index of their times."""
    return (
        path.suffix.lower() in hdf5.SUFFIXES
        and hdf5.has_datasets(path, *hdf5.COLUMNS)
        and hdf5.has_datasets(path, OFFSET, INDEX)
    )


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open an `events.h5` file; times are t + t_offset, on the clock of the labels.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    size = resolve_size(path, sensor, default=default or SENSOR)
    with hdf5.translate_errors(path, OFFSET):
        offset = int(hdf5.dataset(path, OFFSET, "iu", 0)[()])
    if abs(offset) > LARGEST_OFFSET:
        raise UserError(path, f"{OFFSET} is out of range: {offset}", hdf5.COPY_AGAIN)
    return read_columns(path, hdf5.COLUMNS, "iub", size, offset)
