"""Reads every event of a recording once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tespec.datasets.survey.facts import EventFacts, per_second
from tespec.errors import UserError
from tespec.events.stream import Events, EventStream, check_events

SECOND = 1_000_000  # us, the longest part


def event_facts(stream: EventStream, quick: bool = False) -> EventFacts:
    """Read a recording part by part and check what every reader promises.

    Args:
        stream: raw events.
        quick: read the first and the last part alone; shares and peak are then those of these two.

    Raises:
        UserError: it holds no events.
        ValueError: the reader breaks its promise: events out of order, outside of the sensor, lost or doubled.
    """
    if not stream.count:
        raise UserError("the recording", "holds no events", "copy it again")
    seen = positive = repeated = 0
    peak, latest = 0.0, stream.t_first
    for start, end, last in _parts(stream, quick):
        events = stream.slice(start, end + last)
        x, y, t, p = events
        check_events(x, y, t, p, stream.height, stream.width)
        if len(t):
            if t[0] < max(start, latest) or t[-1] >= end + last or (np.diff(t) < 0).any():
                raise ValueError(f"events from {start} us on are out of order")
            latest = int(t[-1])
        seen += len(t)
        positive += int(p.sum())
        repeated += _repeated(events)
        peak = max(peak, per_second(len(t), end - start))
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
        peak,
    )


def _parts(stream: EventStream, quick: bool) -> Iterator[tuple[int, int, bool]]:
    """Begin and end in us of equal parts of at most a second, and whether the last event, at its end, belongs to it."""
    span = stream.t_last - stream.t_first
    count = max(1, -(-span // SECOND))
    for number in sorted({0, count - 1}) if quick else range(count):
        begin, end = (stream.t_first + span * place // count for place in (number, number + 1))
        yield begin, end, number == count - 1


def _repeated(events: Events) -> int:
    same = np.ones(max(len(events.t) - 1, 0), bool)
    for column in events:
        same &= column[1:] == column[:-1]
    return int(same.sum())
