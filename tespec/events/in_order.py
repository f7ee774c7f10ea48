"""Times that never step back: what a reader's clock says becomes microseconds in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import njit

from tespec.core.errors import UserError
from tespec.events.stream import Events, Reader

EARLIEST = np.iinfo(np.int64).min


def in_order(reader: Reader) -> Iterator[tuple[Events, int]]:
    """A recording's events chunk by chunk, none of them empty, with times in us that never step back.

    A time that steps back is raised to the latest time before it.

    Yields:
        events, and how many of their times were raised.

    Raises:
        UserError: the recording cannot be read, holds no events, or has some outside of its sensor.
    """
    latest, columns, rows = EARLIEST, 0, 0
    for x, y, t, p in reader.chunks():
        if not len(t):
            continue
        columns, rows = max(columns, int(x.max()) + 1), max(rows, int(y.max()) + 1)
        if columns > reader.width or rows > reader.height:
            what = f"has events on {columns}x{rows} px, its sensor is {reader.width}x{reader.height} px"
            raise UserError(reader.path, what, "copy it again, or give its true size")
        times = np.array(t, np.int64)
        raised = clamp_timestamps(times, latest, reader.period)
        latest = int(times[-1])
        yield Events(x, y, times // reader.ticks_per_us if reader.ticks_per_us > 1 else times, p), raised
    if not columns:
        raise UserError(reader.path, "holds no events", "give a recording with events")


@njit(cache=True, nogil=True)
def clamp_timestamps(times, latest, period):  # type: ignore[no-untyped-def]
    """Raise each of int64 `times` in place to the latest before it, `latest` being the first; how many were raised.

    A value of a clock with a period is unwrapped to the time closest to the latest one.
    """
    raised, half = 0, period // 2
    start = latest // period * period if period and latest > EARLIEST else 0  # of the clock's present round
    for i in range(len(times)):
        time = times[i] + start
        if period and latest > EARLIEST:
            if time < latest - half:
                time += period
            elif time >= latest + half:
                time -= period
        if time < latest:
            raised += 1
        else:
            latest = time
            start += period * (period > 0 and latest >= start + period)
        times[i] = latest
    return raised
