"""MVSEC's `_data.hdf5`: events of the left camera, one row each."""

from collections.abc import Iterator
from pathlib import Path

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, resolve_size
from tespec.events.readers.arrays import as_events
from tespec.events.readers.hdf5 import COPY_AGAIN, SUFFIXES, dataset, has_datasets, read_slices

EVENTS = "davis/left/events"
SENSOR = (260, 346)  # (height, width) in px


def reads(path: Path) -> bool:
    """Whether an HDF5 file has MVSEC's events of the left camera."""
    return path.suffix.lower() in SUFFIXES and has_datasets(path, EVENTS)


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `_data.hdf5` file: float64 rows of x, y, time in s since 1970, polarity -1 or 1.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    shape = dataset(path, EVENTS, "f", 2).shape
    if shape[1] != 4:
        raise UserError(path, f"{EVENTS} has the shape {shape} instead of (events, 4)", COPY_AGAIN)
    size = resolve_size(path, sensor, default=default or SENSOR)

    def chunks() -> Iterator[Events]:
        for (rows,) in read_slices(path, EVENTS):
            yield as_events(path, *rows.T)

    return Reader(path, *size, shape[0], chunks)
