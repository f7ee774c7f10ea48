"""Arrays in `.npy` and `.npz` files, and recordings stored as arrays in a `.npz` file."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import regular_file
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, resolve_size

# Raised by NumPy on a damaged header, which it parses as Python code, and on a damaged archive.
DAMAGED = (ValueError, EOFError, OSError, SyntaxError, TokenError, OverflowError, MemoryError, TypeError, Warning)
DAMAGED_ARCHIVE = (*DAMAGED, zipfile.BadZipFile, zlib.error, RuntimeError)
BLOCK = 1 << 18  # events per chunk
WHOLE_SECONDS = 1000  # float times that span this or more, all whole numbers, cannot be in seconds
AGAIN = "copy it again"


def load_array(path: Path) -> NDArray[Any]:
    """Load the array in a `.npy` file, without pickles."""
    try:
        with regular_file(path).open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except DAMAGED as error:
        raise UserError(path, "not a readable .npy file", AGAIN) from error


def _without_content(file: Any, size: int) -> NDArray[Any]:
    """Return an array of the shape and dtype in the header of a `.npy` file of `size` bytes, with arbitrary values."""
    first = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    array = np.broadcast_to(np.empty((), dtype), shape)
    if file.tell() + array.nbytes != size:
        raise ValueError("truncated")
    return array


def load_arrays(path: Path, names: Sequence[str], content: bool = True) -> list[NDArray[Any]]:
    """Load named arrays of a `.npz` file, without pickles; if not `content`, only shapes and dtypes are read."""
    arrays = []
    try:
        with zipfile.ZipFile(regular_file(path)) as archive:
            for name in names:
                with archive.open(entry := archive.getinfo(f"{name}.npy")) as file:
                    whole = np.lib.format.read_array(file, allow_pickle=False) if content else None
                    arrays.append(_without_content(file, entry.file_size) if whole is None else whole)
    except KeyError as error:
        raise UserError(path, f"lacks one of the arrays {', '.join(names)}", "give a file with all of them") from error
    except DAMAGED_ARCHIVE as error:
        what = "not a readable .npz file" if path.exists() else "no such file"
        raise UserError(path, what, AGAIN) from error
    return arrays


def reads(path: Path) -> bool:
    """Whether a file is named as one."""
    return path.suffix.lower() == ".npz" and path.is_file()


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.npz` file of arrays x, y, t, p (N,) as in `as_events`; see `tespec.events.readers`."""
    columns = load_arrays(path, "xytp", content=False)
    if any(column.shape != (columns[2].size,) or column.dtype.kind not in "biuf" for column in columns):
        found = ", ".join(f"{column.dtype} {column.shape}" for column in columns)
        raise UserError(path, f"its x, y, t, p are {found}", "give four numeric arrays of shape (N,)")
    size, count = resolve_size(path, sensor, default=default), columns[2].size

    def chunks() -> Iterator[Events]:
        loaded = load_arrays(path, "xytp")
        for begin in range(0, count, BLOCK):
            yield as_events(path, size, *(column[begin : begin + BLOCK] for column in loaded))

    return Reader(path, *size, count, chunks)


def holds_events(path: Path) -> bool:
    """Whether a `.npz` file has the arrays of a recording, or is too damaged to tell."""
    try:
        with zipfile.ZipFile(regular_file(path)) as archive:
            return {f"{name}.npy" for name in "xytp"} <= set(archive.namelist())
    except DAMAGED_ARCHIVE:
        return True


def as_events(
    path: Path, size: tuple[int, int], x: NDArray[Any], y: NDArray[Any], t: NDArray[Any], p: NDArray[Any]
) -> Events:
    """Convert columns (N,) of a file, N > 0, to events of a sensor of `size` (height, width) in px.

    x and y are whole numbers of any dtype; t is integers in us or floats in s; p is 0 and 1, -1 and 1, or bool, of any
    dtype. Anything else raises a `UserError`.
    """
    for name, values, limit in (("x", x, size[1]), ("y", y, size[0])):
        if not (values.min() >= 0 and values.max() < limit):
            what = f"has {name} from {values.min()} to {values.max()} on a sensor of {size[1]}x{size[0]} px"
            raise UserError(path, what, "copy it again, or correct the sensor size")
        if values.dtype.kind == "f" and (values != np.rint(values)).any():
            raise UserError(path, f"its {name} coordinates are not whole numbers", "give raw pixel coordinates")
    low, high = p.min(), p.max()
    between = (p != np.rint(p)).any() if p.dtype.kind == "f" else low == -1 and (p == 0).any()
    if not -1 <= low <= high <= 1 or between:
        raise UserError(path, f"has invalid polarities from {low} to {high}", "write them as 0 and 1, or as -1 and 1")
    if t.dtype.kind == "f":
        if not (np.abs(t) < 1e11).all():  # the year 5138
            raise UserError(path, "has invalid times", AGAIN)
        if np.ptp(t) >= WHOLE_SECONDS and (t == np.rint(t)).all():
            what = "its times are whole numbers stored as floats, but float times must be in seconds"
            raise UserError(path, what, "write microseconds as integers")
        t = np.rint(t.astype(np.float64) * 1e6)
    return Events(x.astype(np.uint16), y.astype(np.uint16), t.astype(np.int64), (p > 0).astype(np.uint8))
