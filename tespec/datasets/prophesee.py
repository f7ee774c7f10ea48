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
from tespec.core.description import LEVELS_ABOVE
from tespec.core.errors import UserError
from tespec.core.settings import Flag, Fraction, NonNegativeFloat, PositiveFloat, Size
from tespec.datasets.archive import REPRESENTATIONS, WINDOW_OF_FRAME, WINDOW_US, ArchiveSource
from tespec.datasets.base import HELD_OUT, SPLITS, TRAIN, UNKNOWN, LabelledDataset, RecordingFiles
from tespec.datasets.labels import BOXES
from tespec.datasets.recording import LabelledRecording, downsampled_region
from tespec.datasets.sources import EventSource, unique_path
from tespec.datasets.splits import search_folders, split_folders, split_named
from tespec.events.readers.arrays import COPY_AGAIN, load_array, load_arrays
from tespec.events.store import STORE
from tespec.registry import DATASETS

ARCHIVE = "RVT's preprocessed archive"  # layout
# Event files: Prophesee's, and those of RVT (uzh-rpg/RVT, scripts/genx/preprocess_dataset.py).
EVENT_FILES, BOX_FILE = ("_td.dat.h5", "_td.h5", "_td.dat"), "_bbox.npy"
LABELS = Path("labels_v2") / "labels.npz"  # in a recording folder of RVT's archives
# in the same file: row of the first box of each label frame
ROW_OF_FRAME = "objframe_idx_2_label_idx"
ALL_RECORDINGS = ("*",)  # in place of a split's names: every recording in its folder

# earlier label frames are left out (uzh-rpg/RVT, scripts/genx/preprocess_dataset.py)
FIRST_LABEL_US = 100_000
# the first event is earlier if the clock starts with the recording, as in the archives
LATEST_FIRST_US = 1_000_000
TOLERANCE_US = 2_000  # by which label frames may deviate from the period
SKIP = "add the recording to the list protocol.skip"
# no coordinate or size is larger; damaged ones may be close to the limit of float32
LARGEST_PX = 1e6


class RawBoxes(NamedTuple):
    """Boxes of a recording in time order."""

    t: NDArray[np.int64]  # (N,) in us
    corners: NDArray[np.float32]  # (N, 4) left, top, right and bottom in px of the sensor
    label: NDArray[np.int64]  # (N,)

    def keep(self, mask: NDArray[np.bool_]) -> "RawBoxes":
        """Select boxes by a mask (N,)."""
        return RawBoxes(self.t[mask], self.corners[mask], self.label[mask])

    def downsampled(self, factor: int, sensor: Size) -> "RawBoxes":
        """Convert boxes to px of downsampled histograms, and remove those without an area.

        They are cropped to the last pixel of the histograms, as in uzh-rpg/RVT
        (data/genx_utils/labels.py, `scale_`).

        Args:
            factor: sensor pixels per histogram pixel, along each side.
            sensor: (height, width) in px.
        """
        corners = (self.corners / factor).astype(np.float32)
        corners[:, 2:] = np.minimum(corners[:, 2:], np.array(sensor[::-1], np.float32) / factor - 1)
        return self._replace(corners=corners).keep(np.all(corners[:, 2:] > corners[:, :2], axis=1))


def raw_boxes(stored: NDArray[Any], path: Path, known_classes: int) -> RawBoxes:
    """Read and check boxes.

    Args:
        stored: structured array with fields x, y, w, h, class_id and t (ts in old files).
        path: its file, for messages.
        known_classes: number of classes.

    Raises:
        UserError: if fields are missing, there are no boxes, or one is not valid.
    """
    time = "ts" if "ts" in (stored.dtype.names or ()) else "t"
    try:
        t = stored[time].astype(np.int64, casting="same_kind")
        label = stored["class_id"].astype(np.int64, casting="same_kind")
        xywh = np.stack([stored[name] for name in "xywh"], axis=1)  # (N, 4)
        xywh = xywh.astype(np.float32, casting="same_kind")
    except (IndexError, ValueError, TypeError) as error:
        raise UserError(
            path, f"does not hold a table of boxes ({error})", "give a file of boxes"
        ) from error
    if stored.ndim != 1 or not len(stored):
        raise UserError(path, "holds no boxes", f"copy it again, or {SKIP}")
    too_large = ~(np.abs(xywh) <= LARGEST_PX).all(axis=1)
    for invalid, what in (
        (too_large, "a position or size that is NaN or too large"),
        ((xywh[:, 2:] < 0).any(axis=1), "a negative size"),
        ((label < 0) | (label >= known_classes), f"a class other than 0 to {known_classes - 1}"),
        (np.diff(t, prepend=0) < 0, "a time before 0 or before the previous box"),
    ):
        if invalid.any():
            raise UserError(path, f"box {int(np.argmax(invalid))} has {what}", COPY_AGAIN)
    if xywh.max() <= 1:
        raise UserError(
            path,
            "holds fractions of the image: no position or size of a box is above 1",
            "multiply them by the sensor's width and height in px",
        )
    corners = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)
    return RawBoxes(t, corners, label)


@pydantic.dataclasses.dataclass(frozen=True)
class PropheseeProtocol:
    """Rules of uzh-rpg/RVT that select recordings, frames and boxes; sizes in px of the sensor."""

    period_ms: PositiveFloat  # time between label frames
    # Use the multiple of the labels' median spacing closest to `period_ms`, if within 2 ms of it
    period_from_labels: Flag
    min_diagonal: NonNegativeFloat  # of a box
    min_side: NonNegativeFloat  # of a box
    max_width_share: Fraction  # maximum width of a training box, as a fraction of the sensor's
    # recordings left out because the other rules would remove all of their boxes
    skip: tuple[str, ...]


def choose_boxes(
    boxes: RawBoxes, rules: PropheseeProtocol, classes: int, sensor: Size, training: bool
) -> RawBoxes:
    """Select boxes by class and size, cropped to the sensor.

    As in uzh-rpg/RVT (scripts/genx/preprocess_dataset.py, `apply_filters`), in this order and with
    a crop to the last pixel instead of its far edge.

    Args:
        boxes: all boxes of a recording.
        rules: minimum and maximum sizes.
        classes: number of classes, of which boxes are selected.
        sensor: (height, width) in px.
        training: whether the maximum width applies.
    """
    boxes = boxes.keep(boxes.label < classes)
    height, width = sensor
    corners = np.clip(boxes.corners, 0, np.array([width - 1, height - 1] * 2, np.float32))
    sides = corners[:, 2:] - corners[:, :2]  # (N, 2)
    fits = np.all((sides > 0) & (sides >= rules.min_side), axis=1)
    fits &= np.square(sides).sum(axis=1) >= rules.min_diagonal**2
    if training:
        fits &= sides[:, 0] <= int(rules.max_width_share * width)
    return boxes._replace(corners=corners).keep(fits)


def start_of(first: int) -> int:
    """Start of a recording in us: 0 on the clock of the archives, else its `first` event."""
    return 0 if 0 <= first < LATEST_FIRST_US else first


def choose_frames(
    times: NDArray[np.int64], rules: PropheseeProtocol, start: int = 0
) -> NDArray[np.int64]:
    """Select the times of label frames.

    The first frame is at least 100 ms after `start`. Each further frame is a whole number of
    periods, give or take 2 ms, after the previous selected one, as in uzh-rpg/RVT
    (scripts/genx/preprocess_dataset.py).

    Args:
        times: (N,) times of boxes in us, rising.
        rules: period of the frames.
        start: start of the recording in us.

    Returns:
        Times (K,) int64 in us.
    """
    times = np.unique(times)
    period = max(1, round(rules.period_ms * 1000))  # us
    if rules.period_from_labels and len(times) > 1:
        median = float(np.median(np.diff(times)))
        closest = int(round(period / median) * median)
        period = closest if abs(closest - period) <= TOLERANCE_US else period
    chosen: list[int] = []
    for time in times[times >= start + FIRST_LABEL_US].tolist():
        elapsed = time - chosen[-1] if chosen else 0
        periods = round(elapsed / period)
        if not chosen or (periods and abs(elapsed - periods * period) <= TOLERANCE_US):
            chosen.append(time)
    return np.array(chosen, np.int64)


@dataclass(frozen=True, eq=False)
class BoxLabels:
    """Boxes of the label frames of a recording."""

    boxes: RawBoxes  # in px of the histograms
    times: NDArray[np.int64]  # (K,) of the frames in us

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> Boxes:
        begin, end = np.searchsorted(self.boxes.t, (self.times[index], self.times[index] + 1))
        return make_boxes(self.boxes.corners[begin:end], self.boxes.label[begin:end])

    def checksums(self) -> dict[str, int]:
        """CRC-32 of the boxes at all labels."""
        boxes = self.boxes.keep(np.isin(self.boxes.t, self.times))
        return {"boxes": zlib.crc32(b"".join(field.tobytes() for field in boxes))}


def recordings_in(folder: Path) -> dict[str, Path]:
    """Find the event file or archive folder of each recording of a split, sorted by name."""
    recordings: dict[str, Path] = {}
    # macOS adds "._" twins
    for path in sorted(folder.glob("[!.]*")) if folder.is_dir() else ():
        file = path.with_name(path.name.removesuffix(STORE))
        ending = event_ending(file)
        if ending or (path / REPRESENTATIONS).is_dir() or (path / LABELS).is_file():
            unique_path((file, recordings.setdefault(file.name.removesuffix(ending), file)))
    return dict(sorted(recordings.items()))


def event_ending(path: Path) -> str:
    """Ending of an event file's name after the recording's name, or "" for other files."""
    return next((ending for ending in EVENT_FILES if path.name.endswith(ending)), "")


class PropheseeDataset(LabelledDataset):
    """Base class of Gen1 and 1Mpx."""

    known_classes: ClassVar[int]  # number of classes in the box files
    official: ClassVar[re.Pattern[str]]  # at the start of the names of official recordings
    # RVT selects its checkpoint on val (uzh-rpg/RVT, callbacks/custom.py).
    splits = dict.fromkeys(SPLITS, ALL_RECORDINGS)
    protocol_type = PropheseeProtocol
    divides_labels = True
    label_kind = BOXES
    protocol: PropheseeProtocol

    def __init__(self, root: Path | str, split: str = TRAIN, **options: Any) -> None:
        super().__init__(root, split, **options)
        folders = [path for path in search_folders(self.root) if split_folders(path)]
        if self.root not in folders and len(folders) != 1:
            count = f" ({len(folders)} of its folders do)" if folders else ""
            raise UserError(
                self.root,
                f"has no train, val or test folder{count}",
                "give the folder that contains them",
            )
        self.refuse_description(folders[0])
        self.root = folders[0]
        self.folders = {}
        for split in self.splits:
            paths = [path for name, path in split_folders(self.root) if name == split]
            self.folders[split] = unique_path(paths or [self.root / split])
        self._paths = {split: recordings_in(folder) for split, folder in self.folders.items()}
        recordings = [item for paths in self._paths.values() for item in paths.items()]
        # It numbers its classes differently.
        other = {Gen1: OneMpx, OneMpx: Gen1}.get(type(self))
        if other and any(other.official.match(name) for name, _ in recordings):
            raise UserError(
                self.root, f"has recordings of {other.title}", f"give the folder of {self.title}"
            )
        if self.splits.get(HELD_OUT) == ALL_RECORDINGS and not self._paths[HELD_OUT]:
            self.splits = {name: self.splits[name] for name in self.splits if name != HELD_OUT}
        self._refuse_repeated(
            {
                split: [name for name in paths if name not in self.protocol.skip]
                for split, paths in self._paths.items()
            }
        )
        layouts = {event_ending(path) or ARCHIVE for _, path in recordings}
        self.layout = ", ".join(sorted(layouts)) or "no recordings"

    def names(self, split: str) -> tuple[str, ...]:
        """Names of the recordings of a split, without those in `protocol.skip`."""
        names = super().names(split)
        folder = self.folders[split]
        if names == ALL_RECORDINGS:
            names = tuple(self._paths.get(split, ()))
            for path in sorted(folder.glob(f"[!.]*{BOX_FILE}")):
                if path.name.removesuffix(BOX_FILE) not in (*names, *self.protocol.skip):
                    raise UserError(
                        path,
                        "has no events next to it",
                        "copy the recording's events next to its boxes",
                    )
        if not names:
            raise UserError(folder, "holds no recordings", "copy the split's files into it")
        return tuple(name for name in names if name not in self.protocol.skip)

    def find(self, split: str, name: str) -> RecordingFiles:
        default = self.folders[split] / f"{name}_td.dat"
        path = self._paths.get(split, {}).get(name) or self.locate([default], split)
        if not event_ending(path):
            return RecordingFiles(name, split, ArchiveSource(path, self.user_sensor), ())
        boxes = path.with_name(name + BOX_FILE)
        if not boxes.is_file():
            raise UserError(
                boxes,
                "no such file, but events exist",
                "copy the recording's boxes next to its events",
            )
        # Older files do not name the sensor's size.
        source = EventSource(path, self.user_sensor, default=self.sensor)
        return RecordingFiles(name, split, source, (boxes,))

    def open(self, files: RecordingFiles) -> LabelledRecording:
        count = len(self.classes) or self.known_classes
        if isinstance(files.source, ArchiveSource):
            return self._open_archive(files, files.source, count)
        facts = files.source.facts
        path = files.label_files[0]
        sensor = (facts.height, facts.width)
        stored = raw_boxes(load_array(path), path, self.known_classes)
        boxes = choose_boxes(stored, self.protocol, count, sensor, files.split == TRAIN)
        start = start_of(facts.t_first)
        stored_times = np.unique(stored.t)
        self.require_clock(files, stored_times)
        times = choose_frames(boxes.t, self.protocol, start)
        if not len(times):
            raise UserError(
                path,
                f"no label frame from {stored.t[0]} to {stored.t[-1]} us passes the filters",
                f"convert its times if they are not on the clock of the events, {facts.t_first} to "
                f"{facts.t_last} us, or {SKIP}",
            )
        region = downsampled_region(*sensor, self.downsample)
        left_out = len(stored_times) - len(times)
        # most boxes are between frames
        boxes = boxes.keep(np.isin(boxes.t, times)).downsampled(region.factor, sensor)
        return self.labelled_recording(
            files,
            region,
            BoxLabels(boxes, times),
            times,
            begin=min(start, int(times[0]) - 1),
            left_out=left_out,
            start=start,
        )

    def _open_archive(
        self, files: RecordingFiles, source: ArchiveSource, count: int
    ) -> LabelledRecording:
        source.require_window(self.window_ms)
        region = source.region
        windows = source.windows
        path = source.path / LABELS
        stored, row_of_frame = load_arrays(path, ("labels", ROW_OF_FRAME))
        boxes = raw_boxes(stored, path, count)
        label_indices = source.window_of_frame()
        box_times, first_rows = np.unique(boxes.t, return_index=True)
        if not np.array_equal(first_rows, row_of_frame) or len(label_indices) != len(row_of_frame):
            counts = f"{len(box_times)}, {len(row_of_frame)} and {len(label_indices)} label frames"
            raise UserError(
                path,
                f"boxes, {ROW_OF_FRAME} and {WINDOW_OF_FRAME.name} do not match ({counts})",
                "unpack the archive again",
            )
        # A label has the time at which its window ends. In Gen1, its boxes are 1 us earlier.
        times = windows[label_indices, 1]
        distance = int(np.abs(box_times - times).max())
        if distance > WINDOW_US:
            raise UserError(
                path,
                f"has boxes {distance} us from the end of their window",
                "unpack the archive again",
            )
        boxes = boxes._replace(t=np.repeat(times, np.diff(first_rows, append=len(boxes.t))))
        if not self.contiguous:
            windows = windows[label_indices]
            label_indices = np.arange(len(label_indices), dtype=np.int64)
        sensor = (region.factor * region.height, region.factor * region.width)
        return LabelledRecording(
            files.name,
            source,
            region,
            windows,
            BoxLabels(boxes.downsampled(region.factor, sensor), times),
            label_indices,
            self.ego_speed(files.name, times),
            start=start_of(max(0, int(source.windows[0, 0]))),
        )

    @classmethod
    def split_of(cls, path: Path, splits: Mapping[str, Sequence[str]]) -> str | None:
        """Split of an official recording, which only the folders above it determine."""
        parts = path.parts[-LEVELS_ABOVE:]
        if not any(cls.official.match(part) for part in parts):
            return None
        # "dev" names a folder of software as well.
        named = (split_named(part) for part in reversed(parts) if part.casefold() != "dev")
        return next((split for split in named if split in SPLITS), UNKNOWN)


@DATASETS.register_module()
class Gen1(PropheseeDataset):
    """Gen1 Automotive Detection: events of 304x240 px, boxes of 2 classes at 1, 2 or 4 Hz.

    Get it: https://www.prophesee.ai/2020/01/24/prophesee-gen1-automotive-detection-dataset/ (free
    of charge, after registration). RVT's preprocessed archive (histograms of 50 ms):
    https://download.ifi.uzh.ch/rpg/RVT/datasets/preprocessed/gen1.tar, crc32 5acab6f3. Licence:
    Prophesee's terms for research, shown at the download; no redistribution. Size: not measured by
    us (raw events, recordings of 60 s); `check` prints the size of packed events.

    Layout:
        gen1/train/<name>_td.dat   gen1/train/<name>_bbox.npy
        gen1/val/...               gen1/test/...

    Also read: RVT's raw files (<name>_td.dat.h5, <name>_td.h5), and RVT's preprocessed archive,
    which requires --set rule=rvt. The classes are car and pedestrian. Recordings whose boxes RVT's
    rules would all remove are left out (protocol.skip).

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
    test_windows = 554_130  # 470 recordings of 1,179 windows (Wuziyi616/LEOD, docs/benchmark.md)
    known_classes = 2
    official = re.compile(r"\d\d-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")


@DATASETS.register_module()
class OneMpx(PropheseeDataset):
    """1Mpx Automotive Detection: events of 1280x720 px, boxes of 7 classes at 30 or 60 Hz.

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
    test_windows = 162_000  # 2.25 hours (Perot et al. 2020)
    known_classes = 7
    official = re.compile(r"moorea_\d{4}-\d\d-\d\d_.*\d+_\d+")
