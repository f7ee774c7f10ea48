"""DSEC's `events.h5` (uzh-rpg/DSEC, README): relative times, an offset, and an index of milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.hdf5 import AGAIN, dataset, number_of_events, part, read_events, reading
from tespec.events.readers.sensor import resolve_size
from tespec.events.stream import Events, Reader

SENSOR = (480, 640)
INDEX, OFFSET = "ms_to_idx", "t_offset"
PLACES = 64  # of the index that are checked
LARGEST_OFFSET = 1 << 60  # us; the sum with a 32-bit time fits 64 bits


def open_dsec(path: Path, height: int | None = None, width: int | None = None) -> Reader:
    """Open a recording, whose times are given out as t + t_offset, the clock of the labels.

    Args:
        path: of `events.h5`.
        height: rows of the sensor in px; default: what a `dataset.json` above says, else 480.
        width: columns, likewise; else 640.

    Raises:
        UserError: damaged or incomplete file.
    """
    count = number_of_events(path)
    with reading(path, OFFSET):
        offset = int(dataset(path, OFFSET, "iu", 0)[()])
    if abs(offset) > LARGEST_OFFSET:
        raise UserError(path, f"{OFFSET} is {offset}", AGAIN)
    with reading(path, INDEX):
        index = dataset(path, INDEX, "iu")[()].astype(np.int64)
    if not len(index) or index[0] != 0 or index.max() > count or index.min() < 0:
        raise _no_fit(path)
    size = resolve_size(path, height, width, default=SENSOR)

    def chunks() -> Iterator[Events]:
        latest, rising = np.iinfo(np.int64).min, True
        for x, y, t, p in read_events(path, size, count):
            # Times that step back may shift the index, which then says nothing of the file.
            rising = rising and bool(t[0] >= latest) and bool((t[1:] >= t[:-1]).all())
            latest = int(t[-1])
            yield Events(x, y, t + offset, p)
        if rising:
            _check_index(path, index, count)

    return Reader(path, *size, count, chunks)


def _check_index(path: Path, index: NDArray[np.int64], count: int) -> None:
    """Refuse an index of milliseconds that points elsewhere than it should."""
    for millisecond in np.unique(np.linspace(0, len(index) - 1, PLACES).astype(int)).tolist():
        place = int(index[millisecond])
        around = part(path, "events/t")[max(place - 1, 0) : min(place + 1, count)]
        before, after = around[:1] if place else around[:0], around[-1:] if place < count else around[:0]
        if (before >= 1000 * millisecond).any() or (after < 1000 * millisecond).any():
            raise _no_fit(path)


def _no_fit(path: Path) -> UserError:
    return UserError(path, f"{INDEX} does not fit the events' times", AGAIN)
