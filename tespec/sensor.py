"""The size of a sensor, as users and headers write it."""

from __future__ import annotations

import re

from tespec.errors import UserError

Size = tuple[int, int]  # rows and columns in px

LARGEST = 1 << 14  # px; coordinates of events have at most 14 bits


def is_size(size: Size) -> bool:
    """Whether a sensor can have this size."""
    return all(1 <= side <= LARGEST for side in size)


def parse_size(text: str) -> Size:
    """(height, width) in px of a text such as "640x480", which names columns and then rows.

    Raises:
        UserError: it is no size of a sensor.
    """
    sides = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    size = (int(sides[2]), int(sides[1])) if sides else (0, 0)
    if not is_size(size):
        raise UserError(f"--sensor {text}", "no size of a sensor", f"give WIDTHxHEIGHT in px, {LARGEST} at most")
    return size
