"""Finds every recording below a folder, whatever its kind, and knows it by the name that a dataset gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.datasets.base import LabelledDataset, RecordingFiles
from tespec.datasets.ddd17 import IMAGES, INDEX
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.rvt_archive import ArchiveSource, archive_of, is_archive
from tespec.datasets.sources import STORE, EventSource
from tespec.datasets.windows import windows_side_by_side
from tespec.events.opening import READERS, dataset_of
from tespec.events.readers import arrays
from tespec.events.readers.hdf5 import SUFFIXES
from tespec.events.spatial import Region
from tespec.events.store import HEADER

ENDINGS = ("_td.dat.h5", "_td.dat", "_td.h5", "_data.hdf5")  # of event files, after the name of the recording


def find_recordings(root: Path) -> list[Path]:
    """Every recording at or under `root`, sorted by path.

    That is what `open_events` reads, and folders of RVT's archives of histograms. A packed store beside the recording
    that it was made from stands for it, under the recording's path. HDF5 files and arrays that hold other things are
    left alone; those that cannot be opened, and parts of DDD17 recordings, count: opening them says what is wrong.

    Raises:
        UserError: there is none.
    """
    if not root.exists():
        raise UserError(root, "no such file or folder", "check the path")
    if root.is_file() or _is_recording(root):
        return [root]
    found: set[Path] = set()
    for path in root.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        if path.is_dir():
            if _is_recording(path):
                found.add(_packed_from(path))
        elif _is_recording_file(path):
            found.add(path)
    if not found:
        kinds = ", ".join((*READERS, *SUFFIXES, "packed store", "DDD17 recording", "RVT's preprocessed archive"))
        raise UserError(root, f"holds no recording ({kinds})", "give another file or folder")
    return sorted(found)


def _is_recording(folder: Path) -> bool:
    return (folder / HEADER).is_file() or is_archive(folder) or dataset_of(folder) is not None


def _is_recording_file(path: Path) -> bool:
    """Whether a file is a recording, or is too damaged to tell."""
    suffix = path.suffix.lower()
    if suffix in arrays.READS:
        return arrays.holds_events(path)
    try:
        return suffix in READERS or dataset_of(path) is not None
    except UserError:
        return True


def _packed_from(folder: Path) -> Path:
    """The recording that a packed store lies beside; the folder itself where it is none, or lies alone."""
    if not folder.name.endswith(STORE) or not (folder / HEADER).is_file():
        return folder
    name = folder.name.removesuffix(STORE)
    return folder.parent if name == "events" else folder.with_name(name)


def names_of(path: Path) -> set[str]:
    """What a dataset's splits may call a recording at `path` below it: its file, or a folder it lies in."""
    without = {path.name.removesuffix(ending) for ending in ENDINGS}
    return {*path.parts, path.stem, *without}


SPLIT = "all"
WINDOW_US = 50_000
BESIDE = (INDEX, IMAGES)  # of a DDD17 recording: pre-training on pairs of events and image needs them


class NoLabels:
    """Labels of a recording that has none."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        """There is none to be had."""
        raise IndexError(index)

    def part(self, first: int, end: int) -> NoLabels:
        """No label either."""
        return self

    def checksums(self) -> list[int]:
        """Of no label."""
        return []


class Recordings(LabelledDataset):
    """Every recording below a folder, or a single one; see `LabelledDataset`.

    Args:
        root: file or folder.
        sensor: (height, width) of their sensor in px, for those that do not name it.

    Raises:
        UserError: there is none.
    """

    title = "recordings"

    def __init__(self, root: Path, sensor: Size | None = None) -> None:
        if not root.exists():
            raise UserError(root, "no such file or folder", "check the path")
        folder = root.parent if root.is_file() else root
        self._paths = {path.relative_to(folder).as_posix(): path for path in find_recordings(root)}
        super().__init__(folder, {SPLIT: tuple(self._paths)}, sensor=sensor)
        self.layout = "events without labels"

    def find(self, split: str, name: str) -> RecordingFiles:
        """What one recording consists of."""
        path = self._paths[name]
        sensor = self.given_sensor
        source = archive_of(path, sensor) if is_archive(path) else EventSource(path, sensor)
        return RecordingFiles(name, SPLIT, source, tuple(path / each for each in BESIDE if (path / each).is_dir()))

    def open(self, files: RecordingFiles) -> LabelledRecording:
        """One recording, cut into windows of 50 ms."""
        source, none = files.source, np.empty(0, np.int64)
        if isinstance(source, ArchiveSource):
            return LabelledRecording(files.name, source, source.region, source.windows(), NoLabels(), none)
        stream = source.stream
        windows = windows_side_by_side(stream.t_first, stream.t_last + 1, WINDOW_US)
        region = Region(stream.height, stream.width)
        return LabelledRecording(files.name, source, region, windows, NoLabels(), none)

    def describe(self) -> dict[str, str]:
        """What is read, in words."""
        return {"layout": self.layout}
