"""What a recording of any format is: events, read once from front to back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Events(NamedTuple):
    """Events in time order: x and y (N,) uint16 in px, t (N,) int64 in us, p (N,) uint8 in {0, 1}."""

    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    t: NDArray[np.int64]
    p: NDArray[np.uint8]


@dataclass(frozen=True)
class Reader:
    """A recording in any format, which can be read from front to back.

    Attributes:
        path: file or folder, for messages.
        height: rows of the sensor in px.
        width: columns of the sensor in px.
        events: how many there are; a guess from the file's size where the format does not say it.
        chunks: reads the events some at a time, as they follow each other in the file: x and y (N,) uint16, which may
            lie outside of the sensor; t (N,) integers of the recording's clock, which may step back; p (N,) uint8 in
            {0, 1}.
        ticks_per_us: of the clock.
        period: after which a clock of few bits begins again, from 0; 0 if it never does. Time goes on across its
            borders: of the times that a value may stand for, the one closest to the latest time before it is taken, so
            that a step back by less than half of the period stays one.
    """

    path: Path
    height: int
    width: int
    events: int
    chunks: Callable[[], Iterator[Events]]
    ticks_per_us: int = 1
    period: int = 0


def check_events(
    x: NDArray[np.integer],
    y: NDArray[np.integer],
    t: NDArray[np.integer],
    p: NDArray[np.integer],
    height: int,
    width: int,
) -> None:
    """Check that four arrays are events of one sensor.

    Raises:
        ValueError: they are not one-dimensional whole numbers of one length, a coordinate lies outside of the sensor,
            or a polarity is neither 0 nor 1.
    """
    if not x.shape == y.shape == t.shape == p.shape == (t.size,):
        raise ValueError(f"x, y, t and p have the shapes {x.shape}, {y.shape}, {t.shape} and {p.shape}, not (N,)")
    if any(values.dtype.kind not in "iub" for values in (x, y, t, p)):
        raise ValueError(f"x, y, t and p are {x.dtype}, {y.dtype}, {t.dtype} and {p.dtype}, not whole numbers")
    for name, values, limit in (("x", x, width), ("y", y, height), ("p", p, 2)):
        signed = values.dtype.kind == "i"
        if values.size and (int(values.max()) >= limit or (signed and int(values.min()) < 0)):
            raise ValueError(f"{name} has values outside of 0 to {limit - 1}")
