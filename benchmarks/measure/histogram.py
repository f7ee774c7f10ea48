"""Histogram of one window, against accumulation by `put_` as in uzh-rpg/RVT, data/utils/representations.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.row import Row
from benchmarks.measure.scene import HALF_1MPX, make_events
from tespec.events.histogram import event_histogram
from tespec.events.stream import Events

BINS = 10
WINDOW_US = 50_000
COUNT = 450_000  # of a busy window at full size


def put_histogram(events: Events, start: int, height: int, width: int) -> Tensor:
    """(2 * BINS, height, width) uint8 of the events of the window at `start` us, by `put_` into int16."""
    # RVT's h5 files and loader hold the columns as int64 tensors.
    columns, rows, times, polarity = (torch.from_numpy(values.astype(np.int64)) for values in events)
    counts = torch.zeros(2 * BINS * height * width, dtype=torch.int16)
    cell = ((polarity * BINS + (times - start) * BINS // WINDOW_US) * height + rows) * width + columns
    counts.put_(cell, torch.ones_like(cell, dtype=torch.int16), accumulate=True)
    return counts.clamp_(max=10).to(torch.uint8).view(2 * BINS, height, width)


def own_histogram(events: Events, start: int, height: int, width: int) -> NDArray[np.uint8]:
    """The same by the harness."""
    return event_histogram(
        *events, t_start=start, t_end=start + WINDOW_US, bins=BINS, height=height, width=width
    )  # fmt: skip


def histogram(conditions: Conditions) -> Iterator[Row]:
    """One window of a busy recording."""
    count = conditions.size(COUNT, 2_000)
    height, width = conditions.size(HALF_1MPX, (24, 32))
    events = make_events(count, WINDOW_US, height, width)
    bytes_of_event = sum(values.itemsize for values in events)
    row = Row(
        "histogram", "window", "cpu", f"{count:,} events on {height}x{width} px", "put_ into int16",
        work=count, unit="events", moved=count * bytes_of_event + 2 * BINS * height * width,
    )  # fmt: skip
    yield conditions.compare(
        row,
        lambda: own_histogram(events, 0, height, width),
        lambda: put_histogram(events, 0, height, width),
        lambda ours, peers: np.array_equal(ours, peers.numpy()),
    )
