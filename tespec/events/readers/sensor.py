"""The sensor's size, as the `dataset.json` above a recording names it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from tespec.documents import UNREADABLE, read_json
from tespec.errors import UserError
from tespec.events.readers.header import LARGEST

FILE = "dataset.json"
LEVELS = 5  # folders above a recording that are looked at
AGAIN = "write its sensor again, or remove the file"


def described_size(path: Path, default: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in px that the nearest `dataset.json` above `path` names, else `default`.

    Raises:
        UserError: the file names no size of a sensor.
    """
    facts = next((folder / FILE for folder in islice(path.parents, LEVELS) if (folder / FILE).is_file()), None)
    if facts is None:
        return default
    try:
        sensor = read_json(facts)["sensor"]
        height, width = int(sensor["height"]), int(sensor["width"])
    except (*UNREADABLE, KeyError, TypeError, OverflowError) as error:
        raise UserError(facts, "does not name the sensor's size", AGAIN) from error
    if not (1 <= height <= LARGEST and 1 <= width <= LARGEST):
        raise UserError(facts, f"names a sensor of {width}x{height} px", AGAIN)
    return height, width
