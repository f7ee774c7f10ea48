"""Where the histograms of a recording come from; opened where they are used, so that workers open their own.

What is missing, damaged or does not fit is a `UserError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events import PackedEvents, load_events, open_events, window_histograms
from tespec.events.opening import NotPacked, open_reader
from tespec.events.packing import files_of, is_recorded, quick_hash
from tespec.events.readers.hdf5 import AGAIN, dataset, translate_errors
from tespec.events.spatial import Region, View
from tespec.events.store import HEADER, header_of, store_of
from tespec.events.stream import Reader

RECTIFY_MAP = "rectify_map"
Windows = NDArray[np.int64]  # (N, 2) first time and end of each, in us, end exclusive


class Source(Protocol):
    """Gives histograms of windows; hashable, and small when pickled."""

    @property
    def path(self) -> Path:
        """File or folder that messages name."""

    @property
    def stream(self) -> PackedEvents:
        """The open recording; refused by those that hold no events but histograms."""

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of each file that determines the histograms, wherever it lies."""

    def fill(
        self, out: NDArray[np.uint8], windows: Windows, bins: int, rule: str, region: Region, view: View | None
    ) -> None:
        """Write histograms of windows (N, 2) in us, as `view` shows them, into `out` (N, 2*bins, H, W) uint8."""


@dataclass(frozen=True)
class EventSource:
    """Events of a file or folder, of the packed store beside it or in the cache; without one, read whole into memory.

    Attributes:
        path: what `open_events` opens; it may be missing where the store is there.
        sensor: its (height, width) in px as the user gives it, for recordings that do not name it.
        rectify_map: DSEC's file of rectified coordinates, where they are to be applied.
    """

    path: Path
    sensor: Size | None = None
    rectify_map: Path | None = None

    @property
    def stream(self) -> PackedEvents:
        """The open recording; pickles of this object do not hold it."""
        try:
            return self.packed()
        except NotPacked:
            return _in_memory(self)

    def packed(self) -> PackedEvents:
        """The open recording; `NotPacked` where it has no packed store."""
        return _packed(self)

    def reader(self) -> Reader:
        """What reads the events as they were recorded."""
        return open_reader(self.path, *(self.sensor or (None, None)))

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of each file; of a packed recording, of those it was made from."""
        maps = [quick_hash(self.rectify_map)] if self.rectify_map else []
        store = store_of(self.path)
        if not is_recorded(self.path) and (store / HEADER).is_file():
            return [*header_of(store)["source"]["files"], *maps]
        return [*map(quick_hash, files_of(self.path)), *maps]

    def fill(
        self, out: NDArray[np.uint8], windows: Windows, bins: int, rule: str, region: Region, view: View | None
    ) -> None:
        """Write histograms of windows; see `Source`."""
        window_histograms(self.stream, windows, bins, rule=rule, region=region, view=view, out=out)


@cache
def _packed(source: EventSource) -> PackedEvents:
    # As many as there are: an open store is small, and maps its files anew where they have not been used for long.
    return _rectified(source, open_events(source.path, *(source.sensor or (None, None))))


@lru_cache(maxsize=1)
def _in_memory(source: EventSource) -> PackedEvents:
    return _rectified(source, load_events(source.path, *(source.sensor or (None, None))))


def _rectified(source: EventSource, stream: PackedEvents) -> PackedEvents:
    if source.rectify_map is None:
        return stream
    return stream.rectified(read_rectification(source.rectify_map, stream.height, stream.width))


def read_rectification(path: Path, height: int, width: int) -> NDArray[np.int16]:
    """Nearest rectified pixel of each raw one (DSEC): the frame that labels live in.

    Args:
        path: `rectify_map.h5` with (H, W, 2) floating-point x and y (uzh-rpg/DSEC).
        height: rows of the sensor in px.
        width: columns of the sensor in px.

    Returns:
        (H, W, 2) int16 x and y; -1 where the place lies outside of the sensor.
    """
    if not path.is_file():
        raise UserError(path, "no such file, and labels need rectified events", "copy it beside the events")
    with translate_errors(path, RECTIFY_MAP):
        pixels = dataset(path, RECTIFY_MAP, "f", 3)[()]
    if pixels.shape != (height, width, 2) or not np.isfinite(pixels).all():
        what = f"{RECTIFY_MAP} has the shape {pixels.shape}, not {(height, width, 2)}, or places that are no numbers"
        raise UserError(path, what, AGAIN)
    nearest = np.floor(pixels + 0.5)
    inside = ((nearest >= 0) & (nearest < (width, height))).all(axis=-1, keepdims=True)
    return np.where(inside, nearest, -1).astype(np.int16)


def is_there(path: Path) -> bool:
    """Whether a recording, or its packed store, exists."""
    return path.exists() or (store_of(path) / HEADER).is_file()
