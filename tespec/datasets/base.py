"""Base class of labelled data sets: recordings by split, in any supported layout on disk."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.config import finetuning_settings
from tespec.core.description import FILE, LEVELS_ABOVE, Description, read_description
from tespec.core.errors import UserError, require
from tespec.core.progress import progress
from tespec.core.settings import (
    ARCHITECTURES,
    Binning,
    Downsample,
    RecordingSettings,
    Rule,
    Size,
    build,
)
from tespec.datasets.archive import Source
from tespec.datasets.labels import ego_speed_at, with_checks
from tespec.datasets.recording import LabelledRecording, Labels, label_windows, window_us
from tespec.datasets.sources import pack_missing, recording_exists, unique_path
from tespec.events import Events
from tespec.events.histogram import Region

SPLITS = TRAIN, HELD_OUT, TEST = "train", "val", "test"
# in place of a split: a recording of the data set whose split cannot be determined
UNKNOWN = "unknown"
# labels this long before the first or after the last event have another clock
LATEST_US = 1_000_000
# Labels at most this far apart, whose times would fit the events as ms, are in ms or s.
CLOSEST_US = 1_000


class RecordingFiles(NamedTuple):
    """Files of a recording."""

    name: str
    split: str
    source: Source  # of its histograms
    label_files: tuple[Path, ...]  # labels, label times, speeds


class LabelledWindow(NamedTuple):
    """A label and the events of the window that ends at it."""

    events: NDArray[np.uint8] | Events  # histogram (2*bins, H, W), or the events themselves
    label: Any  # a mask, a depth map or boxes, see `tespec.datasets.recording.Labels`
    name: str  # of the recording
    time: int  # of the label in us, on the clock of the recording


@dataclass(frozen=True)
class NoProtocol:
    """Options of data sets on which published protocols do not differ."""


class LabelledDataset(ABC):
    """A labelled data set: item i is label i of a split with the events of the window before it.

    Items are `LabelledWindow`s of arrays and need no torch. A data set can be pickled, so a torch
    `DataLoader` reads it with any number of workers (a `collate_fn` must pad boxes, whose number
    differs). Its first item opens the recordings, and packs those without a packed store. Values
    that are not given are the published ones: those of the config in `configs/tasks/` and of a
    `dataset.json` in the folder.

    Classes registered in `DATASETS` have the download guide as their docstring.

    Args:
        root: folder of the data set.
        split: split of the items, "train", "val" or "test".
        window_ms: length of a window in ms; None: the time since the previous label.
        contiguous: whether the windows contain each event once, as recurrent networks need it, and
            have about the length `window_ms`; if not, the window of a label is the `window_ms`
            before it.
        events: whether items contain `Events`, x and y in px of the full sensor, instead of a
            histogram.
        bins: time bins per window.
        rule: "edges" or "rvt", see `tespec.events.event_histogram`.
        classes: names of the classes, in the order of their numbers.
        splits: names of the recordings by split; None for a split: those of the archive.
        sensor: (height, width) in px, for recordings that do not store it.
        downsample: spatial downsampling of events and labels.
        protocol: options on which published protocols differ, by name, see the class's
            `protocol_type`.

    Raises:
        UserError: if the data set is not in `root`, or a value is not allowed.
    """

    # name in tables; in lower case, the name of the task with the published settings
    title: ClassVar[str]
    # Names of the recordings of each split, as in the official archive or in published code.
    splits: Mapping[str, Sequence[str]] = MappingProxyType({})
    sensor: ClassVar[Size | None] = None  # (height, width) in px
    # labels, or windows of 50 ms, of the official test recordings, to estimate an evaluation
    test_windows: ClassVar[int] = 0
    protocol_type: ClassVar[type[Any]] = NoProtocol  # dataclass of the options in `protocol`
    divides_labels: ClassVar[bool] = False  # whether labels can be downsampled with the events
    layout: str  # description of the layout on disk
    label_kind: str | None = None  # as in `tespec.datasets.labels`; None: labels are not checked

    def __init__(
        self,
        root: Path | str,
        split: str = TRAIN,
        *,
        window_ms: float | None,
        contiguous: bool = False,
        events: bool = False,
        bins: int = RecordingSettings.bins,
        rule: Rule = RecordingSettings.rule,
        classes: Sequence[str] | None = None,
        splits: Mapping[str, Sequence[str] | None] | None = None,
        sensor: Size | None = None,
        downsample: Downsample | None = None,
        protocol: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = Path(root)
        self.split = split
        self.events = events
        if not self.root.is_dir():
            raise UserError(root, "no such folder", f"give the folder of the {self.title} data set")
        description = read_description(self.root)
        if classes is None or splits is None or downsample is None or protocol is None:
            published = finetuning_settings(
                self.title.casefold(), ARCHITECTURES[0], "paper", of_data=description.overrides()
            )
            classes = published.classes if classes is None else classes
            splits = published.splits | dict(splits or {})
            downsample = downsample or published.downsample
            protocol = published.protocol | dict(protocol or {})
        if window_ms is not None:
            window_us(window_ms)  # refuses other values than lengths
        self.window_ms = window_ms
        self.contiguous = contiguous
        self.user_sensor = sensor
        self.binning = build(Binning, {"bins": bins, "rule": rule}, "histograms")
        self.protocol = build(self.protocol_type, protocol, "protocol")
        self.downsample = downsample
        self.classes = tuple(classes)
        listed = {
            part: self.splits.get(part) if names is None else names
            for part, names in splits.items()
        }
        self.splits = {part: tuple(names) for part, names in listed.items() if names}
        self._refuse_repeated(self.splits)
        require(
            self.divides_labels or downsample.factor == 1,
            "downsample.factor",
            f"labels of {self.title} cannot be downsampled",
            "set it to 1",
        )
        require(
            not self.classes or description.classes in ((), self.classes),
            root,
            f"its dataset.json lists the classes {', '.join(description.classes)}, "
            f"not {', '.join(self.classes)}",
            "list the same classes in both",
        )

    def __len__(self) -> int:
        """Number of labels of the split."""
        return len(self._labels)

    def __getitem__(self, index: int) -> LabelledWindow:
        """Label `index` of the split and the events of its window."""
        recording, label = self._labels[index]
        window = int(recording.label_indices[label])
        start, end = recording.windows[window].tolist()
        events: NDArray[np.uint8] | Events = (
            recording.stream.slice(start, end)
            if self.events
            else recording.histograms(window, 1, self.binning)[0]
        )
        return LabelledWindow(events, recording.labels[label], recording.name, end)

    @cached_property
    def _labels(self) -> list[tuple[LabelledRecording, int]]:
        """Recording and index of each label of the split."""
        pack_missing(files.source for files in self.files(self.split))
        return [
            (recording, label)
            for recording in self.recordings(self.split)
            for label in range(len(recording.label_indices))
        ]

    def refuse_description(self, folder: Path) -> None:
        """Refuse a `dataset.json` that would be ignored.

        Args:
            folder: at or below the root, with recordings in it.
        """
        inner = read_description(folder)
        # A sensor's size is read from the nearest description, all else from the given folder.
        require(
            inner in (read_description(self.root), Description(sensor=inner.sensor)),
            folder / FILE,
            f"would be ignored, since its folder is below the given one, {self.root}",
            f"give {folder}",
        )

    def _refuse_repeated(self, splits: Mapping[str, Iterable[str]]) -> None:
        split_of: dict[str, str] = {}
        listed = ((split, name) for split, names in splits.items() for name in names)
        for split, name in listed:
            if name != "*" and name in split_of:
                raise UserError(
                    self.root,
                    f"{name} is in {split_of[name]} and again in {split}",
                    "list it once, in one of the splits",
                )
            split_of[name] = split

    def names(self, split: str) -> tuple[str, ...]:
        """Names of the recordings of a split."""
        if split in self.splits:
            return tuple(self.splits[split])
        what = f"{self.title} has no {split} split: no recordings are listed"
        remedy = f"list some in splits.{split} (with --set, a config or a dataset.json)"
        raise UserError(self.root, what, remedy)

    @abstractmethod
    def find(self, split: str, name: str) -> RecordingFiles:
        """Find the files of a recording.

        Args:
            split: "train", "val" or "test".
            name: name of the recording, see `names`.

        Raises:
            UserError: if a file is missing.
        """

    def locate(self, paths: Sequence[Path], split: str) -> Path:
        """Return the recording that is at one of several paths.

        Args:
            paths: files or folders; a packed store stands for its recording.
            split: split of the recording, for the message.

        Raises:
            UserError: if none exists, or several that are not links to one of them, or if a
                `dataset.json` beside it would be ignored.
        """
        existing = [path for path in paths if recording_exists(path)]
        if not existing:
            what = f"recording of the {split} split is missing"
            raise UserError(paths[0], what, "copy it there")
        path = unique_path(existing)
        self.refuse_description(path.parent)
        return path

    def files(self, split: str) -> list[RecordingFiles]:
        """Files of each recording of a split, in the order of `names`."""
        return [self.find(split, name) for name in self.names(split)]

    @abstractmethod
    def open(self, files: RecordingFiles) -> LabelledRecording:
        """Open one recording with its windows and labels; see `labelled_recording`."""

    def labelled_recording(
        self,
        files: RecordingFiles,
        region: Region,
        labels: Labels,
        times: NDArray[np.int64],
        begin: int,
        **more: Any,
    ) -> LabelledRecording:
        """Build a labelled recording with windows as set by `window_ms` and `contiguous`.

        Args:
            files: files of the recording.
            region: part of the sensor that carries labels.
            labels: K labels in px of the histograms.
            times: (K,) times of the labels in us, rising, on the clock of the events.
            begin: time in us, before the first label, at which its events begin.
            **more: other fields of `LabelledRecording`.

        Raises:
            UserError: if the labels have another clock than the events, or more rows than the
                sensor, or if their times do not rise.
        """
        facts = files.source.facts
        require(
            region.height <= facts.height,
            files.source.path,
            f"has {facts.height} rows, fewer than the {region.height} rows with labels",
            "set protocol.rows, or specify the sensor's size in dataset.json",
        )
        if not len(times) or (np.diff(times, prepend=begin) <= 0).any():
            what = f"its label times step back or repeat, or begin at or before {begin} us"
            raise UserError(
                f"{files.source.path}, recording {files.name}",
                what if len(times) else "has no labels",
                "copy its labels again",
            )
        self.require_clock(files, times)
        windows, label_indices = label_windows(times, begin, self.window_ms, self.contiguous)
        # a zip archive holds the same masks as the folder that is extracted from it
        tables = [path for path in files.label_files if path.is_file() and path.suffix != ".zip"]
        more = {"ego_speed": self.ego_speed(files.name, times), "files": tuple(tables)} | more
        return LabelledRecording(
            files.name, files.source, region, windows, labels, label_indices, **more
        )

    def ego_speed(self, name: str, times: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Speeds (K,) of the camera in m/s at `times` (K,) in us, if the data set holds them."""
        return ego_speed_at(self.root / "ego_speed" / f"{name}.npy", times)

    def require_clock(self, files: RecordingFiles, times: NDArray[np.int64]) -> None:
        """Refuse labels that have another clock, or another unit of time, than the events.

        Args:
            files: files of the recording.
            times: (K,) times of the labels in us, rising, at least one.
        """
        facts = files.source.facts
        first = facts.t_first - LATEST_US
        last = facts.t_last + LATEST_US
        is_apart = not (first <= times[0] and facts.t_first < times[-1] <= last)
        is_dense = len(times) > 1 and np.median(np.diff(times)) <= CLOSEST_US
        if is_apart or (is_dense and first <= 1000 * times[0] and 1000 * times[-1] <= last):
            raise UserError(
                f"{files.source.path}, recording {files.name}",
                f"its labels are at {times[0]} to {times[-1]} us, "
                f"the events at {facts.t_first} to {facts.t_last}",
                "copy events and labels again, or convert label times to the events' clock, in us",
            )

    def open_checked(self, files: RecordingFiles) -> LabelledRecording:
        """Open one recording whose labels are checked as they are read."""
        return with_checks(self.open(files), self.label_kind, len(self.classes))

    def recordings(self, split: str) -> list[LabelledRecording]:
        """Open all recordings of a split."""
        recordings: list[LabelledRecording] = []
        split_files = self.files(split)
        with progress(f"opening recordings ({split})", "recordings") as advance:
            for files in split_files:
                recordings.append(self.open_checked(files))
                advance(len(recordings), len(split_files), "")
        return recordings

    @classmethod
    def split_of(cls, path: Path, splits: Mapping[str, Sequence[str]]) -> str | None:
        """Determine the split of an official recording, in any folder.

        Args:
            path: file or folder.
            splits: names of the recordings by split.

        Returns:
            The split, None for other recordings, or `UNKNOWN` if it could be in any split.
        """
        matches = (split for split in splits for name in splits[split] if cls.is_called(path, name))
        return next(matches, None)

    @classmethod
    def is_called(cls, path: Path, name: str) -> bool:
        """Whether a path or a folder above it is named after a recording.

        Args:
            path: file or folder.
            name: name of an official recording.
        """
        parts = [part.casefold() for part in path.parts[-LEVELS_ABOVE:]]
        pattern = rf"(?<![a-z0-9]){re.escape(name.casefold())}(?![a-z0-9])"
        # The first condition is much faster.
        return any(name.casefold() in part and re.search(pattern, part) for part in parts)

    def describe(self) -> dict[str, str]:
        """Describe the protocol: layout, events per label, and options."""
        events = "all events since the previous label"
        if self.window_ms is not None and self.contiguous:
            events += f" in windows of about {self.window_ms:g} ms"
        elif self.window_ms is not None:
            events = f"the {self.window_ms:g} ms before the label"
        options = vars(self.protocol) | {"downsample": self.downsample.factor}
        texts = (
            f"{name} {len(value) if isinstance(value, tuple) else value}"
            for name, value in options.items()
        )
        return {"layout": self.layout, "events": events, "protocol": ", ".join(texts)}
