"""A batch in parts: dealt to processes, and within each to turns whose gradients are summed up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

Part = tuple[int, int]  # which, of how many
WHOLE: Part = (0, 1)


def share_of(count: int, part: Part) -> range:
    """Which of `count` lanes part number part[0] of part[1] plays; all parts together play each once.

    Raises:
        ValueError: there is no such part.
    """
    number, parts = part
    if not 0 <= number < parts:
        raise ValueError(f"part {number} of {parts}")
    return range(number * count // parts, (number + 1) * count // parts)


class Turns(Dataset[dict[str, Tensor]]):
    """The parts of a process: item k * turns + i is its part number i of the batch of step k.

    Args:
        parts: one for each turn, item k being that part of the batch of step k.

    Attributes:
        turns: number of parts.
        segments: windows per chunk.
        left_out: names of recordings that are never played.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self.turns = len(parts)
        self.segments: int = getattr(parts[0], "segments", 1)
        self.left_out: tuple[str, ...] = getattr(parts[0], "left_out", ())

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        step, turn = divmod(index, self.turns)
        batch: dict[str, Tensor] = self._parts[turn][step]
        return batch

    def names(self, step: int) -> list[str]:
        """Names of the recordings that are played at a step, where the parts know them."""
        known = [part.names(step) for part in self._parts if hasattr(part, "names")]
        return sorted({name for names in known for name in names})
