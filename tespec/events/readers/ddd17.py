"""Folders of DDD17 in the layout of uzh-rpg/ess: two files of events, and times of images."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, count_records, read_rows, resolve_size
from tespec.events.readers.arrays import as_events, load_array

EVENTS, TIMES = "events.dat.xyp", "events.dat.t"  # files of a recording
INDEX = "index"  # folder of image times
INDICES = ("index_50ms.npy", "index_10ms.npy", "index_250ms.npy")  # all have one row per image
# of an event: its time, and its x, y and polarity
TICKS, XYP = np.dtype("<i8"), np.dtype(("<i2", (3,)))
FRAME_PERIOD_US = (10_000, 100_000)  # the archive's is about 33 ms
TICKS_PER_US = (1000, 1)  # times are in ns or in us
SENSOR = (260, 346)  # (height, width) in px


def reads(path: Path) -> bool:
    """Whether a folder has one of DDD17's event files."""
    return (path / TIMES).is_file() or (path / EVENTS).is_file()


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a recording folder.

    Source: uzh-rpg/ess, datasets/extract_data_tools/example_loader_ddd17.py.

    Args:
        path: the folder.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    for name in (TIMES, EVENTS):
        if not (path / name).is_file():
            raise UserError(
                path / name, "no such file", "give a recording folder of the DDD17 archive"
            )
    count = count_records(path / TIMES, 0, TICKS.itemsize)
    size = (path / EVENTS).stat().st_size
    if size != XYP.itemsize * count:
        raise UserError(
            path / EVENTS,
            f"has {size} bytes, but the {count} events of {TIMES} need {XYP.itemsize * count}",
            "copy both files again",
        )
    height, width = resolve_size(path, sensor, default=default or SENSOR)
    _, _, ticks_per_us = read_image_times(path)

    def chunks() -> Iterator[Events]:
        times = read_rows(path / TIMES, TICKS, 0, count)
        rows = read_rows(path / EVENTS, XYP, 0, count)
        for ticks, xyp in zip(times, rows, strict=True):
            x, y, p = xyp.T
            yield as_events(path / EVENTS, x, y, ticks // ticks_per_us, p)

    return Reader(path, height, width, count, chunks, f"1/{ticks_per_us} us")


def read_image_times(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Read the times of a recording's images.

    Returns:
        Times (images,) in us, index (images,) of the first event after each, and ticks of the
        recording's clock per us.
    """
    paths = [folder / INDEX / name for name in INDICES if (folder / INDEX / name).is_file()]
    if not paths:
        raise UserError(
            folder / INDEX, "holds none of " + ", ".join(INDICES), "copy the folder again"
        )
    rows = load_array(paths[0])
    is_table = rows.ndim == 2 and rows.shape[1] == 3 and len(rows) >= 2
    if not is_table or rows.dtype.kind not in "iuf" or np.isnan(rows).any():
        raise UserError(
            paths[0],
            f"is {rows.dtype} of shape {rows.shape}, not numbers (images, 3)",
            "copy it again",
        )
    rows = rows.astype(np.int64)
    spacing = float(np.median(np.diff(rows[:, 0])))
    shortest, longest = FRAME_PERIOD_US
    ticks = next((ticks for ticks in TICKS_PER_US if shortest <= spacing / ticks <= longest), None)
    if ticks is None:
        raise UserError(
            folder / INDEX,
            f"images are {spacing:g} ticks apart, which is not 10 to 100 ms in ns or us",
            "copy the folder again",
        )
    return rows[:, 0] // ticks, rows[:, 1], ticks
