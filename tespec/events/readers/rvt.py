"""The HDF5 recordings that uzh-rpg/RVT's preprocessing starts from: x, y, t and p, and sometimes the sensor's size."""

from __future__ import annotations

from pathlib import Path

import h5py

from tespec.core.errors import UserError
from tespec.events.readers.hdf5 import AGAIN, found_within, number_of_events, open_file, part, read_events, reading
from tespec.events.readers.sensor import resolve_size
from tespec.events.stream import Reader


def open_rvt(path: Path, height: int | None = None, width: int | None = None) -> Reader:
    """Open a recording. Polarities may be 0 and 1 or -1 and 1.

    Args:
        path: of the file.
        height: rows of the sensor in px, where the file does not name them.
        width: columns, likewise.

    Raises:
        UserError: damaged or incomplete file, no sensor size, or one that contradicts the file.
    """
    count = number_of_events(path)
    size = resolve_size(path, height, width, _named(path))
    return Reader(path, *size, count, lambda: read_events(path, size, count))


def _named(path: Path) -> tuple[int, int] | None:
    """(height, width) as the file names them."""
    found = []
    for name in ("height", "width"):
        with reading(path, name):
            value = found_within(path, open_file(path), f"events/{name}")
            if not isinstance(value, h5py.Dataset):
                return None
            if value.dtype.kind not in "iu" or value.size != 1:
                raise UserError(path, f"its {name} is {value.dtype} of shape {value.shape}", AGAIN)
            found.append(int(part(path, f"events/{name}")[()].item()))
    return found[0], found[1]
