"""Reads every event of a recording once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tespec.datasets.survey.facts import EventFacts
from tespec.errors import UserError
from tespec.events.stream import Events, EventStream, check_events

SECOND = 1_000_000  # us


def event_facts(stream: EventStream, quick: bool = False) -> EventFacts:
    """Read a recording second by second and check what every reader promises.

    Args:
        stream: raw events.
        quick: read the first and the last second alone; shares are then those of these seconds.

    Raises:
        UserError: it holds no events.
        ValueError: the reader breaks its promise: events out of order, outside of the sensor, lost or doubled.
    """
    if not stream.count:
        raise UserError("the recording", "holds no events", "copy it again")
    seen = positive = repeated = busiest = 0
    latest = stream.t_first
    for start, events in _seconds(stream, quick):
        x, y, t, p = events
        check_events(x, y, t, p, stream.height, stream.width)
        if len(t):
            if t[0] < max(start, latest) or t[-1] >= start + SECOND or (np.diff(t) < 0).any():
                raise ValueError(f"events of the second from {start} us on are out of order")
            latest = int(t[-1])
        seen += len(t)
        positive += int(p.sum())
        repeated += _repeated(events)
        busiest = max(busiest, len(t))
    if not quick and seen != stream.count:
        raise ValueError(f"{seen} events were read of {stream.count}")
    return EventFacts(
        stream.height,
        stream.width,
        stream.count,
        stream.t_first,
        stream.t_last,
        stream.clamped,
        positive / max(seen, 1),
        repeated / max(seen, 1),
        busiest,
    )


def _seconds(stream: EventStream, quick: bool) -> Iterator[tuple[int, Events]]:
    starts = range(stream.t_first, stream.t_last + 1, SECOND)
    for start in sorted({starts[0], starts[-1]}) if quick else starts:
        yield start, stream.slice(start, start + SECOND)


def _repeated(events: Events) -> int:
    same = np.ones(max(len(events.t) - 1, 0), bool)
    for column in events:
        same &= column[1:] == column[:-1]
    return int(same.sum())
