"""A batch in parts: which lanes a process computes at a gradient accumulation step."""

from __future__ import annotations

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
