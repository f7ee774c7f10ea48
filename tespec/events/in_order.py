"""Times that never step back: the clock of a recording becomes microseconds in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import njit

from tespec.core.errors import UserError
from tespec.events.stream import Events, Reader

LATEST = 10**17  # us since 1970, the year 5138; today in nanoseconds is later
FAR = 1 << 62  # further than a clock without a period goes


def in_order(reader: Reader) -> Iterator[tuple[Events, int]]:
    """A recording's events chunk by chunk, none of them empty, with times in us that never step back.

    A time that steps back is raised to the latest time before it.

    Yields:
        events, and how many of their times were raised.

    Raises:
        UserError: the recording cannot be read, holds no events, or has some outside of its sensor or after 5138.
    """
    latest = None
    for x, y, t, p in reader.chunks():
        if not len(t):
            continue
        columns, rows = int(x.max()) + 1, int(y.max()) + 1
        if columns > reader.width or rows > reader.height:
            what = f"has events on {columns}x{rows} px, its sensor is {reader.width}x{reader.height} px"
            raise UserError(reader.path, what, "copy it again, or give its true size")
        times, raised = clamp_timestamps(t, int(t[0]) if latest is None else latest, reader.period)
        latest = int(times[-1])
        if reader.ticks_per_us > 1:
            times //= reader.ticks_per_us
        if max(abs(int(times[0])), abs(int(times[-1]))) > LATEST:
            what = f"has an event at {times[-1]} us, after the year 5138: it is damaged, or its times are nanoseconds"
            raise UserError(reader.path, what, "copy it again, or write its times in microseconds")
        yield Events(x, y, times, p), raised
    if latest is None:
        raise UserError(reader.path, "holds no events", "give a recording with events")


@njit(cache=True, nogil=True)
def clamp_timestamps(times, latest, period):  # type: ignore[no-untyped-def]
    """Times (N,) in order: each that steps back is raised to the latest before it, `latest` being the first.

    A value of a clock with a period, which begins again from 0, stands for the time closest to the latest one.

    Returns:
        times (N,) int64, and how many of them were raised.
    """
    ordered, raised = np.empty(len(times), np.int64), 0
    half = period // 2 if period else FAR
    start = latest // period * period if period else 0  # of the clock's round; with it few times need more
    for i in range(len(times)):
        time = np.int64(times[i]) + start
        if not latest <= time < latest + half:  # seldom
            if period:
                time -= (time - latest + half) // period * period
                start = max(time, latest) // period * period
            raised += time < latest
            time = max(time, latest)
        ordered[i] = latest = time
    return ordered, raised
