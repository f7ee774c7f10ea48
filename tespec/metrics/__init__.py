"""Metrics: their description, and the base of scorers, which score frames together, by recording or by group."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from numpy.typing import NDArray

F = TypeVar("F", bound=Any)  # a frame, with `recording` and `groups`


@dataclass(frozen=True)
class Score:
    """Description of one metric of a kind of task, for tables."""

    title: str  # column heading
    better: Literal["higher", "lower"]
    unit: str = ""  # such as "%" or "m"; empty for ratios


@dataclass(frozen=True)
class Scores:
    """Scores of a set of frames."""

    values: dict[str, float]  # by metric
    # metrics averaged over fewer members than exist, with their count; see `fewer`
    partial: dict[str, str]
    classes: dict[str, float] = field(default_factory=dict)  # main metric of each class

    def metrics(self) -> dict[str, float]:
        """Score of each metric."""
        return dict(self.values)


class MeasuredFrame(NamedTuple):
    """Recording and groups of one frame, and what was measured of it: a confusion matrix or errors."""

    recording: str
    groups: tuple[str, ...]
    measured: NDArray[Any]


class FrameScorer(Generic[F]):
    """Base of scorers, which collect the frames of a test set and score them together, by recording or by group."""

    def __init__(self) -> None:
        self._frames: list[F] = []

    def state(self) -> Sequence[F]:
        """All frames, for `merge` in another process."""
        return tuple(self._frames)

    def merge(self, states: Iterable[Sequence[F]]) -> None:
        """Add the frames of other scorers; scores do not depend on how frames are distributed over scorers."""
        for state in states:
            self._frames.extend(state)

    def by(self, kind: Literal["recording", "group"]) -> dict[str, Scores]:
        """Scores of each recording or group that has any, by name."""
        members = defaultdict[str, list[F]](list)
        for frame in self._frames:
            for name in (frame.recording,) if kind == "recording" else frame.groups:
                members[name].append(frame)
        scores = {name: self._scores(frames) for name, frames in sorted(members.items())}
        return {name: each for name, each in scores.items() if each is not None}

    def _scores(self, frames: Sequence[F]) -> Scores | None:
        """Scores of the given frames; None if none is valid."""
        raise NotImplementedError


def partial_means(scorer: Any) -> str:
    """List the means over too few members, as "all map: 2 of 3 classes; moving map: 1 of 3 classes"; "" if none."""
    scores = {"all": scorer.overall(), **scorer.by("group")}
    return "; ".join(
        f"{frames} {metric}: {count}"
        for frames, each in scores.items()
        for metric, count in each.partial.items()
    )


def fewer(counts: Mapping[str, int], total: int, unit: str) -> dict[str, str]:
    """Select the metrics averaged over fewer than `total` members, with their count as "2 of 3 classes"."""
    return {
        metric: f"{count} of {total} {unit}" for metric, count in counts.items() if count < total
    }
