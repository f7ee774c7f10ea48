"""A recording as a sequence of windows; opened where it is used, so that workers open their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tespec.datasets.windows import Windows
from tespec.events import EventStream, open_events
from tespec.events.spatial import Region
from tespec.events.windows import window_histograms

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
        windows: (N, 2) int64, first time and end of each window in us, end exclusive.
    """

    name: str
    path: Path
    region: Region
    windows: Windows

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def stream(self) -> EventStream:
        """The open recording; pickles of this object do not hold it."""
        return _open(self.path)

    def histograms(self, first: int, count: int, bins: int, rule: str) -> NDArray[np.uint8]:
        """Histograms (count, 2*bins, H, W) of the windows from `first` on.

        Raises:
            UserError: the events cannot be read.
        """
        windows = self.windows[first : first + count]
        return window_histograms(self.stream, windows, bins, rule=rule, region=self.region)


class Labels(Protocol):
    """Segmentation masks of a recording."""

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """(H, W) uint8 class of each pixel, 255 where there is none."""
        ...

    def checksums(self) -> list[int]:
        """CRC-32 of each mask as it is stored."""
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

    @property
    def label_times(self) -> NDArray[np.int64]:
        """(N,) int64 time of each label in us."""
        return self.windows[:, 1]
