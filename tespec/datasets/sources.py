"""Where the histograms of a recording come from; opened where they are used, so that workers open their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tespec.core.settings import Size
from tespec.datasets.rectification import read_rectification
from tespec.datasets.windows import Windows
from tespec.events import EventStream, open_events
from tespec.events.opening import require_same
from tespec.events.provenance import SourceHash, files_of, is_recorded, quick_hash
from tespec.events.readers.hdf5 import SUFFIXES, resolve, translate_errors
from tespec.events.readers.prophesee import read_header
from tespec.events.spatial import Region
from tespec.events.store import HEADER, STORE, header_of, store_of, verify_store
from tespec.events.windows import window_histograms

OPEN_RECORDINGS = 128
__all__ = ["STORE", "EventSource", "Source", "is_there", "names_size", "store_of"]


class Source(Protocol):
    """Gives histograms of windows; hashable, and small when pickled."""

    @property
    def path(self) -> Path:
        """File or folder that messages name."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that determines the histograms, in a fixed order."""
        ...

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of each file, wherever it lies."""
        ...

    @property
    def stream(self) -> EventStream:
        """The open recording.

        Raises:
            UserError: it cannot be read, or holds no events but histograms.
        """
        ...

    def histograms(self, windows: Windows, bins: int, rule: str, region: Region) -> NDArray[np.uint8]:
        """(N, 2*bins, H, W) uint8 of windows (N, 2) in us.

        Raises:
            UserError: they cannot be read, or not with these bins or by this rule.
        """
        ...


@dataclass(frozen=True)
class EventSource:
    """Events of a file or folder, or of the packed store beside it.

    Attributes:
        path: what `open_events` opens; it may be missing where the store is there.
        sensor: its (height, width) in px as the user gives it, for recordings that do not name it.
        rectify_map: DSEC's file of rectified coordinates, where they are to be applied.
    """

    path: Path
    sensor: Size | None = None
    rectify_map: Path | None = None

    @property
    def stream(self) -> EventStream:
        """The open recording; pickles of this object do not hold it."""
        return _open(self)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the events, and the rectification."""
        packed = not is_recorded(self.path) and (store_of(self.path) / HEADER).is_file()
        path = store_of(self.path) if packed else self.path
        return (*files_of(path), *([self.rectify_map] if self.rectify_map else []))

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of each file; of a packed recording, of those it was made from."""
        store = store_of(self.path)
        if is_recorded(self.path) or not (store / HEADER).is_file():
            return [quick_hash(file) for file in self.files]
        made_from = header_of(store)["source"]
        files = [quick_hash(file) for file in files_of(store)] if made_from is None else list(made_from["files"])
        return files + ([quick_hash(self.rectify_map)] if self.rectify_map else [])

    def verify(self) -> None:
        """Read packed events whole, and compare them and their recording with the SHA-256 in the header.

        The recording of packed events in the cache is not read: their folder is named by its state.

        Raises:
            UserError: they are damaged, or were packed from another version of the recording.
        """
        store = open_events(self.path, *(self.sensor or (None, None))).folder
        verify_store(store)
        made_from = header_of(store)["source"]
        if is_recorded(self.path) and made_from is not None and store == store_of(self.path):
            require_same(store, self.path, SourceHash(self.path).describe()["sha256"] == made_from.get("sha256"))

    def histograms(self, windows: Windows, bins: int, rule: str, region: Region) -> NDArray[np.uint8]:
        """(N, 2*bins, H, W) uint8 of windows (N, 2) in us."""
        return window_histograms(self.stream, windows, bins, rule=rule, region=region)


def is_there(path: Path) -> bool:
    """Whether a recording, or its packed store, exists."""
    return path.exists() or (store_of(path) / HEADER).is_file()


def names_size(path: Path) -> bool:
    """Whether a Prophesee recording, or the packed store in its place, says how large its sensor is."""
    if (store_of(path) / HEADER).is_file():
        return True
    if path.suffix in SUFFIXES:
        with translate_errors(path, "the sensor's size"):
            return all(resolve(path, f"events/{side}") is not None for side in ("height", "width"))
    return read_header(path).sensor is not None


@lru_cache(maxsize=OPEN_RECORDINGS)
def _open(source: EventSource) -> EventStream:
    stream = open_events(source.path, *(source.sensor or (None, None)))
    if source.rectify_map is None:
        return stream
    return stream.rectified(read_rectification(source.rectify_map, stream.height, stream.width))
