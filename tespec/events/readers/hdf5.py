"""What readers of HDF5 recordings share: opening without trust, and events by time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that official files are compressed with
import numpy as np
from numpy.typing import NDArray

from tespec.errors import UserError
from tespec.events.scans import Scan, scan_once
from tespec.events.stream import Events
from tespec.events.time_order import TimeOrder, scan_times

OPEN_FILES = 32
CHUNK_CACHE = 1 << 24  # bytes for each dataset: successive windows read the same chunk
SUFFIXES = (".h5", ".hdf5")
DAMAGED = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
AGAIN = "copy it again"
Column = NDArray[np.integer] | NDArray[np.floating]


@lru_cache(maxsize=OPEN_FILES)
def _opened(path: Path, process: int) -> h5py.File:
    return h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE)


def open_file(path: Path) -> h5py.File:
    """The open file; each process has its own, since forked ones cannot share it.

    Raises:
        UserError: the file is missing or no HDF5 file.
    """
    try:
        return _opened(path, os.getpid())
    except FileNotFoundError as error:
        raise UserError(path, "no such file", "check the path") from error
    except PermissionError as error:
        raise UserError(path, "cannot be read (no permission)", "change its permissions") from error
    except DAMAGED as error:
        raise UserError(path, "not a whole HDF5 file", AGAIN) from error


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn what HDF5 raises on damaged content into one line that names `what` of the file.

    Raises:
        UserError: something was raised.
    """
    try:
        yield
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(path, f"{what} cannot be read", AGAIN) from error


def dataset(path: Path, name: str, kinds: str, dimensions: int = 1) -> h5py.Dataset:
    """A dataset of a file, of the dtype and shape that it should have.

    Args:
        path: of the file.
        name: of the dataset.
        kinds: letters of the dtypes it may have, as in `numpy.dtype.kind`.
        dimensions: number of its axes.

    Raises:
        UserError: it is missing or of another kind.
    """
    file = open_file(path)
    with reading(path, name):
        found = file.get(name)
        if not isinstance(found, h5py.Dataset):
            raise UserError(path, f"has no dataset {name}", "give a whole recording")
        if found.dtype.kind not in kinds or found.ndim != dimensions:
            raise UserError(path, f"{name} is {found.dtype} of shape {found.shape}, not what it should be", AGAIN)
        _check_codecs(path, name, found)
    return found


def _check_codecs(path: Path, name: str, found: h5py.Dataset) -> None:
    created = found.id.get_create_plist()
    for number in range(created.get_nfilters()):
        code, _, _, called = created.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            what = f"{name} is compressed by filter {code} ({called.decode('ascii', 'replace')}), which is not at hand"
            raise UserError(path, what, "install its HDF5 plugin, or copy the file again")


def recording_kind(path: Path) -> str | None:
    """Which recording an HDF5 file is: "dsec", "rvt", "mvsec", or None if it is none; never raises."""
    try:
        with h5py.File(path, "r") as file:
            if "davis/left/events" in file:
                return "mvsec"
            if all(f"events/{name}" in file for name in "xytp"):
                return "dsec" if "t_offset" in file or "ms_to_idx" in file else "rvt"
    except DAMAGED:
        pass
    return None


class H5Stream:
    """Events of an HDF5 file, read as they are asked for; see `EventStream`.

    Args:
        path: of the file.
        count: number of events.
        size: (height, width) of the sensor in px.
        times: reads times (N,) integers in us, of events from one index to another.
        events: reads x, y and polarity, each (N,); polarity may be -1 for 0.
        check: looks further at the file when it is scanned for the first time.

    Raises:
        UserError: the file holds no events, or its times cannot be read.
    """

    def __init__(
        self,
        path: Path,
        count: int,
        size: tuple[int, int],
        times: Callable[[int, int], NDArray[np.integer]],
        events: Callable[[int, int], tuple[Column, ...]],
        check: Callable[[Scan], None] | None = None,
    ) -> None:
        if not count:
            raise UserError(path, "holds no events", "give a recording with events")
        self.height, self.width, self.count = *size, count
        self._path, self._events = path, events
        on_disk = _Times(count, times)

        def scan() -> Scan:
            with reading(path, "the events' times"):
                made = scan_times(on_disk)
            if check is not None:
                check(made)
            return made

        self._order = TimeOrder(on_disk, scan_once(path, scan))
        self.t_first, self.t_last, self.clamped = self._order.first, self._order.last, self._order.clamped

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us).

        Raises:
            UserError: they cannot be read, or one lies outside of the sensor.
        """
        with reading(self._path, "a part of the events"):
            begin, end = self._order.search(t0), self._order.search(t1)
            t = self._order.read(begin, end)
            x, y, p = self._events(begin, end)
        for name, values, limit in (("x", x, self.width), ("y", y, self.height)):
            if len(values) and not (values.min() >= 0 and values.max() < limit):
                what = f"{name} from {values.min()} to {values.max()} on a sensor of {self.width}x{self.height} px"
                raise UserError(self._path, what, "copy it again, or give its true size")
        if len(p) and not (p.min() >= -1 and p.max() <= 1):
            raise UserError(self._path, f"polarities from {p.min()} to {p.max()}", AGAIN)
        return Events(x.astype(np.uint16), y.astype(np.uint16), t, (p > 0).astype(np.uint8))


class _Times:
    """Times by slice, for `TimeOrder`."""

    def __init__(self, count: int, read: Callable[[int, int], NDArray[np.integer]]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> NDArray[np.integer]:
        begin, end, _ = part.indices(self._count)
        return self._read(begin, end)


def columns(path: Path) -> int:
    """Number of events of a file with the datasets x, y, t and p in the group "events".

    Raises:
        UserError: one is missing, of another dtype, or of another length.
    """
    lengths = {name: len(dataset(path, f"events/{name}", "iub")) for name in "xytp"}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise UserError(path, f"its columns have different lengths ({said})", AGAIN)
    return lengths["t"]


def read_columns(path: Path, names: str, begin: int, end: int) -> tuple[NDArray[np.integer], ...]:
    """Parts of the datasets `names` of the group "events", from index `begin` to `end`."""
    file = open_file(path)
    return tuple(np.asarray(file[f"events/{name}"][begin:end]) for name in names)
