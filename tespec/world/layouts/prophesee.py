"""Gen1 and 1Mpx: raw files of several kinds with their boxes, RVT's HDF5 files, and RVT's archives of histograms."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from tespec.events import Events, load_events
from tespec.events.readers.prophesee_dat import write_dat
from tespec.world import scene
from tespec.world.contents import Take
from tespec.world.layouts.dsec import BLOSC
from tespec.world.street import FRAME_RATE, Film, Frame

# 40 bytes a box (prophesee-ai/prophesee-automotive-dataset-toolbox, src/io/box_loading.py).
BOX = np.dtype(
    [
        ("t", "<i8"),
        ("x", "<f4"),
        ("y", "<f4"),
        ("w", "<f4"),
        ("h", "<f4"),
        ("class_id", "<u4"),
        ("track_id", "<u4"),
        ("class_confidence", "<f4"),
    ],
    align=True,
)
SEEN = 10  # px of an instance that must be seen for a box
BEYOND = 3.0  # px by which a box that is cut off by the image's border goes on outside of it
SIGN_TRACK = 100_000  # first track of the signs, which have no instances


@dataclass(frozen=True)
class Classes:
    """Which class of a dataset an instance has, by what is seen of it; None: none.

    Attributes:
        car: of cars.
        truck: of trucks.
        person: of people on foot.
        two_wheeler: of bicycles with their riders.
        sign: of signs.
    """

    car: int
    truck: int
    person: int
    two_wheeler: int | None
    sign: int | None

    def of(self, labels: npt.NDArray[np.uint8]) -> int | None:
        """Class of an instance whose pixels have these labels of the scene."""
        seen = set(np.unique(labels).tolist())
        if seen & {scene.TWO_WHEELER, scene.RIDER}:
            return self.two_wheeler
        for label, number in ((scene.TRUCK, self.truck), (scene.CAR, self.car), (scene.PERSON, self.person)):
            if label in seen:
                return number
        return None


GEN1 = Classes(car=0, truck=0, person=1, two_wheeler=None, sign=None)
ONE_MPX = Classes(car=2, truck=3, person=0, two_wheeler=1, sign=5)


def frame_boxes(frame: Frame, classes: Classes) -> npt.NDArray[np.void]:
    """Boxes (N,) of dtype `BOX` around the visible parts of a frame's instances."""
    boxes = []
    for track in np.unique(frame.instance[frame.instance > 0]).tolist():
        pixels = frame.instance == track
        number = classes.of(frame.label[pixels])
        if number is not None and pixels.sum() >= SEEN:
            boxes.append(_box(pixels, frame.time_us, number, track))
    if classes.sign is not None:
        pixels = frame.label == scene.SIGN
        if pixels.sum() >= SEEN:
            boxes.append(_box(pixels, frame.time_us, classes.sign, SIGN_TRACK))
    return np.array(boxes, BOX)


def save_boxes(path: Path, boxes: npt.NDArray[np.void]) -> None:
    """Write boxes as a `.npy` file, with zeros between the fields, so that the same boxes are the same bytes."""
    stored = np.zeros(len(boxes), BOX)
    for name in BOX.names or ():
        stored[name] = boxes[name]
    np.save(path, stored)


def _box(pixels: npt.NDArray[np.bool_], time_us: int, number: int, track: int) -> tuple[float, ...]:
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    height, width = pixels.shape
    left, top, right, bottom = float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
    left, top = left - BEYOND * (left == 0), top - BEYOND * (top == 0)
    right, bottom = right + BEYOND * (right == width), bottom + BEYOND * (bottom == height)
    return (time_us, left, top, right - left, bottom - top, number, track, 1.0)


LABELS = {"gen1": (GEN1, 4), "1mpx": (ONE_MPX, 60)}  # classes, and labels per second


def write(film: Film, root: Path, take: Take) -> None:
    """Write `<split>/<name>_td.dat` and `<split>/<name>_bbox.npy`.

    Labels are at the official rates, at the frames that are nearest in time.
    """
    classes, rate = LABELS[take.dataset]
    labelled = {round(number * FRAME_RATE / rate) for number in range(1, int(take.seconds * rate) + 1)}
    columns, boxes = [], [np.empty(0, BOX)]
    for frame, events in film:
        columns.append(events)
        if frame.index in labelled:
            boxes.append(frame_boxes(frame, classes))
    folder = root / take.split
    folder.mkdir(exist_ok=True)
    x, y, t, p = (np.concatenate(column) for column in zip(*columns, strict=True))
    write_dat(folder / f"{take.name}_td.dat", x, y, t, p, take.sensor.height, take.sensor.width)
    save_boxes(folder / f"{take.name}_bbox.npy", np.concatenate(boxes))


WINDOW_US, BINS, LARGEST = 50_000, 10, 10
FIRST_LABEL_US = 100_000


def _recordings(root: Path) -> list[tuple[Path, str]]:
    """Folder of the split and name of each recording."""
    return [(path.parent, path.name.removesuffix("_td.dat")) for path in sorted(root.glob("*/*_td.dat"))]


def _events(folder: Path, name: str) -> Events:
    stream = load_events(folder / f"{name}_td.dat")
    return stream.slice(stream.t_first, stream.t_last + 1)


def without_size(root: Path) -> None:
    """Headers that do not name the sensor's size, as in older files."""
    for folder, name in _recordings(root):
        path = folder / f"{name}_td.dat"
        header, mark, body = path.read_bytes().partition(b"\x0c\x08")
        lines = [line for line in header.splitlines(keepends=True) if b"Height" not in line and b"Width" not in line]
        path.write_bytes(b"".join(lines) + mark + body)


def of_type_0(root: Path) -> None:
    """Event type 0 instead of 12, as in older files."""
    for folder, name in _recordings(root):
        path = folder / f"{name}_td.dat"
        path.write_bytes(path.read_bytes().replace(b"\x0c\x08", b"\x00\x08", 1))


def old_boxes(root: Path) -> None:
    """Boxes with the fields ts and confidence, as in older files."""
    for folder, name in _recordings(root):
        path = folder / f"{name}_bbox.npy"
        boxes = np.load(path)
        names = {"t": "ts", "class_confidence": "confidence"}
        boxes.dtype.names = tuple(names.get(field, field) for field in boxes.dtype.names or ())
        np.save(path, boxes)


def rvt_files(root: Path, ending: str, sized: bool = True) -> None:
    """RVT's intermediate HDF5 files, which need not name the sensor's size."""
    for folder, name in _recordings(root):
        stream = load_events(folder / f"{name}_td.dat")
        x, y, t, p = _events(folder, name)
        with h5py.File(folder / f"{name}{ending}", "w") as file:
            for column, values in (("x", x), ("y", y), ("t", t), ("p", p.astype("i1"))):
                file.create_dataset(f"events/{column}", data=values, chunks=True, track_times=False, **BLOSC)
            if sized:
                file["events/height"], file["events/width"] = np.int64(stream.height), np.int64(stream.width)
        (folder / f"{name}_td.dat").unlink()


def archive(
    root: Path, factor: int, period_us: int, windows_per_period: int, classes: int, min_diagonal: float, min_side: float
) -> None:
    """RVT's preprocessed archive: histograms by its rule, window ends as its script lays them, its filters.

    Args:
        root: folder of the dataset.
        factor: by which histograms are sub-sampled; boxes stay in full resolution.
        period_us: between label frames.
        windows_per_period: 5 for 250 ms is right; RVT's public script makes 2 of them.
        classes: number of those that are kept.
        min_diagonal: of a box, in px.
        min_side: of a box, in px.
    """
    for folder, name in _recordings(root):
        stream = load_events(folder / f"{name}_td.dat")
        boxes = np.load(folder / f"{name}_bbox.npy")
        training = folder.name == "train"
        boxes = _filtered(boxes, classes, stream.height, stream.width, min_diagonal, min_side, training)
        stamps = np.unique(boxes["t"])
        stamps = stamps[stamps >= FIRST_LABEL_US]
        stamps = stamps[(stamps - stamps[:1]) % period_us == 0]
        boxes = boxes[np.isin(boxes["t"], stamps)]
        ends, places = _window_ends(stamps, period_us, windows_per_period)
        events = _events(folder, name)
        frames = [_histogram(events, end, stream.height, stream.width) for end in ends.tolist()]
        frames = [frame[:, factor // 2 :: factor, factor // 2 :: factor] for frame in frames]
        _write(folder / name, np.stack(frames), ends, places, boxes, stamps, factor)
        (folder / f"{name}_td.dat").unlink()
        (folder / f"{name}_bbox.npy").unlink()


def _filtered(
    boxes: npt.NDArray[np.void], classes: int, height: int, width: int, diagonal: float, side: float, training: bool
) -> npt.NDArray[np.void]:
    boxes = boxes[boxes["class_id"] < classes].copy()
    last_x, last_y = width - 1, height - 1  # RVT crops at the last pixel, not at its far edge
    left, top = boxes["x"].clip(0, last_x), boxes["y"].clip(0, last_y)
    right, bottom = (boxes["x"] + boxes["w"]).clip(0, last_x), (boxes["y"] + boxes["h"]).clip(0, last_y)
    boxes["x"], boxes["y"], boxes["w"], boxes["h"] = left, top, right - left, bottom - top
    kept = (boxes["w"] > 0) & (boxes["h"] > 0) & (np.minimum(boxes["w"], boxes["h"]) >= side)
    kept &= np.sqrt(boxes["w"] ** 2 + boxes["h"] ** 2) >= diagonal
    if training:
        kept &= boxes["w"] <= int(0.9 * width)
    return boxes[kept]


def _window_ends(
    stamps: npt.NDArray[np.int64], period_us: int, windows_per_period: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ends of the windows, and which of them each label frame has: back from the first label, then between labels."""
    lead = np.arange(stamps[0], 0, -WINDOW_US)[::-1][1:]
    ends = lead if len(lead) else stamps[:1]
    places = [len(ends) - 1]
    for first, last in pairwise(stamps.tolist()):
        count = round((last - first) / period_us) * windows_per_period
        ends = np.concatenate([ends, np.linspace(first, last, count + 1).round().astype(np.int64)[1:]])
        places.append(len(ends) - 1)
    return ends.astype(np.int64), np.array(places, np.int64)


def _histogram(events: Events, end: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """(20, H, W) counts of the events from end - 50 ms to end, both included, in bins from the first to the last."""
    inside = (events.t >= end - WINDOW_US) & (events.t <= end)
    x, y, t, p = (column[inside] for column in events)
    counts = np.zeros((2, BINS, height, width), np.int64)
    if len(t):
        share = (t - t[0]).astype(np.float32) / np.float32(max(t[-1] - t[0], 1)) * np.float32(BINS)
        bins = np.minimum(np.floor(share).astype(np.int64), BINS - 1)
        np.add.at(counts, (p.astype(np.int64), bins, y.astype(np.int64), x.astype(np.int64)), 1)
    return np.minimum(counts, LARGEST).reshape(2 * BINS, height, width).astype(np.uint8)


def _write(
    folder: Path,
    frames: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    boxes: npt.NDArray[np.void],
    stamps: npt.NDArray[np.int64],
    factor: int,
) -> None:
    place = folder / "event_representations_v2" / "stacked_histogram_dt=50_nbins=10"
    place.mkdir(parents=True)
    (folder / "labels_v2").mkdir()
    name = "event_representations.h5" if factor == 1 else f"event_representations_ds{factor}_nearest.h5"
    with h5py.File(place / name, "w") as file:
        file.create_dataset("data", data=frames, chunks=(1, *frames.shape[1:]), track_times=False, **BLOSC)
    np.save(place / "objframe_idx_2_repr_idx.npy", places)
    np.save(place / "timestamps_us.npy", ends)
    first = np.searchsorted(boxes["t"], stamps)
    np.savez(folder / "labels_v2" / "labels.npz", labels=boxes, objframe_idx_2_label_idx=first)
    np.save(folder / "labels_v2" / "timestamps_us.npy", stamps)


def nested(root: Path) -> None:
    """The folder that an archive unpacks to, around train, val and test."""
    inner = root / "detection_dataset_duration_60s_ratio_1.0"
    inner.mkdir()
    for split in ("train", "val", "test"):
        if (root / split).is_dir():
            shutil.move(root / split, inner / split)
    if (root / "ego_speed").exists():
        shutil.move(root / "ego_speed", inner / "ego_speed")


GEN1_ARCHIVE = partial(archive, factor=1, period_us=250_000, classes=2, min_diagonal=12, min_side=4)
LAYOUTS: dict[str, Callable[[Path], None]] = {
    "dat": lambda root: None,
    "dat-no-size": without_size,
    "dat-type-0": of_type_0,
    "old-boxes": old_boxes,
    "rvt-h5": partial(rvt_files, ending="_td.h5"),
    "rvt-dat-h5": partial(rvt_files, ending="_td.dat.h5"),
    "rvt-h5-no-size": partial(rvt_files, ending="_td.h5", sized=False),
    "nested": nested,
}
GEN1_LAYOUTS: dict[str, Callable[[Path], None]] = {
    "rvt-archive": partial(GEN1_ARCHIVE, windows_per_period=5),
    "rvt-archive-125ms": partial(GEN1_ARCHIVE, windows_per_period=2),
}
ONE_MPX_LAYOUTS: dict[str, Callable[[Path], None]] = {
    "rvt-archive": partial(
        archive, factor=2, period_us=100_000, windows_per_period=2, classes=3, min_diagonal=0, min_side=3
    ),
}
