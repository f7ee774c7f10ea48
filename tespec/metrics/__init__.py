"""Scores of predictions: their names, and what scorers share: frames by recording and group, means over too few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

Kind = Literal["recording", "group"]
F = TypeVar("F", bound=Any)  # a frame, with `recording` and `groups`


@dataclass(frozen=True)
class Score:
    """One score of a kind of task, as tables show it.

    Attributes:
        title: heading of its column.
        better: whether the higher or the lower number is better.
        unit: "%" or "m"; empty for shares and the like.
    """

    title: str
    better: Literal["higher", "lower"]
    unit: str = ""


@dataclass(frozen=True)
class Scores:
    """Scores of some frames.

    Attributes:
        values: of each metric.
        partial: metrics whose mean is over fewer members than there are, and over how many.
        classes: main metric of each class.
    """

    values: dict[str, float]
    partial: dict[str, str]
    classes: dict[str, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """The score of each metric."""
        return dict(self.values)


class FrameScorer(Generic[F]):
    """Keeps what the frames of a test set say, and scores them together, by recording and by named group."""

    def __init__(self) -> None:
        self._frames: list[F] = []

    def state(self) -> Sequence[F]:
        """All frames, as a value for `merge` of another process."""
        return tuple(self._frames)

    def merge(self, states: Iterable[Sequence[F]]) -> None:
        """Add the frames of other scorers; the scores do not depend on how frames were distributed."""
        for state in states:
            self._frames.extend(state)

    def by(self, kind: Kind) -> dict[str, Scores]:
        """Scores of each "recording" or "group" that has any, by name."""
        scores = {name: self._scores(frames) for name, frames in members(self._frames, kind).items()}
        return {name: each for name, each in scores.items() if each is not None}

    def _scores(self, frames: Sequence[F]) -> Scores | None:
        """Scores of some frames; None if none of them counts."""
        raise NotImplementedError


def members(frames: Iterable[F], kind: Kind) -> dict[str, list[F]]:
    """Frames of each recording or of each group, by name in alphabetical order."""
    found: dict[str, list[F]] = {}
    for frame in frames:
        for name in (frame.recording,) if kind == "recording" else frame.groups:
            found.setdefault(name, []).append(frame)
    return dict(sorted(found.items()))


def partial_means(scorer: Any) -> str:
    """Means over fewer members than there are, as "all map: 2 of 3 classes; moving map: 1 of 3 classes"; "" if none."""
    scores = {"all": scorer.overall(), **scorer.by("group")}
    return "; ".join(
        f"{frames} {metric}: {count}"
        for frames, each in scores.items()
        for metric, count in getattr(each, "partial", {}).items()  # a task of the user's own may not count members
    )


def fewer(counts: Mapping[str, int], total: int, unit: str) -> dict[str, str]:
    """Metrics whose mean is over fewer than `total` members: how many, as "2 of 3 classes"."""
    return {metric: f"{count} of {total} {unit}" for metric, count in counts.items() if count < total}
