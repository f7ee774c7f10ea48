"""Arrays in `.npy` and `.npz` files, recordings as such arrays, and columns as events."""

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
from tespec.core.files import regular_file
from tespec.core.settings import Size
from tespec.events.readers import BLOCK, OFF_SENSOR, Events, Reader, resolve_size

# Raised by NumPy on a damaged header, which it parses as Python code, and on a damaged archive.
DAMAGED = (
    ValueError,
    EOFError,
    OSError,
    SyntaxError,
    TokenError,
    OverflowError,
    MemoryError,
    TypeError,
    Warning,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
)
LARGEST_ARRAY = 1 << 30  # bytes of an array in memory; a recording is read in chunks
WHOLE_SECONDS = 1000  # float times that span this or more, all whole numbers, cannot be in seconds
LATEST_US = 1e17  # since 1970: the year 5138
COARSEST_US = 1000  # resolution of float times; the shortest bins last 3000 us
COPY_AGAIN = "copy it again"
NAMES = {"x": "x", "y": "y", "p": "p", "pol": "p", "polarity": "p", "on": "p"}
NAMES |= dict.fromkeys(("t", "ts", "time", "timestamp", "timestamps"), "t")
# in units that the name of a column of times may end with
MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def load_array(path: Path) -> NDArray[Any]:
    """Load the array in a `.npy` file, without pickles."""
    with _refuse_damaged(path), regular_file(path).open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def load_arrays(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """Load arrays of a `.npz` file, without pickles.

    Args:
        path: the file.
        names: names of the arrays.

    Raises:
        UserError: the file is damaged or lacks an array, or one takes more than 1 GiB.
    """
    arrays = []
    with _refuse_damaged(path, names), zipfile.ZipFile(regular_file(path)) as archive:
        for name in names:
            with _open_member(archive, name) as (file, header):
                if header.nbytes > LARGEST_ARRAY:
                    raise UserError(
                        path,
                        f"its array {name} takes {header.nbytes / 2**30:,.1f} GiB",
                        f"give one of at most {LARGEST_ARRAY >> 30} GiB",
                    )
                file.seek(0)
                arrays.append(np.lib.format.read_array(file, allow_pickle=False))
    return arrays


@contextmanager
def _refuse_damaged(path: Path, names: Sequence[str] = ()) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise UserError(
            path, f"lacks one of the arrays {', '.join(names)}", "give a file with all of them"
        ) from error
    except DAMAGED as error:
        what = f"not a readable {path.suffix.lower()} file" if path.exists() else "no such file"
        raise UserError(path, what, COPY_AGAIN) from error


@contextmanager
def _open_member(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[IO[bytes], NDArray[Any]]]:
    """Open an array of a `.npz` file at its first element; see `_read_header`."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):  # others need memory that is not bounded
        raise ValueError("not compressed by NumPy")
    with archive.open(entry) as file:
        yield file, _read_header(file, entry.file_size)


def _read_header(file: IO[bytes], size: int) -> NDArray[Any]:
    """Return an array of the shape and dtype in the header of a `.npy` file of `size` bytes.

    It takes no memory: all its elements are the same one.
    """
    if np.lib.format.read_magic(file) == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject or file.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError("truncated, or pickled")
    return np.broadcast_to(np.empty((), dtype), shape)


def reads(path: Path) -> bool:
    """Whether a file is named `.npz`, or is a `.npy` file of structured events."""
    suffix = path.suffix.lower()
    return (
        suffix in (".npz", ".npy") and path.is_file() and (suffix == ".npz" or holds_events(path))
    )


def holds_events(path: Path) -> bool:
    """Whether a `.npz` file has the arrays, or a `.npy` file the fields, of a recording.

    True for a `.npz` file that is too damaged to tell.
    """
    try:
        return find_columns(_names_in(path)) is not None
    except DAMAGED:
        return path.suffix.lower() == ".npz"


def _names_in(path: Path) -> Collection[str]:
    if path.suffix.lower() == ".npz":
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    with path.open("rb") as file:
        return _read_header(file, path.stat().st_size).dtype.names or ()


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.npz` file of arrays, or a `.npy` file of structured events.

    Their names are those of `find_columns`, their values those of `as_events`.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    with _refuse_damaged(path, "xytp"):
        names, unit = find_columns(_names_in(path)) or (["x", "y", "t", "p"], None)
        with _open_arrays(path, names) as files:
            headers = _columns([header for _, header in files], names)
    _check_columns(path, headers)
    size = resolve_size(path, sensor, default=default)
    count = len(headers[2])

    def chunks() -> Iterator[Events]:
        with _refuse_damaged(path), _open_arrays(path, names) as files:
            for begin in range(0, count, BLOCK):
                length = min(BLOCK, count - begin)
                arrays = [
                    np.frombuffer(file.read(length * header.itemsize), header.dtype, length)
                    for file, header in files
                ]
                yield as_events(path, *_columns(arrays, names), unit=unit)

    return Reader(path, *size, count, chunks)


@contextmanager
def _open_arrays(
    path: Path, names: Sequence[str]
) -> Iterator[list[tuple[IO[bytes], NDArray[Any]]]]:
    """Open the named arrays of a `.npz` file, or the one of a `.npy` file, with their headers."""
    with ExitStack() as stack:
        if path.suffix.lower() == ".npz":
            archive = stack.enter_context(zipfile.ZipFile(path))
            yield [stack.enter_context(_open_member(archive, name)) for name in names]
        else:
            file = stack.enter_context(path.open("rb"))
            yield [(file, _read_header(file, path.stat().st_size))]


def _columns(arrays: list[NDArray[Any]], names: Sequence[str]) -> list[NDArray[Any]]:
    """Columns x, y, t and p: the arrays, or the fields of the only one."""
    return arrays if len(arrays) == 4 else [arrays[0][name] for name in names]


def find_columns(names: Collection[str]) -> tuple[list[str], float | None] | None:
    """Find the columns of events by their names; None unless exactly one is x, y, t and p.

    Names are x, y, p, pol, polarity, on, t, ts, time, timestamp or timestamps, in any case; columns
    with exactly the names x, y, t or p go first. The name of t may end with its unit: t_us,
    timestamp [s].

    Returns:
        The names of x, y, t and p, and the microseconds in one unit of t if its name gives the
        unit.
    """
    columns: dict[str, str] = {}
    unit = None
    for name in names:
        match = re.fullmatch(r"\s*([a-z]+?)(?:[ _([]+([mun]?s)[)\]]*)?\s*", name.lower())
        column = NAMES.get(match[1]) if match else None
        if column is None or (column in names and name != column):
            continue
        if column in columns:
            return None
        columns[column] = name
        if match and column == "t" and match[2]:
            unit = MICROSECONDS[match[2]]
    return ([columns[column] for column in "xytp"], unit) if len(columns) == 4 else None


def _check_columns(path: Path, columns: Sequence[NDArray[Any]]) -> None:
    """Refuse columns x, y, t and p unless they are numbers of shape (N,)."""
    shape = (columns[2].size,)
    if any(column.shape != shape or column.dtype.kind not in "biuf" for column in columns):
        types = ", ".join(f"{column.dtype} {column.shape}" for column in columns)
        raise UserError(
            path, f"its x, y, t, p are {types}", "give four numeric arrays of shape (N,)"
        )


def as_events(
    path: Path,
    x: NDArray[Any],
    y: NDArray[Any],
    t: NDArray[Any],
    p: NDArray[Any],
    *,
    unit: float | None = None,
) -> Events:
    """Convert columns of a file to events.

    Args:
        path: File that the columns come from, for messages.
        x: Columns in px (N,), N > 0, integral numbers of any dtype. Those that do not fit uint16
            become `OFF_SENSOR`.
        y: Rows in px (N,), as x.
        t: Times (N,): integers in us or floats in s, unless `unit` is given.
        p: Polarities (N,): 0 and 1, -1 and 1, or bool, of any dtype.
        unit: Microseconds in one unit of t.

    Raises:
        UserError: For anything else, and for float times whose resolution is coarser than 1 ms.
    """
    _check_columns(path, (x, y, t, p))
    columns, rows = _as_pixels(path, "x", x), _as_pixels(path, "y", y)
    off = -1 if p.min() < 0 else 0
    if not ((p == 1) | (p == off)).all():
        raise UserError(
            path,
            f"has invalid polarities from {p.min()} to {p.max()}",
            "write them as 0 and 1, or as -1 and 1",
        )
    return Events(columns, rows, _as_microseconds(path, t, unit), (p > 0).astype(np.uint8))


def _as_pixels(path: Path, name: str, values: NDArray[Any]) -> NDArray[np.uint16]:
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.rint(values))).all():
        raise UserError(
            path, f"its {name} coordinates are not whole numbers", "give raw pixel coordinates"
        )
    if values.min() >= 0 and values.max() <= OFF_SENSOR:
        return values.astype(np.uint16)
    outside = (values < 0) | (values > OFF_SENSOR)
    return np.where(outside, OFF_SENSOR, np.where(outside, 0, values).astype(np.uint16))


def _as_microseconds(path: Path, t: NDArray[Any], unit: float | None) -> NDArray[np.int64]:
    floats = t.dtype.kind == "f"
    scale = unit or (1e6 if floats else 1.0)
    largest = max(float(t.max()), -float(t.min()))
    if not (largest * scale < LATEST_US and largest < 2**63):
        raise UserError(
            path,
            f"has invalid times of up to {largest * scale:,.3g} us",
            f"{COPY_AGAIN}, or write its times as integers in microseconds",
        )
    if floats and unit is None and np.ptp(t) >= WHOLE_SECONDS and (t == np.rint(t)).all():
        raise UserError(
            path,
            "its times are whole numbers stored as floats, but float times must be in seconds",
            "write microseconds as integers",
        )
    if floats and (step := float(np.spacing(t.dtype.type(largest))) * scale) > COARSEST_US:
        raise UserError(
            path,
            f"its times are {t.dtype} with a resolution of {step / 1000:,.1f} ms, "
            "too coarse for bins of 3 ms",
            "write them as float64 seconds or as integer microseconds",
        )
    if floats:
        return np.rint(t.astype(np.float64) * scale).astype(np.int64)
    times = t.astype(np.int64)
    return times * int(scale) if scale >= 1 else times // round(1 / scale)
