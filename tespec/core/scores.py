"""What the scores of a kind of task are called, and which way they point."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal


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
