"""Frames of a test set by recording and by named group, as every scorer counts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol, TypeVar

Kind = Literal["recording", "group"]


class Placed(Protocol):
    """A frame that knows its recording and the groups it belongs to."""

    @property
    def recording(self) -> str:
        """Name of its recording."""
        ...

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of its groups."""
        ...


F = TypeVar("F", bound=Placed)


def members(frames: Iterable[F], kind: Kind) -> dict[str, list[F]]:
    """Frames of each recording or of each group, by name in alphabetical order."""
    found: dict[str, list[F]] = {}
    for frame in frames:
        for name in (frame.recording,) if kind == "recording" else frame.groups:
            found.setdefault(name, []).append(frame)
    return dict(sorted(found.items()))
