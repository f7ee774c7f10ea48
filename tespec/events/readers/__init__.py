"""Readers of event files, one module per format, and the types and helpers that they share.

The function that opens a format takes a path and, for files that do not name their sensor, its size
(height, width) in px or a default size; see `resolve_size`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.description import FILE, described_size
from tespec.core.errors import UserError
from tespec.core.settings import LARGEST, Size, is_size

NO_SIZE = (
    "give --sensor WIDTHxHEIGHT, or store the size in the file's header "
    "(% geometry WIDTHxHEIGHT), or write "
    f'{{"sensor": {{"width": WIDTH, "height": HEIGHT}}}} to a {FILE} next to it'
)

Column = NDArray[np.integer[Any]]
BLOCK = 1 << 16  # events or records read at once, which stay in the CPU cache
OFF_SENSOR = 65_535  # stands for coordinates that do not fit uint16


class Events(NamedTuple):
    """Events: x and y (N,) uint16 in px, t (N,) int64 in us, p (N,) uint8 in {0, 1}."""

    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    t: NDArray[np.int64]
    p: NDArray[np.uint8]


@dataclass(frozen=True)
class Reader:
    """A recording in any format, read sequentially.

    `chunks` iterates over `Events` in file order. They may be outside of the sensor, and their
    times may step back; packing drops the former and corrects the latter, or refuses the recording.
    """

    path: Path
    height: int  # rows of the sensor in px
    width: int  # columns of the sensor in px
    events: int  # number, estimated from the file size if the format does not store it
    chunks: Callable[[], Iterator[Events]]
    unit: str = ""  # of the times in the files, if other files decide it


def check_events(x: Column, y: Column, t: Column, p: Column, height: int, width: int) -> None:
    """Check the columns of events.

    Args:
        x: columns in px.
        y: rows in px.
        t: times in us.
        p: polarities.
        height: rows of the sensor in px.
        width: columns of the sensor in px.

    Raises:
        ValueError: the arrays are not all integers (N,), x or y is off the sensor, or p is not 0
            or 1.
    """
    if not x.shape == y.shape == t.shape == p.shape == (t.size,):
        raise ValueError(
            f"x, y, t and p have the shapes {x.shape}, {y.shape}, {t.shape} and {p.shape}, not (N,)"
        )
    if any(values.dtype.kind not in "iub" for values in (x, y, t, p)):
        raise ValueError(
            f"x, y, t and p are {x.dtype}, {y.dtype}, {t.dtype} and {p.dtype}, not integers"
        )
    for name, values, limit in (("x", x, width), ("y", y, height), ("p", p, 2)):
        signed = values.dtype.kind == "i"
        if values.size and (int(values.max()) >= limit or (signed and int(values.min()) < 0)):
            raise ValueError(f"{name} has values outside of 0 to {limit - 1}")


def resolve_size(
    path: Path, sensor: Size | None, named: Size | None = None, default: Size | None = None
) -> Size:
    """Return a recording's sensor size as (height, width) in px.

    Sources in order: the user, the file, a `dataset.json` above it, the default.

    Args:
        path: the recording.
        sensor: size given by the user.
        named: size in the file.
        default: size if nothing else names it.

    Raises:
        UserError: the size is unknown or invalid, or the user contradicts the file.
    """
    if sensor and named and sensor != named:
        raise UserError(
            path,
            f"its sensor is {named[1]}x{named[0]} px, not {sensor[1]}x{sensor[0]}",
            "omit --sensor",
        )
    size = sensor or named or described_size(path) or default
    if size is None:
        raise UserError(path, "does not specify the sensor's size", NO_SIZE)
    if not is_size(size):
        raise UserError(
            path, f"invalid sensor size {size[1]}x{size[0]} px", f"give 1 to {LARGEST} px per side"
        )
    return size


def rises(t: NDArray[Any]) -> bool:
    """Whether a column (N,) at the start of a file can be times: ten or more that rise.

    At most 1 % of the steps may go back. In columns of other values, it is about half of them.
    """
    return bool(len(t) >= 10 and t[-1] > t[0] and np.mean(np.diff(t) < 0) <= 0.01)


def count_records(path: Path, begin: int, size: int) -> int:
    """Return the number of records, such as events, from a byte of a file to its end.

    Args:
        path: the file.
        begin: first byte of the data.
        size: bytes of a record.
    """
    count, rest = divmod(path.stat().st_size - begin, size)
    if rest:
        raise UserError(
            path, f"truncated: {rest} bytes after the last complete event or word", "copy it again"
        )
    return count


def read_rows(path: Path, dtype: np.dtype[Any], offset: int, count: int) -> Iterator[NDArray[Any]]:
    """Yield the records of a file in blocks.

    Args:
        path: the file.
        dtype: type of a record.
        offset: bytes before the first record.
        count: number of records.
    """
    for begin in range(0, count, BLOCK):
        length = min(BLOCK, count - begin)
        records = np.fromfile(path, dtype, length, offset=offset + begin * dtype.itemsize)
        if len(records) < length:
            raise UserError(path, "has become shorter since it was opened", "copy it again")
        yield records


def record_reader(
    path: Path,
    size: Size,
    dtype: np.dtype[Any],
    begin: int,
    decode: Callable[[NDArray[Any], NDArray[np.int64]], Sequence[Any]],
    state: Sequence[int],
) -> Reader:
    """Return the reader of a file whose records have all the same size.

    Args:
        path: the file.
        size: (height, width) of the sensor in px.
        dtype: type of a record.
        begin: first byte of the records.
        decode: converts records (N,) to x, y, t and p, and updates the state in place.
        state: of the decoder before the first record.
    """
    count = count_records(path, begin, dtype.itemsize)

    def chunks() -> Iterator[Events]:
        current = np.array(state, np.int64)
        for records in read_rows(path, dtype, begin, count):
            yield Events(*decode(records, current))

    return Reader(path, *size, count, chunks)
