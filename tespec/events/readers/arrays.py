"""Arrays in `.npy` and `.npz` files, recordings stored as such arrays, and the conversion of columns to events."""

import math
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import OFF_SENSOR, Events, Reader, read_rows, resolve_size

# Raised by NumPy on a damaged header, which it parses as Python code, and on a damaged archive.
DAMAGED = (ValueError, EOFError, OSError, SyntaxError, TokenError, OverflowError, MemoryError, TypeError, Warning)
DAMAGED_ARCHIVE = (*DAMAGED, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError)
BLOCK = 1 << 18  # events per chunk
LARGEST_ARRAY = 1 << 30  # bytes of an array that is read whole; a recording is read in chunks
WHOLE_SECONDS = 1000  # float times that span this or more, all whole numbers, cannot be in seconds
LATEST_US = 1e17  # since 1970: the year 5138
COARSEST_US = 1000  # resolution of float times; the shortest bins last 3000 us
AGAIN = "copy it again"
NAMES = {"x": "x", "y": "y", "p": "p", "pol": "p", "polarity": "p", "on": "p"}
NAMES |= dict.fromkeys(("t", "ts", "time", "timestamp", "timestamps"), "t")
MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}  # in units that the name of a column of times may end with


def load_array(path: Path) -> NDArray[Any]:
    """Load the array in a `.npy` file, without pickles."""
    with _refuse_damaged(path, ".npy"), path.open("rb") as file:
        _read_header(file, path.stat().st_size)
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def load_arrays(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """Load named arrays of a `.npz` file, without pickles, of at most 1 GiB each."""
    arrays = []
    with _refuse_damaged(path, ".npz"), zipfile.ZipFile(path) as archive:
        _require_names(path, archive, names)
        for name in names:
            with _open_member(archive, name) as (file, header):
                if header.nbytes > LARGEST_ARRAY:
                    what = f"its array {name} takes {header.nbytes / 2**30:,.1f} GiB"
                    raise UserError(path, what, f"give one of at most {LARGEST_ARRAY >> 30} GiB")
                file.seek(0)
                arrays.append(np.lib.format.read_array(file, allow_pickle=False))
    return arrays


@contextmanager
def _refuse_damaged(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except DAMAGED_ARCHIVE as error:
        what = f"not a readable {kind} file" if path.exists() else "no such file"
        raise UserError(path, what, AGAIN) from error


def _require_names(path: Path, archive: zipfile.ZipFile, names: Sequence[str]) -> None:
    if not {f"{name}.npy" for name in names} <= set(archive.namelist()):
        raise UserError(path, f"lacks one of the arrays {', '.join(names)}", "give a file with all of them")


@contextmanager
def _open_member(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[IO[bytes], NDArray[Any]]]:
    """Open an array of a `.npz` file at its first element; see `_read_header`."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others need memory that is not bounded
        raise ValueError("not compressed by NumPy")
    with archive.open(entry) as file:
        yield file, _read_header(file, entry.file_size)


def _read_header(file: IO[bytes], size: int) -> NDArray[Any]:
    """Read the header of a `.npy` file of `size` bytes; return an array of its shape and dtype without its values."""
    first = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject or file.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError("truncated, or pickled")
    return np.broadcast_to(np.empty((), dtype), shape)


def reads(path: Path) -> bool:
    """Whether a file is named `.npz`, or is a `.npy` file of structured events."""
    if path.suffix.lower() == ".npz":
        return path.is_file()
    return path.suffix.lower() == ".npy" and path.is_file() and _has_event_fields(path)


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.npz` file of arrays, or a `.npy` file of structured events, with the names in `find_columns`.

    For the values see `as_events`, for the size `tespec.events.readers`.
    """
    if path.suffix.lower() == ".npy":
        return _open_structured(path, sensor, default)
    headers = []
    with _refuse_damaged(path, ".npz"), zipfile.ZipFile(path) as archive:
        names, unit = find_columns(_array_names(archive)) or (["x", "y", "t", "p"], None)
        _require_names(path, archive, names)
        for name in names:
            with _open_member(archive, name) as (_, header):
                headers.append(header)
    require_columns(path, headers)
    size, count = resolve_size(path, sensor, default=default), len(headers[2])

    def chunks() -> Iterator[Events]:
        with ExitStack() as stack:
            with _refuse_damaged(path, ".npz"):
                archive = stack.enter_context(zipfile.ZipFile(path))
                files = [stack.enter_context(_open_member(archive, name))[0] for name in names]
            for begin in range(0, count, BLOCK):
                columns = []
                with _refuse_damaged(path, ".npz"):
                    for file, header in zip(files, headers, strict=True):
                        length = min(BLOCK, count - begin)
                        content = file.read(length * header.itemsize)
                        columns.append(np.frombuffer(content, header.dtype, length))
                yield as_events(path, *columns, unit=unit)

    return Reader(path, *size, count, chunks)


def _open_structured(path: Path, sensor: Size | None, default: Size | None) -> Reader:
    """Open a `.npy` file of structured events, as `numpy.save` writes those of Metavision, expelliarmus or tonic."""
    with _refuse_damaged(path, ".npy"), path.open("rb") as file:
        header = _read_header(file, path.stat().st_size)
        offset = file.tell()
    names, unit = find_columns(header.dtype.names or ()) or (["x", "y", "t", "p"], None)
    require_columns(path, [header[name] for name in names])
    size, count = resolve_size(path, sensor, default=default), len(header)

    def chunks() -> Iterator[Events]:
        for rows in read_rows(path, header.dtype, offset, count, BLOCK):
            yield as_events(path, *(rows[name] for name in names), unit=unit)

    return Reader(path, *size, count, chunks)


def _has_event_fields(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return find_columns(_read_header(file, path.stat().st_size).dtype.names or ()) is not None
    except DAMAGED:
        return False


def _array_names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def holds_events(path: Path) -> bool:
    """Whether a `.npz` file has the arrays of a recording, or is too damaged to tell."""
    try:
        with zipfile.ZipFile(path) as archive:
            return find_columns(_array_names(archive)) is not None
    except DAMAGED_ARCHIVE:
        return True


def find_columns(names: Collection[str]) -> tuple[list[str], float | None] | None:
    """Find the columns of events among the names of columns; None unless there is exactly one for each of x, y, t, p.

    Names are x, y, p, pol, polarity, on, t, ts, time, timestamp or timestamps, in any case; columns with exactly the
    names x, y, t or p go first. The name of t may end with its unit: t_us, timestamp [s].

    Returns:
        The names of x, y, t and p, and the microseconds in one unit of t if its name gives the unit.
    """
    found: dict[str, str] = {}
    unit = None
    for name in names:
        match = re.fullmatch(r"\s*([a-z]+?)(?:[ _([]+([mun]?s)[)\]]*)?\s*", name.lower())
        column = NAMES.get(match[1]) if match else None
        if column is None or (column in names and name != column):
            continue
        if column in found:
            return None
        found[column] = name
        if match and column == "t" and match[2]:
            unit = MICROSECONDS[match[2]]
    return ([found[column] for column in "xytp"], unit) if len(found) == 4 else None


def require_columns(path: Path, columns: Sequence[NDArray[Any]]) -> None:
    """Refuse columns x, y, t and p unless they are numbers of shape (N,)."""
    if any(column.shape != (columns[2].size,) or column.dtype.kind not in "biuf" for column in columns):
        found = ", ".join(f"{column.dtype} {column.shape}" for column in columns)
        raise UserError(path, f"its x, y, t, p are {found}", "give four numeric arrays of shape (N,)")


def as_events(
    path: Path, x: NDArray[Any], y: NDArray[Any], t: NDArray[Any], p: NDArray[Any], *, unit: float | None = None
) -> Events:
    """Convert columns of a file to events.

    Args:
        path: File that the columns come from, for messages.
        x: Columns in px (N,), N > 0, whole numbers of any dtype. What does not fit uint16 becomes `OFF_SENSOR`.
        y: Rows in px (N,), as x.
        t: Times (N,): integers in us or floats in s, unless `unit` is given.
        p: Polarities (N,): 0 and 1, -1 and 1, or bool, of any dtype.
        unit: Microseconds in one unit of t.

    Raises:
        UserError: For anything else, and for float times whose resolution is coarser than 1 ms.
    """
    require_columns(path, (x, y, t, p))
    columns, rows = _as_pixels(path, "x", x), _as_pixels(path, "y", y)
    off = -1 if p.min() < 0 else 0
    if not ((p == 1) | (p == off)).all():
        what = f"has invalid polarities from {p.min()} to {p.max()}"
        raise UserError(path, what, "write them as 0 and 1, or as -1 and 1")
    return Events(columns, rows, _as_microseconds(path, t, unit), (p > 0).astype(np.uint8))


def _as_pixels(path: Path, name: str, values: NDArray[Any]) -> NDArray[np.uint16]:
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.rint(values))).all():
        raise UserError(path, f"its {name} coordinates are not whole numbers", "give raw pixel coordinates")
    if values.min() >= 0 and values.max() <= OFF_SENSOR:
        return values.astype(np.uint16)
    outside = (values < 0) | (values > OFF_SENSOR)
    pixels = np.where(outside, 0, values).astype(np.uint16)
    pixels[outside] = OFF_SENSOR
    return pixels


def _as_microseconds(path: Path, t: NDArray[Any], unit: float | None) -> NDArray[np.int64]:
    if t.dtype.kind != "f" and unit in (None, 1.0):
        if t.max() > LATEST_US:
            raise UserError(path, f"has an event at {t.max()} us, after the year 5138", "write its times in us")
        return t.astype(np.int64)
    largest = np.abs(t).max()
    scale = unit or 1e6
    if not float(largest) * scale < LATEST_US:
        raise UserError(path, "has invalid times", AGAIN)
    if t.dtype.kind == "f":
        if unit is None and np.ptp(t) >= WHOLE_SECONDS and (t == np.rint(t)).all():
            what = "its times are whole numbers stored as floats, but float times must be in seconds"
            raise UserError(path, what, "write microseconds as integers")
        if (step := float(np.spacing(largest)) * scale) > COARSEST_US:
            what = f"its times are {t.dtype} with a resolution of {step / 1000:,.3g} ms, too coarse for bins of 3 ms"
            raise UserError(path, what, "write them as float64 seconds or as integer microseconds")
    return np.rint(t.astype(np.float64) * scale).astype(np.int64)
