"""A recording folder of the DDD17 archive (uzh-rpg/ess, datasets/extract_data_tools/example_loader_ddd17.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.arrays import load_array
from tespec.events.readers.records import Records
from tespec.events.readers.sensor import resolve_size
from tespec.events.scans import scan_once
from tespec.events.stream import Events
from tespec.events.time_order import TimeOrder, scan_times

TIMES, EVENTS = "events.dat.t", "events.dat.xyp"
INDEX, IMAGES = "index", "imgs"  # folders: when images were taken, and the images where the archive has them
INDICES = ("index_50ms.npy", "index_10ms.npy", "index_250ms.npy")  # one row per image, in any of them
SENSOR = (260, 346)  # px, DAVIS346
FRAME_PERIOD_US = (10_000, 100_000)  # the archive's is about 33 ms
TICKS_PER_US = (1000, 1)  # times are in ns or in us


class Ddd17Stream:
    """Events of a recording folder, read as they are asked for; see `EventStream`."""

    def __init__(
        self,
        folder: Path,
        times: Records,
        xyp: Records,
        ticks_per_us: int,
        size: tuple[int, int],
    ) -> None:
        self.height, self.width = size
        self._folder, self._xyp, self._ticks_per_us = folder, xyp, ticks_per_us
        self._order = TimeOrder(times, scan_once(folder / TIMES, lambda: scan_times(times)))
        self.count, self.clamped = len(times), self._order.clamped
        self.t_first, self.t_last = self._order.first // ticks_per_us, self._order.last // ticks_per_us

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us).

        Raises:
            UserError: one of them lies outside of the sensor.
        """
        begin, end = (self._order.search(limit * self._ticks_per_us) for limit in (t0, t1))
        xyp = self._xyp[3 * begin : 3 * end].reshape(-1, 3)
        limits = np.array([self.width, self.height, 2])
        if len(xyp) and ((xyp.min(axis=0) < 0) | (xyp.max(axis=0) >= limits)).any():
            size = f"{self.width}x{self.height} px"
            raise UserError(
                self._folder / EVENTS,
                f"has events outside of the {size} sensor",
                "copy it again, or give its true size",
            )
        x, y, p = xyp[:, 0].astype(np.uint16), xyp[:, 1].astype(np.uint16), xyp[:, 2].astype(np.uint8)
        return Events(x, y, self._order.read(begin, end) // self._ticks_per_us, p)


def open_ddd17(folder: Path, height: int | None = None, width: int | None = None) -> Ddd17Stream:
    """Open a recording folder; its times are read through once, and the events stay on disk.

    Args:
        folder: of the recording.
        height: rows of the sensor in px; default: what `dataset.json` beside the folder says, else 260.
        width: columns of the sensor, likewise; else 346.

    Raises:
        UserError: a file is missing, empty, truncated or does not fit the others.
    """
    sizes = {}
    for name in (TIMES, EVENTS):
        if not (folder / name).is_file():
            raise UserError(folder / name, "no such file", "give a recording folder of the DDD17 archive")
        sizes[name] = (folder / name).stat().st_size
        if not sizes[name]:
            raise UserError(folder / name, "the file is empty", "copy it again")
    count, rest = divmod(sizes[TIMES], 8)
    if rest:
        raise UserError(folder / TIMES, f"truncated: {rest} bytes after the last whole time", "copy it again")
    value_bytes, rest = divmod(sizes[EVENTS], 3 * count)
    if rest or value_bytes not in (1, 2):
        wanted = f"{6 * count} (or {3 * count})"
        what = f"has {sizes[EVENTS]} bytes, not the {wanted} of {count} events in {TIMES}"
        raise UserError(folder / EVENTS, what, "copy both files again")
    times = Records(folder / TIMES, np.dtype("<i8"), 0, count)
    xyp = Records(folder / EVENTS, np.dtype("<i2" if value_bytes == 2 else "u1"), 0, 3 * count)
    sensor = resolve_size(folder, height, width, default=SENSOR)
    return Ddd17Stream(folder, times, xyp, _ticks_per_us(folder, _index(folder)[:, 0]), sensor)


def image_index(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When the images were taken.

    Returns:
        times (images,) int64 in us, and the index (images,) int64 of the first event after each.

    Raises:
        UserError: there is no index, or its times are not those of a camera.
    """
    rows = _index(folder)
    return rows[:, 0] // _ticks_per_us(folder, rows[:, 0]), rows[:, 1]


def _index(folder: Path) -> NDArray[np.int64]:
    for name in INDICES:
        path = folder / INDEX / name
        if not path.is_file():
            continue
        rows = load_array(path)
        if rows.ndim != 2 or rows.shape[1] != 3 or len(rows) < 2:
            raise UserError(path, f"has shape {rows.shape} instead of (images, 3)", "copy it again")
        if rows.dtype.kind not in "iuf" or not np.isfinite(rows).all():
            raise UserError(path, "holds other things than numbers", "copy it again")
        return rows.astype(np.int64)
    raise UserError(folder / INDEX, "holds none of " + ", ".join(INDICES), "copy the folder again")


def _ticks_per_us(folder: Path, stamps: NDArray[np.int64]) -> int:
    spacing = float(np.median(np.diff(stamps)))
    for ticks in TICKS_PER_US:
        if FRAME_PERIOD_US[0] <= spacing / ticks <= FRAME_PERIOD_US[1]:
            return ticks
    what = f"images are {spacing:g} ticks apart, which is 10 to 100 ms neither in ns nor in us"
    raise UserError(folder / INDEX, what, "copy the folder again")
