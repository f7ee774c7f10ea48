"""What is found out about one recording."""

from __future__ import annotations

from dataclasses import dataclass, field

from tespec.errors import UserError


@dataclass(frozen=True)
class EventFacts:
    """Events of one recording.

    Attributes:
        height: rows of the sensor in px.
        width: columns of the sensor in px.
        count: number of events.
        t_first: time of the first event in us.
        t_last: time of the last event in us.
        clamped: number of events whose time stepped back.
        positive: share of events with positive polarity.
        repeated: share of events that equal the one before them in pixel, time and polarity.
        peak: largest number of events per second in one of the equal parts of at most a second that the recording is
            divided into; never below the mean, unless only some of them were looked at.
    """

    height: int
    width: int
    count: int
    t_first: int
    t_last: int
    clamped: int
    positive: float
    repeated: float
    peak: float

    @property
    def seconds(self) -> float:
        """From the first event to the last."""
        return (self.t_last - self.t_first) / 1e6

    @property
    def rate(self) -> float:
        """Events per second."""
        return per_second(self.count, self.t_last - self.t_first)


def per_second(count: int, duration: int) -> float:
    """Rate in 1/s of a number of events in a time in us; 0 where the time has no length."""
    return count * 1e6 / duration if duration else 0.0


@dataclass(frozen=True)
class LabelFacts:
    """Labels of one recording.

    Attributes:
        count: number of labels.
        first: time of the first in us; 0 if there is none.
        last: time of the last in us.
        spacing_ms: shortest, median and longest time between two labels in ms; zeros for fewer than two.
        classes: how often each class occurs: labelled pixels, or boxes.
        unlabelled: share of pixels without a label; 0 for boxes.
        extent: smallest and largest depth in m, or box side in px; zeros where there is none.
        empty: number of labels without any labelled pixel or box.
    """

    count: int
    first: int
    last: int
    spacing_ms: tuple[float, float, float]
    classes: dict[str, int]
    unlabelled: float
    extent: tuple[float, float]
    empty: int


@dataclass(frozen=True)
class RecordingFacts:
    """One recording; parts that could not be read are None, and `problems` says why.

    Attributes:
        name: of the recording.
        split: it belongs to.
        bytes: size of its files.
        events: what they hold; None for archives of histograms as well.
        labels: what they hold.
        windows: number of windows that the rule gives.
        seconds: how long the survey took.
        problems: what makes it unusable.
        notes: what is unusual but handled, a line each.
    """

    name: str
    split: str
    bytes: int = 0
    events: EventFacts | None = None
    labels: LabelFacts | None = None
    windows: int = 0
    seconds: float = 0.0
    problems: tuple[UserError, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())
