"""DSEC's `events.h5` (uzh-rpg/DSEC, README): relative times, an offset, and an index of milliseconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tespec.core.errors import UserError
from tespec.events.readers.hdf5 import AGAIN, dataset, part, reading
from tespec.events.readers.hdf5_stream import H5Stream, columns, read_columns
from tespec.events.readers.sensor import resolve_size
from tespec.events.scans import Scan

SENSOR = (480, 640)
INDEX, OFFSET = "ms_to_idx", "t_offset"
PLACES = 64  # of the index that are checked
LARGEST_OFFSET = 1 << 60  # us; the sum with a 32-bit time fits 64 bits


def open_dsec(path: Path, height: int | None = None, width: int | None = None) -> H5Stream:
    """Open a recording; its times are read through once, and given out as t + t_offset, the clock of the labels.

    Args:
        path: of `events.h5`.
        height: rows of the sensor in px; default: what a `dataset.json` above says, else 480.
        width: columns, likewise; else 640.

    Raises:
        UserError: damaged or incomplete file, or an index that does not fit the events.
    """
    count = columns(path)
    with reading(path, OFFSET):
        offset = int(dataset(path, OFFSET, "iu", 0)[()])
    if abs(offset) > LARGEST_OFFSET:
        raise UserError(path, f"{OFFSET} is {offset}", AGAIN)
    size = resolve_size(path, height, width, default=SENSOR)
    return H5Stream(
        path,
        count,
        size,
        lambda begin, end: read_columns(path, "t", begin, end)[0].astype(np.int64) + offset,
        lambda begin, end: read_columns(path, "xyp", begin, end),
        lambda scan: _check_index(path, count, scan),
    )


def _check_index(path: Path, count: int, scan: Scan) -> None:
    """Refuse an index of milliseconds that points elsewhere than it should; times that step back may shift it."""
    with reading(path, INDEX):
        dataset(path, INDEX, "iu")
        index = part(path, INDEX).whole().astype(np.int64)
    lies = UserError(path, f"{INDEX} does not fit the events' times", AGAIN)
    if not len(index) or index[0] != 0 or index.max() > count or index.min() < 0:
        raise lies
    if scan.clamped:
        return
    for millisecond in np.unique(np.linspace(0, len(index) - 1, PLACES).astype(int)).tolist():
        place = int(index[millisecond])
        (around,) = read_columns(path, "t", max(place - 1, 0), min(place + 1, count))
        before, after = around[:1] if place else around[:0], around[-1:] if place < count else around[:0]
        if (before >= 1000 * millisecond).any() or (after < 1000 * millisecond).any():
            raise lies
