"""Recordings of any kind, without labels, to be checked and packed like a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tespec.datasets.base import LabelledDataset, RecordingFiles
from tespec.datasets.finding import find_recordings
from tespec.datasets.prophesee.archive import ArchiveSource, archive_of, is_archive
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource
from tespec.datasets.windows import windows_side_by_side
from tespec.errors import UserError
from tespec.events.readers.ddd17 import IMAGES, INDEX
from tespec.events.spatial import Region
from tespec.sensor import Size

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

    def files(self, split: str) -> list[RecordingFiles]:
        """What each recording consists of."""
        return [self._files(name) for name in self.names(split)]

    def _files(self, name: str) -> RecordingFiles:
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
