"""What a labelled dataset is to the harness: its recordings by split, in whichever layout they lie on disk."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tespec.core.errors import UserError
from tespec.core.registry import import_file
from tespec.core.settings import Downsample, Size, build
from tespec.datasets.description import read_description
from tespec.datasets.label_check import with_checks
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource, Source
from tespec.datasets.windows import WindowRule
from tespec.events.stream import Reader

SPLITS = TRAIN, HELD_OUT, TEST = "train", "val", "test"
UNKNOWN = "unknown"  # in place of a split: a recording of the dataset, of which nothing says to which it belongs
LEVELS = 5  # folders from a recording's file up to its dataset's


@dataclass(frozen=True)
class RecordingFiles:
    """What one recording consists of on disk.

    Attributes:
        name: what records, splits and messages call it.
        split: it belongs to.
        source: its events or histograms.
        beside: files and folders that belong to it beside those of its source: labels, their times, calibration.
    """

    name: str
    split: str
    source: Source
    beside: tuple[Path, ...]


@dataclass(frozen=True)
class NoProtocol:
    """For datasets that leave nothing to choose."""


class LabelledDataset(ABC):
    """A dataset; subclasses are registered in `DATASETS` and know the layouts and labels of one.

    Args:
        root: its folder.
        splits: names of the recordings of each split.
        classes: names of the classes; empty where labels have none.
        rule: which events belong to a label.
        downsample: how coordinates are reduced.
        protocol: where published protocols differ, which is followed; fields of `protocol_type`.
        sensor: (height, width) of the sensor in px, for recordings that do not name it.

    Attributes:
        layout: in words, which of the known layouts was found.
        label_kind: what its labels have to be, as in `tespec.datasets.label_check`; None: not known, and not checked.
        protocol: the choices, as an instance of `protocol_type`.

    Raises:
        UserError: the folder is missing, holds no known layout, or two of them mixed.
    """

    title: ClassVar[str]
    protocol_type: ClassVar[type[Any]] = NoProtocol
    not_downsampled: ClassVar[str] = "labels are"  # what `downsample` does not go with, and its verb; "" where it does
    layout: str
    label_kind: str | None = None

    def __init__(
        self,
        root: Path,
        splits: Mapping[str, Sequence[str]],
        classes: Sequence[str] = (),
        rule: WindowRule | None = None,
        downsample: Downsample | None = None,
        protocol: Mapping[str, Any] | None = None,
        sensor: Size | None = None,
    ) -> None:
        if not root.is_dir():
            raise UserError(root, "no such folder", f"give the folder of the {self.title} dataset")
        self.root, self.classes, self.given_sensor = root, tuple(classes), sensor
        self.splits = {split: tuple(names) for split, names in splits.items() if names}
        self._refuse_shared(self.splits)
        self.rule = rule or WindowRule()
        self.downsample = downsample or Downsample(1, "nearest")
        self.protocol = build(self.protocol_type, protocol or {}, "protocol")
        if self.not_downsampled and self.downsample.factor != 1:
            raise UserError("downsample.factor", f"{self.not_downsampled} not downsampled", "set it to 1")
        described = read_description(root).classes
        if self.classes and described not in (None, self.classes):
            said = ", ".join(described or ())
            raise UserError(root, f"its classes are {said}, not {', '.join(classes)}", "name the same in the settings")

    def _refuse_shared(self, splits: Mapping[str, Iterable[str]]) -> None:
        of_name: dict[str, str] = {}
        for split, names in splits.items():
            for name in sorted(set(names) - {"*"}):
                other = of_name.setdefault(name, split)
                if other != split:
                    what = f"{name} is a recording of both {other} and {split}"
                    raise UserError(self.root, what, "leave it in one of the splits")

    def names(self, split: str) -> tuple[str, ...]:
        """Names of the recordings of a split, as the settings give them.

        Raises:
            UserError: they name none.
        """
        if split in self.splits:
            return self.splits[split]
        if split == HELD_OUT:
            remedy = "take some out of splits.train and name them as splits.val: --set, a config, or a dataset.json"
            raise UserError(self.root, f"{self.title} has no validation split: no recordings are named for one", remedy)
        raise UserError(self.root, f"no recordings are named for split {split}", "name them in the settings' splits")

    @classmethod
    def reads(cls, path: Path) -> bool:
        """Whether a file or folder has the data set's own format of events, by the names in it."""
        return False

    @classmethod
    def reader(cls, path: Path, height: int | None = None, width: int | None = None) -> Reader:
        """What reads a recording of the data set's own format.

        Args:
            path: file or folder, of which `reads` is true.
            height: rows of the sensor in px, together with `width`; default: as the recording, a `dataset.json` above
                it or the data set says.
            width: columns, likewise.

        Raises:
            UserError: damaged or incomplete recording.
        """
        raise NotImplementedError(f"{cls.__name__} reads no format of its own")

    @abstractmethod
    def find(self, split: str, name: str) -> RecordingFiles:
        """What one recording of a split consists of.

        Raises:
            UserError: it is missing, or a part of it.
        """

    def files(self, split: str) -> list[RecordingFiles]:
        """What each recording of a split consists of, in the order of the settings.

        Raises:
            UserError: see `names` and `find`.
        """
        return [self.find(split, name) for name in self.names(split)]

    @abstractmethod
    def open(self, files: RecordingFiles) -> LabelledRecording:
        """One recording with its windows and labels.

        Raises:
            UserError: its files cannot be read or do not fit each other.
        """

    def open_checked(self, files: RecordingFiles) -> LabelledRecording:
        """One recording whose labels are checked as they are read, where it is known what they have to be.

        Raises:
            UserError: see `open`; or labels and windows do not fit each other.
        """
        recording = self.open(files)
        _require_one_clock(recording)
        return with_checks(recording, self.label_kind, len(self.classes)) if self.label_kind else recording

    def recordings(self, split: str, opened: Callable[[int, int], None] | None = None) -> list[LabelledRecording]:
        """All recordings of a split.

        Args:
            split: "train", "val" or "test".
            opened: called with the recordings that are open and all there are; the first opening reads their times.

        Raises:
            UserError: see `files` and `open`.
        """
        found = []
        every = self.files(split)
        for files in every:
            found.append(self.open_checked(files))
            if opened is not None:
                opened(len(found), len(every))
        return found

    @classmethod
    def split_of(cls, path: Path, splits: Mapping[str, Sequence[str]]) -> str | None:
        """The split that a recording of the official archive belongs to, wherever it lies.

        Args:
            path: of the recording, or of a folder within it.
            splits: names of the recordings of each split.

        Returns:
            the split, None where it is in none or of another dataset, `UNKNOWN` where that cannot be told.
        """
        return next((split for split in splits for name in splits[split] if cls.is_called(path, name)), None)

    @classmethod
    def is_called(cls, path: Path, name: str) -> bool:
        """Whether a file or folder belongs to the official recording `name`, which names it or a folder it lies in."""
        parts = [part for part in path.parts[-LEVELS:] if name in part]
        return any(re.search(rf"(?<![a-zA-Z0-9]){re.escape(name)}(?![a-zA-Z0-9])", part) for part in parts)

    def describe(self) -> dict[str, str]:
        """The protocol in words: what is read, and which of the published ways is followed."""
        return {"layout": self.layout, "events": self.rule.describe()}

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        return _unpickled, (Path(inspect.getfile(kind)), kind.__module__, kind.__qualname__, self.__dict__)


def _require_one_clock(recording: LabelledRecording) -> None:
    """Refuse labels none of which has events: they are of another recording, or of another clock."""
    if not isinstance(recording.source, EventSource) or not len(recording.labelled):
        return
    stream, windows = recording.stream, recording.windows[recording.labelled]
    first = windows[min(1, len(windows) - 1), 0]  # that of the first label may begin with the recording
    if windows[-1, 1] <= stream.t_first or first > stream.t_last:
        labels = f"its labels lie at {windows[0, 1]} to {windows[-1, 1]} us"
        what = f"{labels}, the events at {stream.t_first} to {stream.t_last}"
        raise UserError(f"{recording.path}, recording {recording.name}", what, "give labels by the events' clock")


def _unpickled(file: Path, module: str, name: str, state: dict[str, Any]) -> LabelledDataset:
    """A dataset in another process, which has not imported the file that `--import` named."""
    if module not in sys.modules and importlib.util.find_spec(module) is None:
        import_file(file)
    kind: type[LabelledDataset] = getattr(importlib.import_module(module), name)
    dataset = object.__new__(kind)
    dataset.__dict__.update(state)
    return dataset
