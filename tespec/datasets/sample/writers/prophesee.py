"""Writes a street as an unlabelled Prophesee `.dat` recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tespec.datasets.sample.events import Events
from tespec.datasets.sample.street import Frame


def write_dat(path, x, y, t, p, height, width):
    records = np.empty(len(t), np.dtype([("t", "<u4"), ("word", "<u4")]))
    records["t"] = t
    records["word"] = x.astype(np.uint32) | (y.astype(np.uint32) << 14) | (p.astype(np.uint32) << 28)
    header = f"% Data file containing CD events.\n% Version 2\n% Height {height}\n% Width {width}\n"
    path.write_bytes(header.encode() + bytes([0, 8]) + records.tobytes())


def write_prophesee(film: Iterator[tuple[Frame, Events]], path: Path, height: int, width: int) -> None:
    """Write the events of a recording.

    Args:
        film: frames and events of `street.record`.
        path: of the `.dat` file; its folder is made if it is not there.
        height: of the sensor in pixels; `width` likewise.
        width: see `height`.
    """
    x, y, t, p = (np.concatenate(column) for column in zip(*(events for _, events in film), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dat(path, x, y, t, p, height, width)
