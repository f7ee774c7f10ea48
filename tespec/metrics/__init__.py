"""Metrics: their description, and the base of scorers, which score frames together or in groups."""

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
    # metrics averaged over only some of the members, with their count; see `incomplete_means`
    partial: dict[str, str]
    classes: dict[str, float] = field(default_factory=dict)  # main metric by class

    def metrics(self) -> dict[str, float]:
        """Scores by metric."""
        return dict(self.values)


class MeasuredFrame(NamedTuple):
    """Recording and groups of a frame, and its measurement: a confusion matrix or errors."""

    recording: str
    groups: tuple[str, ...]
    measured: NDArray[Any]


class FrameScorer(Generic[F]):
    """Base of scorers, which collect the frames of a test set and score them together or in groups.

    Subclasses define `update`, `definition`, `overall` and `_scores`; see examples/my_task.py.
    """

    def __init__(self) -> None:
        self._frames: list[F] = []

    def state(self) -> Sequence[F]:
        """All frames, for `merge` in another process."""
        return tuple(self._frames)

    def merge(self, states: Iterable[Sequence[F]]) -> None:
        """Add the frames of other scorers; scores do not depend on the distribution of frames."""
        for state in states:
            self._frames.extend(state)

    def by(self, kind: Literal["recording", "group"]) -> dict[str, Scores]:
        """Scores by the name of a recording or group; names without scores are left out."""
        members = defaultdict[str, list[F]](list)
        for frame in self._frames:
            for name in (frame.recording,) if kind == "recording" else frame.groups:
                members[name].append(frame)
        scores = {name: self._scores(frames) for name, frames in sorted(members.items())}
        return {name: score for name, score in scores.items() if score is not None}

    def _scores(self, frames: Sequence[F]) -> Scores | None:
        """Score the given frames; None if none is valid."""
        raise NotImplementedError


def partial_means(scorer: Any) -> str:
    """List the means over only some members, such as "all map: 2 of 3 classes"; "" if none."""
    scores = {"all": scorer.overall(), **scorer.by("group")}
    return "; ".join(
        f"{group} {metric}: {count}"
        for group, score in scores.items()
        for metric, count in score.partial.items()
    )


def incomplete_means(counts: Mapping[str, int], total: int, unit: str) -> dict[str, str]:
    """Describe the metrics that are averaged over only some of the members.

    Args:
        counts: number of averaged members by metric.
        total: number of all members.
        unit: plural of a member, such as "classes".

    Returns:
        texts such as "2 of 3 classes" by metric.
    """
    return {
        metric: f"{count} of {total} {unit}" for metric, count in counts.items() if count < total
    }
