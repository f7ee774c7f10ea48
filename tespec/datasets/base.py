"""Base class of labelled data sets: recordings by split, in any supported layout on disk."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.description import LEVELS, read_description
from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Finetuning, Size, build
from tespec.datasets.archive import Source
from tespec.datasets.labels import speed_at, with_checks
from tespec.datasets.recording import LabelledRecording, Labels, WindowRule
from tespec.events.histogram import Region

SPLITS = TRAIN, HELD_OUT, TEST = "train", "val", "test"
UNKNOWN = "unknown"  # in place of a split: a recording of the data set whose split cannot be determined
LATEST_US = 1_000_000  # a label this long after the last event means that events are missing


class RecordingFiles(NamedTuple):
    """Files of a recording."""

    name: str
    split: str
    source: Source  # of its histograms
    beside: tuple[Path, ...]  # other files: labels, label times, speeds


class LabelledDataset(ABC):
    """Base class of labelled data sets; those registered in `DATASETS` have the download guide as their docstring."""

    title: ClassVar[str]  # name in tables
    # Names of the recordings of each split, as in the official archive or in published code.
    splits: Mapping[str, Sequence[str]] = MappingProxyType({})
    sensor: ClassVar[Size | None] = None  # (height, width) in px
    protocol_type: ClassVar[type[Any]] = make_dataclass("NoProtocol", ())  # options on which published protocols differ
    divides_labels: ClassVar[bool] = False  # whether labels can be downsampled with the events
    layout: str  # description of the layout on disk
    label_kind: str | None = None  # as in `tespec.datasets.labels`, set by the task; None: labels are not checked

    def __init__(self, root: Path, settings: Finetuning) -> None:
        if not root.is_dir():
            raise UserError(root, "no such folder", f"give the folder of the {self.title} data set")
        self.root, self.classes, self.given_sensor = root, settings.classes, settings.sensor
        named = {split: self.splits.get(split) if names is None else names for split, names in settings.splits.items()}
        self.splits = {split: tuple(names) for split, names in named.items() if names}
        self._refuse_repeated(self.splits)
        self.rule, self.downsample = WindowRule(settings.recurrent, settings.window_ms), settings.downsample
        self.protocol = build(self.protocol_type, settings.protocol, "protocol")
        if not self.divides_labels and self.downsample.factor != 1:
            raise UserError("downsample.factor", f"labels of {self.title} cannot be downsampled", "set it to 1")
        described = read_description(root).classes
        if self.classes and described and described != self.classes:
            what = f"its dataset.json lists the classes {', '.join(described)}, not {', '.join(self.classes)}"
            raise UserError(root, what, "list the same classes in both")

    def _refuse_repeated(self, splits: Mapping[str, Iterable[str]]) -> None:
        first: dict[str, str] = {}
        for split, name in ((split, name) for split, names in splits.items() for name in names if name != "*"):
            if name in first:
                what = f"{name} is in {first[name]} and again in {split}"
                raise UserError(self.root, what, "list it once, in one of the splits")
            first[name] = split

    def names(self, split: str) -> tuple[str, ...]:
        """Names of the recordings of a split."""
        if split in self.splits:
            return tuple(self.splits[split])
        if split == HELD_OUT:
            remedy = "move some from splits.train to splits.val (with --set, a config or a dataset.json)"
            raise UserError(self.root, f"{self.title} has no validation split: no recordings are listed", remedy)
        raise UserError(self.root, f"no recordings are listed for split {split}", "add them to splits in the settings")

    @abstractmethod
    def find(self, split: str, name: str) -> RecordingFiles:
        """Files of one recording of a split."""

    def files(self, split: str) -> list[RecordingFiles]:
        """Files of each recording of a split, in the order of `names`."""
        return [self.find(split, name) for name in self.names(split)]

    @abstractmethod
    def open(self, files: RecordingFiles) -> LabelledRecording:
        """Open one recording with its windows and labels; see `labelled`."""

    def labelled(
        self, files: RecordingFiles, region: Region, labels: Labels, times: NDArray[np.int64], begin: int, **more: Any
    ) -> LabelledRecording:
        """Build a labelled recording with windows as set by `rule`.

        `times` (K,) are those of the labels in us, rising, on the clock of the events; times on another clock are
        refused. The first label's events start at `begin`, before it. `more` are other fields of `LabelledRecording`.
        """
        stream = files.source.stream
        if region.height > stream.height:
            what = f"has {stream.height} rows, fewer than the {region.height} rows with labels"
            raise UserError(files.source.path, what, "set protocol.rows, or specify the sensor's size in dataset.json")
        if len(times) and (times[-1] <= stream.t_first or times[-1] > stream.t_last + LATEST_US):
            what = f"its labels are at {times[0]} to {times[-1]} us, the events at {stream.t_first} to {stream.t_last}"
            where = f"{files.source.path}, recording {files.name}"
            raise UserError(where, what, "copy events and labels again, or convert label times to the events' clock")
        windows, labelled = self.rule.apply(times, begin)
        more = {"ego_speed": speed_at(self.root, files.name, times)} | more
        return LabelledRecording(files.name, files.source, region, windows, labels, labelled, **more)

    def open_checked(self, files: RecordingFiles) -> LabelledRecording:
        """Open one recording whose labels are checked as they are read."""
        recording = self.open(files)
        return with_checks(recording, self.label_kind, len(self.classes)) if self.label_kind else recording

    def recordings(self, split: str) -> list[LabelledRecording]:
        """Open all recordings of a split."""
        found, every = [], self.files(split)
        with progress(f"opening recordings ({split})", "recordings") as advance:
            for number, files in enumerate(every, start=1):
                found.append(self.open_checked(files))
                advance(number, len(every), "")
        return found

    @classmethod
    def split_of(cls, path: Path, splits: Mapping[str, Sequence[str]]) -> str | None:
        """Split of an official recording, in any folder; None for others, `UNKNOWN` if it could be in any split."""
        return next((split for split in splits for name in splits[split] if cls.is_called(path, name)), None)

    @classmethod
    def is_called(cls, path: Path, name: str) -> bool:
        """Whether a path belongs to the official recording `name`, judging by its own name and the folders above."""
        parts = [part for part in path.parts[-LEVELS:] if name in part]
        return any(re.search(rf"(?<![a-zA-Z0-9]){re.escape(name)}(?![a-zA-Z0-9])", part) for part in parts)

    def describe(self) -> dict[str, str]:
        """Describe the protocol: layout, events per label, and options."""
        chosen = vars(self.protocol) | {"downsample": self.downsample.factor}
        words = (f"{name} {len(each) if isinstance(each, tuple) else each}" for name, each in chosen.items())
        return {"layout": self.layout, "events": self.rule.describe(), "protocol": ", ".join(words)}
