"""Gen1 and 1Mpx: recordings with bounding boxes, from raw files or RVT's archives of histograms."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.description import LEVELS
from tespec.core.errors import UserError
from tespec.core.settings import Flag, NonNegativeFloat, PositiveFloat, Share, Size
from tespec.datasets.archive import REPRESENTATIONS, WINDOW_OF_FRAME, WINDOW_US, ArchiveSource
from tespec.datasets.base import HELD_OUT, SPLITS, TRAIN, UNKNOWN, LabelledDataset, RecordingFiles
from tespec.datasets.labels import BOXES, speed_at
from tespec.datasets.recording import LabelledRecording, reduced
from tespec.datasets.sources import EventSource
from tespec.datasets.splits import only_one, split_folders, split_named
from tespec.events.readers.arrays import AGAIN, load_array, load_arrays
from tespec.events.store import STORE
from tespec.registry import DATASETS

ARCHIVE = "RVT's preprocessed archive"  # layout
# Event files: Prophesee's, and those of RVT (uzh-rpg/RVT, scripts/genx/preprocess_dataset.py).
EVENT_FILES, BOX_FILE = ("_td.dat.h5", "_td.h5", "_td.dat"), "_bbox.npy"
LABELS = Path("labels_v2") / "labels.npz"  # in a recording folder of RVT's archives
# in the same file: row of the first box of each label frame
ROW_OF_FRAME = "objframe_idx_2_label_idx"
EVERY = ("*",)  # in place of a split's names: every recording in its folder

# earlier label frames are left out (uzh-rpg/RVT, scripts/genx/preprocess_dataset.py)
FIRST_LABEL_US = 100_000
# the first event is earlier if the clock starts with the recording, as in the archives
LATEST_FIRST_US = 1_000_000
TOLERANCE_US = 2_000  # by which label frames may deviate from the period
SKIP = "add the recording to the list protocol.skip"
# no coordinate or size is larger; damaged ones may be close to the limit of float32
LARGEST_PX = 1e6


class RawBoxes(NamedTuple):
    """Boxes in time order: t (N,) int64 in us, corners (N, 4) float32 in px of the sensor, label (N,) int64."""

    t: NDArray[np.int64]
    corners: NDArray[np.float32]
    label: NDArray[np.int64]

    def keep(self, kept: NDArray[np.bool_]) -> "RawBoxes":
        """Boxes selected by a mask (N,)."""
        return RawBoxes(self.t[kept], self.corners[kept], self.label[kept])

    def downsampled(self, factor: int, sensor: Size) -> "RawBoxes":
        """Boxes on a sensor (height, width), in px of histograms downsampled by `factor`, without flat ones.

        They are cropped to the last pixel of the histograms, as in uzh-rpg/RVT
        (data/genx_utils/labels.py, `scale_`).
        """
        corners = (self.corners / factor).astype(np.float32)
        corners[:, 2:] = np.minimum(corners[:, 2:], np.array(sensor[::-1], np.float32) / factor - 1)
        return self._replace(corners=corners).keep(np.all(corners[:, 2:] > corners[:, :2], axis=1))


def raw_boxes(stored: NDArray[Any], path: Path, known_classes: int) -> RawBoxes:
    """Read and check boxes of a structured array with fields x, y, w, h, class_id and t (ts in old files)."""
    time = "ts" if "ts" in (stored.dtype.names or ()) else "t"
    try:
        t, label = (
            stored[name].astype(np.int64, casting="same_kind") for name in (time, "class_id")
        )
        numbers = np.stack(
            [stored[name].astype(np.float32, casting="same_kind") for name in "xywh"], axis=1
        )
    except (IndexError, ValueError, TypeError) as error:
        raise UserError(
            path, f"does not hold a table of boxes ({error})", "give a file of boxes"
        ) from error
    if stored.ndim != 1 or not len(stored):
        raise UserError(path, "holds no boxes", f"copy it again, or {SKIP}")
    for bad, what in (
        (
            ~(np.abs(numbers) <= LARGEST_PX).all(axis=1),
            "a position or size that is NaN or too large",
        ),
        ((numbers[:, 2:] < 0).any(axis=1), "a negative size"),
        ((label < 0) | (label >= known_classes), f"a class other than 0 to {known_classes - 1}"),
        (np.diff(t, prepend=0) < 0, "a time before 0 or before the previous box"),
    ):
        if bad.any():
            raise UserError(path, f"box {int(np.argmax(bad))} has {what}", AGAIN)
    return RawBoxes(
        t, np.concatenate([numbers[:, :2], numbers[:, :2] + numbers[:, 2:]], axis=1), label
    )


@pydantic.dataclasses.dataclass(frozen=True)
class PropheseeProtocol:
    """Rules of uzh-rpg/RVT that select recordings, frames and boxes; sizes in px of the sensor."""

    period_ms: PositiveFloat  # time between label frames
    # Use the multiple of the labels' median spacing closest to `period_ms`, if within 2 ms of it
    period_from_labels: Flag
    min_diagonal: NonNegativeFloat  # of a box
    min_side: NonNegativeFloat  # of a box
    max_width_share: Share  # maximum width of a training box, as a share of the sensor's width
    # recordings left out because the other rules would remove all of their boxes
    skip: tuple[str, ...]


def choose_boxes(
    boxes: RawBoxes, rules: PropheseeProtocol, classes: int, sensor: Size, training: bool
) -> RawBoxes:
    """Select boxes of the first `classes` classes, crop them to the sensor (height, width), and filter by size.

    As in uzh-rpg/RVT (scripts/genx/preprocess_dataset.py, `apply_filters`), in this order and with
    a crop to the last pixel instead of its far edge.
    """
    kept = boxes.keep(boxes.label < classes)
    height, width = sensor
    corners = np.clip(kept.corners, 0, np.array([width - 1, height - 1] * 2, np.float32))
    kept = kept._replace(corners=corners)
    sides = corners[:, 2:] - corners[:, :2]
    fits = np.all((sides > 0) & (sides >= rules.min_side), axis=1)
    fits &= np.square(sides).sum(axis=1) >= rules.min_diagonal**2
    if training:
        fits &= sides[:, 0] <= int(rules.max_width_share * width)
    return kept.keep(fits)


def start_of(first: int) -> int:
    """Start of a recording in us: 0 on the official archives' clock, else the time of its `first` event."""
    return 0 if 0 <= first < LATEST_FIRST_US else first


def choose_frames(
    times: NDArray[np.int64], rules: PropheseeProtocol, start: int = 0
) -> NDArray[np.int64]:
    """Select the times of label frames among the sorted times (N,) of boxes in us.

    The first frame is at least 100 ms after `start` (us). Each further frame is a whole number of
    periods, give or take 2 ms, after the previous selected one, as in uzh-rpg/RVT
    (scripts/genx/preprocess_dataset.py).
    """
    times = np.unique(times)
    period = max(1, round(rules.period_ms * 1000))  # us
    if rules.period_from_labels and len(times) > 1:
        median = float(np.median(np.diff(times)))
        closest = int(round(period / median) * median)
        period = closest if abs(closest - period) <= TOLERANCE_US else period
    chosen: list[int] = []
    for time in times[times >= start + FIRST_LABEL_US].tolist():
        since = time - chosen[-1] if chosen else 0
        number = round(since / period)
        if not chosen or (number and abs(since - number * period) <= TOLERANCE_US):
            chosen.append(time)
    return np.array(chosen, np.int64)


@dataclass(frozen=True, eq=False)
class BoxLabels:
    """Boxes of each label frame: those of `boxes`, in px of the histograms, at each of the `times` (K,) in us."""

    boxes: RawBoxes
    times: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> Boxes:
        begin, end = np.searchsorted(self.boxes.t, (self.times[index], self.times[index] + 1))
        return make_boxes(self.boxes.corners[begin:end], self.boxes.label[begin:end])

    def checksums(self) -> list[int]:
        """CRC-32 of each label's boxes."""
        return [
            zlib.crc32(self[index].corners.tobytes() + self[index].label.tobytes())
            for index in range(len(self))
        ]


def recordings_in(folder: Path) -> dict[str, Path]:
    """Event file, or archive folder with histograms or labels, of each recording of a split, sorted by name."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        file = path.with_name(path.name.removesuffix(STORE))
        ending = event_ending(file)
        if ending or (path / REPRESENTATIONS).is_dir() or (path / LABELS).is_file():
            other = found.setdefault(file.name.removesuffix(ending), file)
            if file != other:
                raise UserError(file, f"also exists as {other.name}", "keep one of them")
    return dict(sorted(found.items()))


def event_ending(path: Path) -> str:
    """Ending of an event file's name after the recording's name, or "" for other files."""
    return next((ending for ending in EVENT_FILES if path.name.endswith(ending)), "")


class PropheseeDataset(LabelledDataset):
    """Base class of Gen1 and 1Mpx."""

    known_classes: ClassVar[int]  # number of classes in the box files
    official: ClassVar[re.Pattern[str]]  # at the start of the names of official recordings
    # RVT selects its checkpoint on val (uzh-rpg/RVT, callbacks/custom.py).
    splits = dict.fromkeys(SPLITS, EVERY)
    protocol_type = PropheseeProtocol
    divides_labels = True
    label_kind = BOXES
    protocol: PropheseeProtocol

    def __init__(self, root: Path | str, split: str = TRAIN, **options: Any) -> None:
        super().__init__(root, split, **options)
        root = self.root
        places = [path for path in (root, *sorted(root.iterdir())) if split_folders(path)]
        if root not in places and len(places) != 1:
            there = f" ({len(places)} of its folders do)" if places else ""
            what = f"has no train, val or test folder{there}"
            raise UserError(root, what, "give the folder that contains them")
        self.root = places[0]
        found = {
            split: [path for of, path in split_folders(self.root) if of == split]
            for split in self.splits
        }
        self.folders = {
            split: only_one(paths or [self.root / split]) for split, paths in found.items()
        }
        self._found = {split: recordings_in(self.folders[split]) for split in self.splits}
        # which numbers its classes differently
        other = {Gen1: OneMpx, OneMpx: Gen1}.get(type(self))
        if other and any(
            other.official.match(name) for found in self._found.values() for name in found
        ):
            raise UserError(
                self.root, f"has recordings of {other.title}", f"give the folder of {self.title}"
            )
        if self.splits.get(HELD_OUT) == EVERY and not self._found[HELD_OUT]:
            self.splits = {
                split: names for split, names in self.splits.items() if split != HELD_OUT
            }
        self._refuse_repeated(
            {
                split: [name for name in found if name not in self.protocol.skip]
                for split, found in self._found.items()
            }
        )
        paths = (path for found in self._found.values() for path in found.values())
        layouts = {event_ending(path) or ARCHIVE for path in paths}
        if ARCHIVE in layouts and len(layouts) > 1:
            raise UserError(
                self.root, f"mixes event files with {ARCHIVE}", "keep only one of the two"
            )
        self.layout = ", ".join(sorted(layouts)) or "no recordings"

    def names(self, split: str) -> tuple[str, ...]:
        """Names of the recordings of a split, without those in `protocol.skip`."""
        names, folder, skipped = super().names(split), self.folders[split], self.protocol.skip
        if names == EVERY:
            names = tuple(self._found.get(split, ()))
            for path in sorted(folder.glob(f"*{BOX_FILE}")):
                if path.name.removesuffix(BOX_FILE) not in (*names, *skipped):
                    raise UserError(
                        path,
                        "has no events next to it",
                        "copy the recording's events next to its boxes",
                    )
        if not names:
            raise UserError(folder, "holds no recordings", "copy the split's files into it")
        return tuple(name for name in names if name not in skipped)

    def find(self, split: str, name: str) -> RecordingFiles:
        if name not in self._found.get(split, {}):
            where = self.folders[split] / f"{name}_td.dat"
            raise UserError(
                where, f"recording of the {split} split is missing", "copy it into the folder"
            )
        path = self._found[split][name]
        if self.layout == ARCHIVE:
            return RecordingFiles(name, split, ArchiveSource(path, self.given_sensor), ())
        boxes = path.with_name(name + BOX_FILE)
        if not boxes.is_file():
            raise UserError(
                boxes,
                "no such file, but events exist",
                "copy the recording's boxes next to its events",
            )
        # Older files do not name the sensor's size.
        source = EventSource(path, self.given_sensor, default=self.sensor)
        return RecordingFiles(name, split, source, (boxes,))

    def open(self, files: RecordingFiles) -> LabelledRecording:
        count = len(self.classes) or self.known_classes
        if isinstance(files.source, ArchiveSource):
            return self._open_archive(files, files.source, count)
        facts, path = files.source.facts, files.beside[0]
        boxes = raw_boxes(load_array(path), path, self.known_classes)
        kept = choose_boxes(
            boxes, self.protocol, count, (facts.height, facts.width), files.split == TRAIN
        )
        start = start_of(facts.t_first)
        times = choose_frames(kept.t, self.protocol, start)
        if not len(times):
            what = f"no label frame from {boxes.t[0]} to {boxes.t[-1]} us passes the filters"
            raise UserError(path, what, SKIP)
        region, sensor = (
            reduced(facts.height, facts.width, self.downsample),
            (facts.height, facts.width),
        )
        left_out = len(np.unique(boxes.t)) - len(times)
        # most boxes are between frames
        kept = kept.keep(np.isin(kept.t, times)).downsampled(region.factor, sensor)
        labels, begin = BoxLabels(kept, times), min(start, int(times[0]) - 1)
        return self.labelled(files, region, labels, times, begin, left_out=left_out, start=start)

    def _open_archive(
        self, files: RecordingFiles, source: ArchiveSource, count: int
    ) -> LabelledRecording:
        source.require_window(self.window_ms)
        region, windows, path = source.region, source.windows, source.path / LABELS
        stored, row_of_frame = load_arrays(path, ("labels", ROW_OF_FRAME))
        boxes, labelled = raw_boxes(stored, path, count), source.window_of_frame()
        box_times, first_rows = np.unique(boxes.t, return_index=True)
        if not np.array_equal(first_rows, row_of_frame) or len(labelled) != len(row_of_frame):
            counts = f"{len(box_times)}, {len(row_of_frame)} and {len(labelled)} label frames"
            what = f"boxes, {ROW_OF_FRAME} and {WINDOW_OF_FRAME.name} do not match ({counts})"
            raise UserError(path, what, "unpack the archive again")
        # A label has the time at which its window ends. In Gen1, its boxes are 1 us earlier.
        times = windows[labelled, 1]
        if (farthest := int(np.abs(box_times - times).max())) > WINDOW_US:
            what = f"has boxes {farthest} us from the end of their window"
            raise UserError(path, what, "unpack the archive again")
        boxes = boxes._replace(t=np.repeat(times, np.diff(first_rows, append=len(boxes.t))))
        if not self.contiguous:
            windows, labelled = windows[labelled], np.arange(len(labelled), dtype=np.int64)
        sensor = region.factor * region.height, region.factor * region.width
        labels = BoxLabels(boxes.downsampled(region.factor, sensor), times)
        speed, start = (
            speed_at(self.root, files.name, times),
            start_of(max(0, int(source.windows[0, 0]))),
        )
        return LabelledRecording(
            files.name, source, region, windows, labels, labelled, speed, start=start
        )

    @classmethod
    def split_of(cls, path: Path, splits: Mapping[str, Sequence[str]]) -> str | None:
        """Split of an official recording, which only the folders above it determine."""
        parts = path.parts[-LEVELS:]
        if not any(cls.official.match(part) for part in parts):
            return None
        # "dev" names a folder of software as well.
        named = (split_named(part) for part in reversed(parts) if part.casefold() != "dev")
        return next((split for split in named if split in SPLITS), UNKNOWN)


@DATASETS.register_module()
class Gen1(PropheseeDataset):
    """Gen1 Automotive Detection: events of 304x240 px, boxes of cars and pedestrians at 1, 2 or 4 Hz.

    Get it: https://www.prophesee.ai/2020/01/24/prophesee-gen1-automotive-detection-dataset/ (free
    of charge, after registration). RVT's preprocessed archive (histograms of 50 ms):
    https://download.ifi.uzh.ch/rpg/RVT/datasets/preprocessed/gen1.tar, crc32 5acab6f3. Licence:
    Prophesee's terms for research, shown at the download; no redistribution. Size: not measured by
    us (raw events, recordings of 60 s); `check` prints the size of packed events.

    Layout:
        gen1/train/<name>_td.dat   gen1/train/<name>_bbox.npy
        gen1/val/...               gen1/test/...

    Also read: RVT's raw files (<name>_td.dat.h5, <name>_td.h5), and RVT's preprocessed archive,
    which requires --set rule=rvt. Recordings whose boxes RVT's rules would all remove are left out
    (protocol.skip).

    Args:
        protocol: `period_ms`, `min_diagonal` and others, see `PropheseeProtocol`; other arguments
            are those of `LabelledDataset`.

    Example:
        >>> from tespec.sample import make_world
        >>> root = make_world("tiny", datasets=["gen1"]) / "gen1"  # or the folder of the archive
        >>> data = Gen1(root, "test", window_ms=50)
        >>> histogram, boxes, name, time = data[0]
        >>> histogram.shape, boxes.corners.shape, name
        ((20, 64, 80), (1, 4), '17-04-13_15-05-13_500000_8500000')
    """

    title = "Gen1"
    sensor = (240, 304)
    known_classes = 2
    official = re.compile(r"\d\d-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")


@DATASETS.register_module()
class OneMpx(PropheseeDataset):
    """1Mpx Automotive Detection: events of 1280x720 px, boxes of seven classes (three are used) at 30 or 60 Hz.

    Get it: https://www.prophesee.ai/2020/11/24/automotive-megapixel-event-based-dataset/ (free of
    charge, after registration). RVT's preprocessed archive (histograms of 50 ms at half size):
    https://download.ifi.uzh.ch/rpg/RVT/datasets/preprocessed/gen4.tar, crc32 c5ec7c38. Licence:
    Prophesee's terms for research, shown at the download; no redistribution. Size: about 1 TB, as
    its users report.

    Layout:
        1mpx/train/<name>_td.dat   1mpx/train/<name>_bbox.npy
        1mpx/val/...               1mpx/test/...

    Also read: RVT's raw files (<name>_td.dat.h5, <name>_td.h5), and RVT's preprocessed archive,
    which requires --set rule=rvt. Only the classes pedestrian, two-wheeler and car are used.

    Args:
        protocol: `period_ms`, `min_diagonal` and others, see `PropheseeProtocol`; other arguments
            are those of `LabelledDataset`.

    Example:
        >>> from tespec.sample import make_world
        >>> root = make_world("tiny", datasets=["1mpx"]) / "1mpx"  # or the folder of the archive
        >>> data = OneMpx(root, "test", window_ms=50)
        >>> histogram, boxes, name, time = data[0]
        >>> histogram.shape, boxes.corners.shape, name
        ((20, 32, 48), (6, 4), 'moorea_2019-02-19_002_td_500000_8500000')
    """

    title = "1Mpx"
    sensor = (720, 1280)
    known_classes = 7
    official = re.compile(r"moorea_\d{4}-\d\d-\d\d_.*\d+_\d+")
