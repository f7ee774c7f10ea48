"""A recording folder of the DDD17 archive (uzh-rpg/ess, datasets/extract_data_tools/example_loader_ddd17.py)."""

from __future__ import annotations

import json
from bisect import bisect_left
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.errors import UserError
from tespec.events.stream import Events

TIMES, EVENTS = "events.dat.t", "events.dat.xyp"
INDICES = ("index_50ms.npy", "index_10ms.npy", "index_250ms.npy")  # one row per image, in any of them
SENSOR = (260, 346)  # px, DAVIS346
FRAME_PERIOD = (0.010, 0.100)  # s; the archive's is about 0.033
UNITS = {"ns": 1_000_000_000, "us": 1_000_000, "ms": 1_000}


class Ddd17Stream:
    """Events of a recording folder, memory-mapped; see `EventStream`."""

    def __init__(
        self, times: NDArray[np.int64], xyp: NDArray[np.integer], per_second: int, size: tuple[int, int]
    ) -> None:
        self.height, self.width = size
        self.count, self.clamped = len(times), 0
        self._times, self._xyp, self._per_us = times, xyp, per_second / 1_000_000
        self.t_first, self.t_last = (self._us(times[0]), self._us(times[-1])) if self.count else (0, 0)

    def _us(self, time: np.int64) -> int:
        return int(time // self._per_us)

    def slice(self, t0: int, t1: int) -> Events:
        """Events with t0 <= t < t1 (us)."""
        begin, end = (bisect_left(self._times, round(limit * self._per_us)) for limit in (t0, t1))
        xyp = np.asarray(self._xyp[begin:end])
        x, y, p = xyp[:, 0].astype(np.uint16), xyp[:, 1].astype(np.uint16), xyp[:, 2].astype(np.uint8)
        if len(x) and (int(x.max()) >= self.width or int(y.max()) >= self.height or int(p.max()) > 1):
            raise UserError(EVENTS, f"events outside of the {self.width}x{self.height} px sensor", "copy it again")
        return Events(x, y, (self._times[begin:end] // self._per_us).astype(np.int64), p)


def open_ddd17(folder: Path, height: int | None = None, width: int | None = None) -> Ddd17Stream:
    """Open a recording folder.

    The sensor's size is the one given, else the one that `dataset.json` beside the folder names, else 260x346 px. The
    unit of time is the one in which images are 10 to 100 ms apart.

    Raises:
        UserError: a file is missing, empty, truncated or does not fit the others.
    """
    for name in (TIMES, EVENTS):
        if not (folder / name).is_file():
            raise UserError(folder / name, "no such file", "give a recording folder of the DDD17 archive")
    size = (folder / TIMES).stat().st_size
    if not size:
        raise UserError(folder / TIMES, "the file is empty", "copy it again")
    if size % 8:
        raise UserError(folder / TIMES, "truncated: not a whole number of 8-byte times", "copy it again")
    count = size // 8
    width_of_value, rest = divmod((folder / EVENTS).stat().st_size, 3 * count)
    if rest or width_of_value not in (1, 2):
        found = (folder / EVENTS).stat().st_size
        wanted = f"{6 * count} bytes for {count} events"
        raise UserError(folder / EVENTS, f"has {found} bytes instead of {wanted}", "copy both event files again")
    times = np.memmap(folder / TIMES, np.int64, mode="r", shape=(count,))
    xyp = np.memmap(folder / EVENTS, np.int16 if width_of_value == 2 else np.uint8, mode="r", shape=(count, 3))
    sensor = (height, width) if height is not None and width is not None else _sensor(folder)
    return Ddd17Stream(times, xyp, _ticks_per_second(folder), sensor)


def image_index(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Times of the images in us, and the index of the first event after each.

    Raises:
        UserError: there is no index, or its times are not those of a camera.
    """
    rows = _index(folder)
    per_us = _ticks_per_second(folder) / 1_000_000
    return (rows[:, 0] // per_us).astype(np.int64), rows[:, 1]


def _index(folder: Path) -> NDArray[np.int64]:
    for name in INDICES:
        path = folder / "index" / name
        if not path.is_file():
            continue
        try:
            rows = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise UserError(path, "not a readable index", "copy it again") from error
        if rows.ndim != 2 or rows.shape[1] != 3 or len(rows) < 2:
            raise UserError(path, f"has shape {rows.shape} instead of (images, 3)", "copy it again")
        return rows.astype(np.int64)
    raise UserError(folder / "index", "holds none of " + ", ".join(INDICES), "copy the folder again")


def _ticks_per_second(folder: Path) -> int:
    spacing = float(np.median(np.diff(_index(folder)[:, 0])))
    for ticks in UNITS.values():
        if FRAME_PERIOD[0] <= spacing / ticks <= FRAME_PERIOD[1]:
            return ticks
    raise UserError(
        folder / "index", f"images are {spacing:g} ticks apart, in no unit 10 to 100 ms", "check the archive"
    )


def _sensor(folder: Path) -> tuple[int, int]:
    facts = folder.parent / "dataset.json"
    if not facts.is_file():
        return SENSOR
    try:
        sensor = json.loads(facts.read_text())["sensor"]
        return int(sensor["height"]), int(sensor["width"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UserError(facts, "does not name the sensor's size", "remove it or write it again") from error
