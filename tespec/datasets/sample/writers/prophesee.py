"""Writes a street as an unlabelled Prophesee `.dat` recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tespec.datasets.sample.street import Frame
from tespec.events.readers.prophesee_dat import write_dat
from tespec.events.stream import Events


def write_prophesee(film: Iterator[tuple[Frame, Events]], path: Path, height: int, width: int) -> None:
    """Write the events of a recording.

    Args:
        film: frames and events of `street.record`.
        path: of the `.dat` file; its folder is made if it is not there.
        height: of the sensor in pixels.
        width: of the sensor in pixels.
    """
    x, y, t, p = (np.concatenate(column) for column in zip(*(events for _, events in film), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dat(path, x, y, t, p, height, width)
