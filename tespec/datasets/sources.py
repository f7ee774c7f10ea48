"""Where the histograms of a recording come from; opened where they are used, so that workers open their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.datasets.rectification import RectifiedStream, read_rectification
from tespec.datasets.windows import Windows
from tespec.events import EventStream, open_events
from tespec.events.provenance import describe, files_of, is_of, sample
from tespec.events.readers.ddd17 import EVENTS
from tespec.events.readers.hdf5 import SUFFIXES, open_file, reading
from tespec.events.readers.hdf5_links import found_within
from tespec.events.readers.header import read_header, sensor_size
from tespec.events.spatial import Region
from tespec.events.store import HEADER, header_of, verify_store
from tespec.events.windows import window_histograms

OPEN_RECORDINGS = 128
STORE = ".store"  # what the folder of a packed store adds to the name of the file it was made from


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
    """Events of a file or folder, or of the packed store that `prepare` has put beside it.

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

    def recorded(self) -> EventStream:
        """The recording itself, opened past a packed store and without rectification."""
        return open_events(self.path, *(self.sensor or (None, None)))

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the events, and the rectification."""
        packed = not self.is_recorded and (store_of(self.path) / HEADER).is_file()
        path = store_of(self.path) if packed else self.path
        return (*files_of(path), *([self.rectify_map] if self.rectify_map else []))

    @property
    def is_recorded(self) -> bool:
        """Whether the events are there as they were recorded, packed besides or not."""
        return self.path.is_file() or (self.path / EVENTS).is_file()

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of each file; of a packed recording, of those it was made from."""
        store = store_of(self.path)
        if self.is_recorded or not (store / HEADER).is_file():
            return [sample(file) for file in self.files]
        made_from = header_of(store)["source"]
        files = [sample(file) for file in files_of(store)] if made_from is None else list(made_from["files"])
        return files + ([sample(self.rectify_map)] if self.rectify_map else [])

    def verify(self) -> None:
        """Read a packed recording whole, and compare it with the SHA-256 that were noted when it was packed.

        Raises:
            UserError: the store is damaged, or the recording beside it is another than the one that was packed.
        """
        store = store_of(self.path)
        if not (store / HEADER).is_file():
            return
        verify_store(store)
        made_from = header_of(store)["source"]
        if self.is_recorded and made_from is not None:
            _require_same(store, self.path, describe(self.path)["sha256"] == made_from.get("sha256"))

    def histograms(self, windows: Windows, bins: int, rule: str, region: Region) -> NDArray[np.uint8]:
        """(N, 2*bins, H, W) uint8 of windows (N, 2) in us."""
        return window_histograms(self.stream, windows, bins, rule=rule, region=region)


def store_of(path: Path) -> Path:
    """Where the packed store of a recording lies: beside its file, or in its folder; a store is its own."""
    if (path / HEADER).is_file():
        return path
    return path / f"events{STORE}" if path.is_dir() else path.with_name(path.name + STORE)


def is_there(path: Path) -> bool:
    """Whether a recording, or its packed store, exists."""
    return path.exists() or (store_of(path) / HEADER).is_file()


def names_size(path: Path) -> bool:
    """Whether a Prophesee recording, or the packed store in its place, says how large its sensor is."""
    if (store_of(path) / HEADER).is_file():
        return True
    if path.suffix in SUFFIXES:
        with reading(path, "the sensor's size"):
            file = open_file(path)
            return all(found_within(path, file, f"events/{side}") is not None for side in ("height", "width"))
    return sensor_size(read_header(path)) is not None


@lru_cache(maxsize=OPEN_RECORDINGS)
def _open(source: EventSource) -> EventStream:
    store = store_of(source.path)
    if (store / HEADER).is_file():
        made_from = header_of(store)["source"]
        if source.is_recorded and made_from is not None:
            _require_same(store, source.path, is_of(made_from, source.path))
        stream = open_events(store, *(source.sensor or (None, None)))
    else:
        stream = source.recorded()
    if source.rectify_map is None:
        return stream
    return RectifiedStream(stream, read_rectification(source.rectify_map, stream.height, stream.width))


def _require_same(store: Path, path: Path, same: bool) -> None:
    """Refuse a store that was made from another version of the file it lies beside."""
    if not same:
        what = f"was made from another version of {path.name} than the one beside it"
        raise UserError(store, what, "remove the store and prepare the recording again")
