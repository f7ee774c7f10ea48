"""What the scores of a kind of task are called, and which way they point."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

ZEROED = "state zeroed"  # group of frames: all of them, scored again with the state zeroed at each label


def without_state(group: str) -> str:
    """The group of frames that holds the scores of another one, "" for all frames, with the state zeroed."""
    return f"{group}, {ZEROED}" if group else ZEROED


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

    def facts(self) -> dict[str, str]:
        """What a record says of it."""
        return asdict(self)
