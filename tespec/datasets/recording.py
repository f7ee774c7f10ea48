"""A recording as a sequence of windows; opened where it is used, so that workers open their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tespec.events import EventStream, event_histogram, open_events
from tespec.events.spatial import Region

OPEN_RECORDINGS = 128


@lru_cache(maxsize=OPEN_RECORDINGS)
def _open(path: Path) -> EventStream:
    return open_events(path)


@dataclass(frozen=True, eq=False)
class Recording:
    """Events of one file or folder, cut into windows.

    Attributes:
        name: what records and messages call it.
        path: what `open_events` opens.
        region: part of the sensor that is used.
        windows: (N, 2) int64, first and end time of each window in us, end exclusive.
    """

    name: str
    path: Path
    region: Region
    windows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def stream(self) -> EventStream:
        """The open recording."""
        return _open(self.path)

    def histograms(self, first: int, count: int, bins: int, rule: str) -> NDArray[np.uint8]:
        """Histograms (count, 2*bins, H, W) of the windows from `first` on."""
        height, width = self.region.height, self.region.width
        histograms = np.zeros((count, 2 * bins, height, width), np.uint8)
        for histogram, (start, end) in zip(histograms, self.windows[first : first + count], strict=True):
            events = self.stream.slice(int(start), int(end))
            first_time, end_time = int(start), int(end)
            if rule == "rvt" and len(events.t):
                # Its borders are those of all events of the window, cropped and dropped ones included.
                first_time, end_time = int(events.t[0]), max(int(events.t[-1]), int(events.t[0]) + 1)
            event_histogram(
                *self.region.apply(events),
                t_start=first_time,
                t_end=end_time,
                bins=bins,
                height=height,
                width=width,
                out=histogram,
            )
        return histograms


class Labels(Protocol):
    """Segmentation masks of a recording."""

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """(H, W) uint8 class of each pixel, 255 where there is none."""
        ...


@dataclass(frozen=True, eq=False)
class LabelledRecording(Recording):
    """A recording whose window i ends at label i.

    Attributes:
        labels: masks by index.
        ego_speed: (N,) float32 speed of the camera in m/s at each label, where it is known.
    """

    labels: Labels
    ego_speed: NDArray[np.float32] | None = None


def windows_since_last(times: NDArray[np.int64], start: int) -> NDArray[np.int64]:
    """(N, 2) windows in us that end at each of `times` (sorted) and begin at the one before; the first at `start`."""
    return np.stack([np.concatenate(([start], times[:-1])), times], axis=1).astype(np.int64)


def windows_of_length(times: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """(N, 2) windows of `length` us that end at each of `times`."""
    return np.stack([times - length, times], axis=1).astype(np.int64)


def windows_side_by_side(first: int, last: int, length: int) -> NDArray[np.int64]:
    """(N, 2) windows of `length` us, one after the other, that lie between `first` and `last`."""
    starts = first + length * np.arange(max(0, (last - first) // length), dtype=np.int64)
    return np.stack([starts, starts + length], axis=1)
