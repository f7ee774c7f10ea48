"""A labelled data set: its recordings by split, in whichever layout they lie on disk.

Whatever is missing, damaged or does not fit together on disk is a `UserError`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tespec.core.description import LEVELS, read_description
from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Downsample, Size, build
from tespec.datasets.labels import speed_at, with_checks
from tespec.datasets.recording import LabelledRecording, Labels, WindowRule
from tespec.datasets.sources import Source
from tespec.events.histogram import Region
from tespec.events.readers import Reader

SPLITS = TRAIN, HELD_OUT, TEST = "train", "val", "test"
UNKNOWN = "unknown"  # in place of a split: a recording of the data set, of which nothing says to which it belongs
LATEST_US = 1_000_000  # a label later than this after the last event shows that events are missing


@dataclass(frozen=True)
class RecordingFiles:
    """Name and split of one recording, its events or histograms, and its other files: labels, their times, speeds."""

    name: str
    split: str
    source: Source
    beside: tuple[Path, ...]


@dataclass(frozen=True)
class NoProtocol:
    """For data sets that leave nothing to choose."""


class LabelledDataset(ABC):
    """Base of data sets with labels. Subclasses are registered in `DATASETS`, and their docstring is the guide to them.

    Args:
        root: its folder.
        splits: names of the recordings of each split, those of the class where they are None; default: all of these.
        classes: names of the classes; empty where labels have none.
        rule: which events belong to a label.
        downsample: how coordinates are reduced.
        protocol: where published protocols differ, which is followed; fields of `protocol_type`.
        sensor: (height, width) of the sensor in px, for recordings that do not name it.

    Attributes:
        title: its name in tables.
        splits: names of the recordings of each split, as the official archive or its users have them.
        sensor: (height, width) of its sensor in px.
        layout: in words, which of the known layouts was found.
        label_kind: kind of its labels, as in `tespec.datasets.labels`, which the task sets; None: they are not checked.
        protocol: the choices, as an instance of `protocol_type`.
        divides_labels: whether its labels are divided as the events are where `downsample` asks for it.
    """

    title: ClassVar[str]
    splits: Mapping[str, Sequence[str]] = MappingProxyType({})
    sensor: ClassVar[Size | None] = None
    protocol_type: ClassVar[type[Any]] = NoProtocol
    divides_labels: ClassVar[bool] = False
    layout: str
    label_kind: str | None = None

    def __init__(
        self,
        root: Path,
        splits: Mapping[str, Sequence[str] | None] | None = None,
        classes: Sequence[str] = (),
        rule: WindowRule | None = None,
        downsample: Downsample | None = None,
        protocol: Mapping[str, Any] | None = None,
        sensor: Size | None = None,
    ) -> None:
        if not root.is_dir():
            raise UserError(root, "no such folder", f"give the folder of the {self.title} data set")
        self.root, self.classes, self.given_sensor = root, tuple(classes), sensor
        named = dict.fromkeys(self.splits) if splits is None else splits
        chosen = {split: self.splits.get(split, ()) if names is None else names for split, names in named.items()}
        self.splits = {split: tuple(names) for split, names in chosen.items() if names}
        self._refuse_shared(self.splits)
        self.rule = rule or WindowRule()
        self.downsample = downsample or Downsample(1, "nearest")
        self.protocol = build(self.protocol_type, protocol or {}, "protocol")
        if not self.divides_labels and self.downsample.factor != 1:
            raise UserError("downsample.factor", f"labels of {self.title} are not downsampled", "set it to 1")
        described = read_description(root).classes
        if self.classes and described and described != self.classes:
            what = f"its dataset.json names the classes {', '.join(described)}, not {', '.join(self.classes)}"
            raise UserError(root, what, "name the same in both")

    def _refuse_shared(self, splits: Mapping[str, Iterable[str]]) -> None:
        for (one, names), (other, others) in combinations(splits.items(), 2):
            for name in sorted({*names} & {*others} - {"*"}):
                what = f"{name} is a recording of both {one} and {other}"
                raise UserError(self.root, what, "leave it in one of the splits")

    @classmethod
    def reads(cls, path: Path) -> bool:
        """Whether a file or folder has the data set's own format of events, by the names in it."""
        return False

    @classmethod
    def reader(cls, path: Path, height: int | None = None, width: int | None = None) -> Reader:
        """What reads a file or folder of which `reads` is true; `height` and `width` in px as the user gives them."""
        raise NotImplementedError(f"{cls.__name__} reads no format of its own")

    def names(self, split: str) -> tuple[str, ...]:
        """Names of the recordings of a split."""
        if split in self.splits:
            return tuple(self.splits[split])
        if split == HELD_OUT:
            remedy = "take some out of splits.train and name them as splits.val: --set, a config, or a dataset.json"
            raise UserError(self.root, f"{self.title} has no validation split: no recordings are named for one", remedy)
        raise UserError(self.root, f"no recordings are named for split {split}", "name them in the settings' splits")

    @abstractmethod
    def find(self, split: str, name: str) -> RecordingFiles:
        """Files of one recording of a split."""

    def files(self, split: str) -> list[RecordingFiles]:
        """Files of each recording of a split, in the order of `names`."""
        return [self.find(split, name) for name in self.names(split)]

    @abstractmethod
    def open(self, files: RecordingFiles) -> LabelledRecording:
        """One recording with its windows and labels; see `labelled`."""

    def labelled(
        self,
        files: RecordingFiles,
        region: Region,
        labels: Labels[Any],
        times: NDArray[np.int64],
        begin: int,
        **more: Any,
    ) -> LabelledRecording:
        """A recording with the windows that the settings ask for.

        Args:
            files: of the recording.
            region: part of the sensor that is used.
            labels: by index.
            times: (K,) of the labels in us, rising, by the clock of the events; others are refused.
            begin: where the first label's events begin, in us; before the first label.
            more: other fields of `LabelledRecording`.
        """
        stream = files.source.stream
        if region.height > stream.height:
            what = f"has {stream.height} rows, of which {region.height} cannot carry labels"
            raise UserError(files.source.path, what, "set protocol.rows, or name the sensor's size in dataset.json")
        if len(times) and (times[-1] <= stream.t_first or times[-1] > stream.t_last + LATEST_US):
            what = f"its labels lie at {times[0]} to {times[-1]} us, the events at {stream.t_first} to {stream.t_last}"
            where = f"{files.source.path}, recording {files.name}"
            raise UserError(where, what, "copy events and labels again, or give labels by the events' clock")
        windows, labelled = self.rule.apply(times, begin)
        more = {"ego_speed": speed_at(self.root, files.name, times)} | more
        return LabelledRecording(files.name, files.source, region, windows, labels, labelled, **more)

    def open_checked(self, files: RecordingFiles) -> LabelledRecording:
        """One recording whose labels are checked as they are read."""
        recording = self.open(files)
        return with_checks(recording, self.label_kind, len(self.classes)) if self.label_kind else recording

    def recordings(self, split: str) -> list[LabelledRecording]:
        """All recordings of a split."""
        found, every = [], self.files(split)
        with progress(f"opening recordings ({split})", "recordings") as advance:
            for number, files in enumerate(every, start=1):
                found.append(self.open_checked(files))
                advance(number, len(every), "")
        return found

    @classmethod
    def split_of(cls, path: Path, splits: Mapping[str, Sequence[str]]) -> str | None:
        """The split that an official recording is in, wherever it lies; `UNKNOWN` where it may be in any of them."""
        return next((split for split in splits for name in splits[split] if cls.is_called(path, name)), None)

    @classmethod
    def is_called(cls, path: Path, name: str) -> bool:
        """Whether a file or folder belongs to the official recording `name`, which names it or a folder it lies in."""
        parts = [part for part in path.parts[-LEVELS:] if name in part]
        return any(re.search(rf"(?<![a-zA-Z0-9]){re.escape(name)}(?![a-zA-Z0-9])", part) for part in parts)

    def describe(self) -> dict[str, str]:
        """The protocol: what is read, and which of the published ways is followed."""
        chosen = vars(self.protocol) | {"downsample": self.downsample.factor}
        words = (f"{name} {len(each) if isinstance(each, tuple) else each}" for name, each in chosen.items())
        return {"layout": self.layout, "events": self.rule.describe(), "protocol": ", ".join(words)}
