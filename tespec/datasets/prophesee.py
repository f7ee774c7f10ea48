"""The base of Gen1 and 1Mpx: recordings with boxes, from raw files or from archives of histograms."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np

from tespec.core.errors import UserError
from tespec.core.registry import DATASETS
from tespec.datasets.base import HELD_OUT, LEVELS, SPLITS, TRAIN, UNKNOWN, LabelledDataset, RecordingFiles
from tespec.datasets.labels import speed_at, speed_file
from tespec.datasets.prophesee_boxes import (
    BoxLabels,
    PropheseeProtocol,
    box_labels,
    choose_boxes,
    choose_frames,
    raw_boxes,
    read_boxes,
    start_of,
)
from tespec.datasets.recording import LabelledRecording, reduced
from tespec.datasets.rvt_archive import LABELS, REPRESENTATIONS, WINDOW_US, ArchiveSource, archive_of, read_places
from tespec.datasets.sources import STORE, EventSource, names_size
from tespec.events.readers.hdf5 import (
    AGAIN,
    COLUMNS,
    SUFFIXES,
    holds,
    number_of_events,
    part,
    read_events,
    resolve,
    translate_errors,
)
from tespec.events.readers.sensor import described_size, resolve_size
from tespec.events.stream import Reader

DAT, H5, ARCHIVE = "Prophesee .dat", "RVT's intermediate .h5", "RVT's preprocessed archive"
BOXES = "_bbox.npy"
PROPHESEE_H5 = "CD/events"  # of Prophesee's own HDF5 files, whose codec nothing here reads
# What event files end with, by layout; each may have been replaced by its packed store.
ENDINGS = {"_td.dat": DAT, "_td.dat.h5": H5, "_td.h5": H5}


def find_root(root: Path) -> Path:
    """The folder that holds train, val and test: `root`, or the only one in it that does.

    Raises:
        UserError: there is none, or more than one.
    """
    if any((root / split).is_dir() for split in SPLITS):
        return root
    inside = [path for path in sorted(root.iterdir()) if any((path / split).is_dir() for split in SPLITS)]
    if len(inside) != 1:
        found = "none" if not inside else f"{len(inside)} folders in it do"
        what = f"holds no folders {', '.join(SPLITS)} ({found})"
        raise UserError(root, what, "give the folder that holds them")
    return inside[0]


def recordings_in(folder: Path) -> dict[str, tuple[Path, str]]:
    """Event file, or folder of an archive, and layout of each recording of a split, by name, in order.

    A folder that has the histograms of an archive, or the labels, counts as a recording: that the other is missing is
    said when it is opened, instead of it being passed over.

    Raises:
        UserError: a recording is there twice.
    """
    found: dict[str, tuple[Path, str]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        for name, event_file, layout in _recording(path):
            if name in found and found[name][0] != event_file:
                raise UserError(event_file, f"is there as {found[name][0].name} as well", "keep one of them")
            found[name] = (event_file, layout)
    return dict(sorted(found.items()))


def labels_without_events(folder: Path, names: Collection[str]) -> list[Path]:
    """Files of boxes in the folder of a split that belong to none of the recordings `names`, in order."""
    return [path for path in sorted(folder.glob(f"*{BOXES}")) if path.name.removesuffix(BOXES) not in names]


def _recording(path: Path) -> list[tuple[str, Path, str]]:
    if (path / REPRESENTATIONS).is_dir() or (path / LABELS).is_file():
        return [(path.name, path, ARCHIVE)]
    packed = path.is_dir() and path.name.endswith(STORE)
    file = path.with_name(path.name.removesuffix(STORE)) if packed else path
    if not packed and not path.is_file():
        return []
    endings = [ending for ending in ENDINGS if file.name.endswith(ending)]
    return [(file.name.removesuffix(ending), file, ENDINGS[ending]) for ending in endings]


EVERY = ("*",)  # names of a split that stand for every recording in its folder


class PropheseeDataset(LabelledDataset):
    """See `LabelledDataset`; subclasses say what is particular to one of the two.

    Attributes:
        sensor: (H, W) in px.
        known_classes: number of classes in the files of boxes.
        official: how names of the archive's recordings begin.
    """

    protocol_type = PropheseeProtocol
    not_downsampled = ""
    protocol: PropheseeProtocol
    sensor: ClassVar[tuple[int, int]]
    known_classes: ClassVar[int]
    official: ClassVar[re.Pattern[str]]

    def __init__(self, root: Path, *arguments: Any, **named: Any) -> None:
        super().__init__(root, *arguments, **named)
        self.protocol.check()
        self.root = find_root(self.root)
        self._found = {split: recordings_in(self.root / split) for split in self.splits}
        if self.splits.get(HELD_OUT) == EVERY and not self._found[HELD_OUT]:
            del self.splits[HELD_OUT]
        self._refuse_shared({split: found.keys() - set(self.protocol.skip) for split, found in self._found.items()})
        layouts: dict[str, Path] = {}
        for recordings in self._found.values():
            for path, layout in recordings.values():
                layouts.setdefault(layout, path)
        if len(layouts) > 1:
            said = " and ".join(f"{layout} ({path.name})" for layout, path in layouts.items())
            raise UserError(self.root, f"two layouts are mixed: {said}", "keep one of them")
        self.layout = next(iter(layouts), "no recordings")

    @classmethod
    def reads(cls, path: Path) -> bool:
        """Whether an HDF5 file has events as RVT's preprocessing starts from, or as Prophesee's own recorders write."""
        if path.suffix.lower() not in SUFFIXES:
            return False
        of_dsec = holds(path, "t_offset", "ms_to_idx")
        return holds(path, PROPHESEE_H5) or (holds(path, *COLUMNS) and not of_dsec)

    @classmethod
    def reader(cls, path: Path, height: int | None = None, width: int | None = None) -> Reader:
        """What reads RVT's intermediate HDF5: x, y, t, p in us, polarities 0 and 1 or -1 and 1."""
        if holds(path, PROPHESEE_H5):
            what = "is Prophesee's own HDF5 format, whose codec is not read"
            raise UserError(path, what, "convert it to .raw or .dat")
        count = number_of_events(path)
        size = resolve_size(path, height, width, _named_size(path))
        return Reader(path, *size, count, lambda: read_events(path, size, count))

    def names(self, split: str) -> tuple[str, ...]:
        """Names of the recordings of a split; those with faulty labels are left out."""
        names = super().names(split)
        if names == EVERY:
            names = tuple(self._found.get(split, ()))
            alone = labels_without_events(self.root / split, {*names, *self.protocol.skip})
            if alone:
                raise UserError(alone[0], "has no events beside it", "copy the recording's events beside its boxes")
        if not names:
            raise UserError(self.root / split, "holds no recordings", "copy the split's files into it")
        return tuple(name for name in names if name not in self.protocol.skip)

    def find(self, split: str, name: str) -> RecordingFiles:
        """What one recording consists of."""
        if name not in self._found.get(split, {}):
            path = self.root / split / f"{name}_td.dat"
            raise UserError(path, f"recording of the {split} split is missing", "copy it into the folder")
        path, layout = self._found[split][name]
        speed = [file for file in (speed_file(self.root, name),) if file.is_file()]
        if layout == ARCHIVE:
            return RecordingFiles(name, split, archive_of(path, self.given_sensor), tuple(speed))
        boxes = path.with_name(name + BOXES)
        if not boxes.is_file():
            raise UserError(boxes, "no such file, but there are events", "copy the recording's boxes beside its events")
        # A header's size wins over the dataset's, which older files without one need.
        known = None if names_size(path) else described_size(path) or self.sensor
        source = EventSource(path, self.given_sensor or known)
        return RecordingFiles(name, split, source, (boxes, *speed))

    def open(self, files: RecordingFiles) -> LabelledRecording:
        """One recording with its boxes."""
        if isinstance(files.source, ArchiveSource):
            return self._open_archive(files, files.source)
        stream = files.source.stream
        boxes = read_boxes(files.beside[0], self.known_classes)
        if not len(boxes.t):
            raise UserError(files.beside[0], "holds no boxes", "copy it again, or leave the recording out")
        if boxes.t[-1] > stream.t_last + self.protocol.period_us or boxes.t[-1] < stream.t_first:
            events = f"{stream.t_first / 1e6:.3f} to {stream.t_last / 1e6:.3f} s"
            what = f"its boxes lie at {boxes.t[0] / 1e6:.3f} to {boxes.t[-1] / 1e6:.3f} s, the events at {events}"
            raise UserError(files.beside[0], what, "copy boxes and events again")
        region = reduced(stream.height, stream.width, self.downsample)
        training = files.split == TRAIN
        count = len(self.classes) or self.known_classes
        kept = choose_boxes(boxes, self.protocol, count, stream.height, stream.width, training)
        start = start_of(stream.t_first)
        times = choose_frames(kept.t, self.protocol, start)
        if not len(times):
            what = "has no label frame left after the filters"
            raise UserError(files.beside[0], what, "leave the recording out (protocol.skip), or set protocol.boxes=all")
        windows, labelled = self.rule.apply(times, min(start, int(times[0]) - 1))
        return LabelledRecording(
            name=files.name,
            source=files.source,
            region=region,
            windows=windows,
            labels=box_labels(kept, times, region.factor),
            labelled=labelled,
            ego_speed=speed_at(self.root, files.name, times),
            left_out=len(np.unique(boxes.t)) - len(times),
            start=start,
        )

    def _open_archive(self, files: RecordingFiles, source: ArchiveSource) -> LabelledRecording:
        path, length = source.path / LABELS, self.rule.length_ms
        if length is None or length * 1000 != WINDOW_US:
            asked = "all events since the previous label" if length is None else f"{length:g} ms"
            what = f"holds windows of {WINDOW_US / 1000:g} ms, not of {asked}"
            raise UserError(source.path, what, f"give --set window_ms={WINDOW_US // 1000}, or the raw recordings")
        windows, region = source.windows(), source.region
        stored, first, places = read_places(source.path, len(windows))
        boxes = raw_boxes(stored, path, len(self.classes) or self.known_classes)
        if not len(boxes.t):
            raise UserError(path, "holds no boxes", "unpack the archive again, or leave the recording out")
        size = (region.width, region.height)
        corners = np.clip(boxes.corners / source.factor, 0, (*size, *size)).astype(np.float32)
        labels = BoxLabels(corners, boxes.label, np.append(first, len(boxes.t)).astype(np.int64))
        times = windows[places, 1]
        if (boxes.t != np.repeat(times, np.diff(labels.borders))).any():
            raise UserError(path, "has boxes at other times than the histograms they belong to", "unpack it again")
        if not self.rule.recurrent:
            windows, places = windows[places], np.arange(len(places), dtype=np.int64)
        return LabelledRecording(
            name=files.name,
            source=source,
            region=region,
            windows=windows,
            labels=labels,
            labelled=places,
            ego_speed=speed_at(self.root, files.name, times),
            start=start_of(max(0, int(source.windows()[0, 0]))),
        )

    @classmethod
    def split_of(cls, path: Path, splits: Mapping[str, Sequence[str]]) -> str | None:
        """The split of a recording, which the folder it lies in alone tells."""
        parts = path.parts[-LEVELS:]
        if not any(cls.official.match(part) for part in parts):
            return None
        return next((part for part in reversed(parts) if part in SPLITS), UNKNOWN)

    def describe(self) -> dict[str, str]:
        """The protocol in words."""
        chosen = self.protocol
        if self.layout == ARCHIVE:
            return super().describe() | {
                "labels": "as RVT's archive holds them",
                "windows": "as RVT's archive holds them, at its resolution; events at a border count on both sides",
            }
        about = "about " if chosen.period_from_labels else ""
        frames = (
            f"one frame each {about}{chosen.period_ms:g} ms" if chosen.frames == "rvt" else "every frame with boxes"
        )
        boxes = (
            f"diagonal from {chosen.min_diagonal:g} px, sides from {chosen.min_side:g} px, in training not wider than "
            f"{chosen.max_width_share:.0%} of the sensor"
            if chosen.boxes == "rvt"
            else "of any size"
        )
        factor, widest = self.downsample.factor, self.downsample.to_width
        by = f"by the lowest whole number that makes {widest} px or less wide" if factor == "auto" else f"by {factor}"
        reduced_by = f", then divided {by}" if factor not in (1, "auto") or (factor == "auto" and widest) else ""
        return super().describe() | {
            "labels": f"{frames}; boxes cropped to the sensor, {boxes}{reduced_by}",
            "left out": f"{len(chosen.skip)} recordings with faulty labels",
        }


def _named_size(path: Path) -> tuple[int, int] | None:
    """(height, width) as the file names them."""
    found = []
    for name in ("height", "width"):
        with translate_errors(path, name):
            value = resolve(path, f"events/{name}")
            if not isinstance(value, h5py.Dataset):
                return None
            if value.dtype.kind not in "iu" or value.size != 1:
                raise UserError(path, f"its {name} is {value.dtype} of shape {value.shape}", AGAIN)
            found.append(int(part(path, f"events/{name}")[()].item()))
    return found[0], found[1]


@DATASETS.register_module()
class Gen1(PropheseeDataset):
    """Gen1: 304x240 px, cars and pedestrians at 1, 2 or 4 Hz; see `PropheseeDataset`."""

    title = "Gen1"
    sensor = (240, 304)
    known_classes = 2
    official = re.compile(r"\d\d-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")


@DATASETS.register_module()
class OneMpx(PropheseeDataset):
    """1Mpx: 1280x720 px, seven classes at 30 or 60 Hz, of which the first three count; see `PropheseeDataset`."""

    title = "1Mpx"
    sensor = (720, 1280)
    known_classes = 7
    official = re.compile(r"moorea_\d{4}-\d\d-\d\d_.*\d+_\d+")
