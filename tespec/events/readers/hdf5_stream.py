"""Events of HDF5 recordings by time, whatever their layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.hdf5 import AGAIN, dataset, part, reading, require_plausible
from tespec.events.scans import Scan, scan_once
from tespec.events.stream import Events
from tespec.events.time_order import TimeOrder, scan_times

Column = NDArray[np.integer] | NDArray[np.floating]


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
    found = {name: dataset(path, f"events/{name}", "iub") for name in "xytp"}
    for name, each in found.items():
        require_plausible(path, f"events/{name}", each)
    lengths = {name: len(each) for name, each in found.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise UserError(path, f"its columns have different lengths ({said})", AGAIN)
    return lengths["t"]


def read_columns(path: Path, names: str, begin: int, end: int) -> tuple[NDArray[np.integer], ...]:
    """Parts of the datasets `names` of the group "events", from index `begin` to `end`."""
    return tuple(part(path, f"events/{name}")[begin:end] for name in names)
