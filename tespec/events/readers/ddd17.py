"""A recording folder of the DDD17 archive (uzh-rpg/ess, datasets/extract_data_tools/example_loader_ddd17.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.arrays import load_array
from tespec.events.readers.records import read_records
from tespec.events.readers.sensor import resolve_size
from tespec.events.stream import Events, Reader

TIMES, EVENTS = "events.dat.t", "events.dat.xyp"
INDEX, IMAGES = "index", "imgs"  # folders: when images were taken, and the images where the archive has them
INDICES = ("index_50ms.npy", "index_10ms.npy", "index_250ms.npy")  # one row per image, in any of them
TICKS, XYP = np.dtype("<i8"), np.dtype(("<i2", (3,)))  # of an event: its time, and its x, y and polarity
BLOCK = 1 << 20  # events read together
SENSOR = (260, 346)  # px, DAVIS346
FRAME_PERIOD_US = (10_000, 100_000)  # the archive's is about 33 ms
TICKS_PER_US = (1000, 1)  # times are in ns or in us


def open_ddd17(folder: Path, height: int | None = None, width: int | None = None) -> Reader:
    """Open a recording folder.

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
    count, rest = divmod(sizes[TIMES], TICKS.itemsize)
    if rest:
        raise UserError(folder / TIMES, f"truncated: {rest} bytes after the last whole time", "copy it again")
    if sizes[EVENTS] != XYP.itemsize * count:
        what = f"has {sizes[EVENTS]} bytes, not the {XYP.itemsize * count} of {count} events in {TIMES}"
        raise UserError(folder / EVENTS, what, "copy both files again")
    sensor = resolve_size(folder, height, width, default=SENSOR)
    ticks_per_us = _ticks_per_us(folder, _index(folder)[:, 0])
    limits = np.array([sensor[1], sensor[0], 2])

    def chunks() -> Iterator[Events]:
        columns = ((TIMES, TICKS), (EVENTS, XYP))
        read = (read_records(folder / name, dtype, 0, count, BLOCK) for name, dtype in columns)
        for times, xyp in zip(*read, strict=True):
            if ((xyp.min(axis=0) < 0) | (xyp.max(axis=0) >= limits)).any():
                what = f"has events outside of the {sensor[1]}x{sensor[0]} px sensor"
                raise UserError(folder / EVENTS, what, "copy it again, or give its true size")
            x, y, p = xyp.T
            yield Events(x.astype(np.uint16), y.astype(np.uint16), times, p.astype(np.uint8))

    return Reader(folder, *sensor, count, chunks, ticks_per_us)


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
