"""MVSEC's `_data.hdf5`: rows of x, y, time in seconds since 1970, and polarity -1 or 1, all float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.hdf5 import AGAIN, AT_ONCE, as_events, dataset, part, reading
from tespec.events.readers.sensor import resolve_size
from tespec.events.stream import Events, Reader

SENSOR = (260, 346)
EVENTS = "davis/left/events"
X, Y, T, P = range(4)
LATEST = 1e11  # s, the year 5138; in us it is exact in 64 bits


def open_mvsec(path: Path, height: int | None = None, width: int | None = None) -> Reader:
    """Open a recording, whose times are given out in us since 1970.

    Args:
        path: of `_data.hdf5`.
        height: rows of the sensor in px; default: what a `dataset.json` above says, else 260.
        width: columns, likewise; else 346.

    Raises:
        UserError: damaged or incomplete file.
    """
    found = dataset(path, EVENTS, "f", 2)
    shape = found.shape
    if shape[1] != 4:
        raise UserError(path, f"{EVENTS} has the shape {shape} instead of (events, 4)", AGAIN)
    count, size = shape[0], resolve_size(path, height, width, default=SENSOR)
    if not count:
        raise UserError(path, "holds no events", "give a recording with events")

    def chunks() -> Iterator[Events]:
        for begin in range(0, count, AT_ONCE):
            with reading(path, "a part of the events"):
                rows = part(path, EVENTS)[begin : begin + AT_ONCE]
            seconds, values = np.asarray(rows[:, T], np.float64), rows[:, (X, Y, P)]
            if not (np.isfinite(seconds).all() and (np.abs(seconds) < LATEST).all()):
                raise UserError(path, f"{EVENTS} holds times that are none", AGAIN)
            if not (values == np.rint(values)).all():
                raise UserError(path, f"{EVENTS} holds coordinates that are no whole numbers", AGAIN)
            yield as_events(path, size, values[:, 0], values[:, 1], seconds_to_us(seconds), values[:, 2])

    return Reader(path, *size, count, chunks)


def seconds_to_us(seconds: NDArray[np.floating]) -> NDArray[np.int64]:
    """Times in us (int64) of times in s (float64).

    Seconds since 1970 in float64 are 0.24 us apart, so that the nearest microsecond is the one that was meant.
    Events and ground truth go through this function alike, and so share one clock.
    """
    return np.rint(np.asarray(seconds, np.float64) * 1e6).astype(np.int64)
