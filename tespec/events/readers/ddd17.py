"""Folders of DDD17 in the layout of uzh-rpg/ess: two files of events and tables of the times of images."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, read_rows, resolve_size
from tespec.events.readers.arrays import as_events, load_array

EVENTS, TIMES = "events.dat.xyp", "events.dat.t"  # files of a recording
INDEX = "index"  # folder of image times
INDICES = ("index_50ms.npy", "index_10ms.npy", "index_250ms.npy")  # each has one row per image
# of an event: its time, and its x, y and polarity
TICKS, XYP = np.dtype("<i8"), np.dtype(("<i2", (3,)))
BLOCK = 1 << 20  # events per read
FRAME_PERIOD_US = (10_000, 100_000)  # the archive's is about 33 ms
TICKS_PER_US = (1000, 1)  # times are in ns or in us
SENSOR = (260, 346)  # (height, width) in px


def reads(path: Path) -> bool:
    """Whether a folder has one of DDD17's event files."""
    return (path / TIMES).is_file() or (path / EVENTS).is_file()


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a recording folder (uzh-rpg/ess, datasets/extract_data_tools/example_loader_ddd17.py)."""
    for name in (TIMES, EVENTS):
        if not (path / name).is_file():
            raise UserError(
                path / name, "no such file", "give a recording folder of the DDD17 archive"
            )
    times, events = ((path / name).stat().st_size for name in (TIMES, EVENTS))
    count, rest = divmod(times, TICKS.itemsize)
    if rest or not times:
        what = (
            f"truncated: {rest} bytes after the last complete timestamp"
            if rest
            else "the file is empty"
        )
        raise UserError(path / TIMES, what, "copy it again")
    if events != XYP.itemsize * count:
        what = f"has {events} bytes, but the {count} events of {TIMES} need {XYP.itemsize * count}"
        raise UserError(path / EVENTS, what, "copy both files again")
    size = resolve_size(path, sensor, default=default or SENSOR)
    _, _, ticks_per_us = read_index(path)

    def chunks() -> Iterator[Events]:
        rows = (
            read_rows(path / TIMES, TICKS, 0, count, BLOCK),
            read_rows(path / EVENTS, XYP, 0, count, BLOCK),
        )
        for times, xyp in zip(*rows, strict=True):
            x, y, p = xyp.T
            yield as_events(path / EVENTS, x, y, times // ticks_per_us, p)

    return Reader(path, *size, count, chunks, f"1/{ticks_per_us} us")


def read_index(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Time in us of each of a recording's images, index of the first event after it, and ticks of its clock per us."""
    path = next(
        (folder / INDEX / name for name in INDICES if (folder / INDEX / name).is_file()), None
    )
    if path is None:
        raise UserError(
            folder / INDEX, "holds none of " + ", ".join(INDICES), "copy the folder again"
        )
    rows = load_array(path)
    if (
        rows.ndim != 2
        or rows.shape[1] != 3
        or len(rows) < 2
        or rows.dtype.kind not in "iuf"
        or np.isnan(rows).any()
    ):
        raise UserError(
            path, f"is {rows.dtype} of shape {rows.shape}, not numbers (images, 3)", "copy it again"
        )
    rows = rows.astype(np.int64)
    spacing, (shortest, longest) = float(np.median(np.diff(rows[:, 0]))), FRAME_PERIOD_US
    ticks = next((ticks for ticks in TICKS_PER_US if shortest <= spacing / ticks <= longest), None)
    if ticks is None:
        what = f"images are {spacing:g} ticks apart, which is not 10 to 100 ms in ns or us"
        raise UserError(folder / INDEX, what, "copy the folder again")
    return rows[:, 0] // ticks, rows[:, 1], ticks
