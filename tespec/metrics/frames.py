"""Frames of a test set by recording and by named group, and means over fewer members than declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, TypeVar

Kind = Literal["recording", "group"]


class Placed(Protocol):
    """A frame with the name of its recording, and of the groups it belongs to."""

    @property
    def recording(self) -> str: ...  # noqa: D102
    @property
    def groups(self) -> tuple[str, ...]: ...  # noqa: D102


F = TypeVar("F", bound=Placed)


def members(frames: Iterable[F], kind: Kind) -> dict[str, list[F]]:
    """Frames of each recording or of each group, by name in alphabetical order."""
    found: dict[str, list[F]] = {}
    for frame in frames:
        for name in (frame.recording,) if kind == "recording" else frame.groups:
            found.setdefault(name, []).append(frame)
    return dict(sorted(found.items()))


def partial_means(scorer: Any) -> str:
    """Which of a scorer's means, overall and of its groups, are over fewer members than declared; "" if none."""
    scores = {"overall": scorer.overall(), **scorer.by("group")}
    # Scores of a task of the user's own need not count members.
    partial = {name: getattr(each, "partial", "") for name, each in scores.items()}
    return "; ".join(f"{name}: {text}" for name, text in partial.items() if text)


def counted(counts: Mapping[str, int], declared: int, unit: str) -> str:
    """Metrics whose mean is over fewer than `declared` members, as "map, ap50: 2 of 3 classes"; "" if none."""
    fewer: dict[int, list[str]] = {}
    for metric, count in counts.items():
        if count < declared:
            fewer.setdefault(count, []).append(metric)
    return ", ".join(f"{', '.join(names)}: {count} of {declared} {unit}" for count, names in fewer.items())
