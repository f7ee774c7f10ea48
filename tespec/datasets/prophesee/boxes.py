"""Boxes in Prophesee's `_bbox.npy` files, read without trusting them, and which of them count."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.boxes import Boxes, make_boxes
from tespec.errors import UserError
from tespec.events.readers.arrays import load_array

FIRST_LABEL_US = 100_000  # earlier label frames are left out (uzh-rpg/RVT, scripts/genx/preprocess_dataset.py)
TOLERANCE_US = 2_000  # by which a label frame may miss its place in the period
RULES = ("rvt", "all")
AGAIN = "copy it again"


class RawBoxes(NamedTuple):
    """Boxes in time order: t (N,) int64 us, corners (N, 4) float32 px of the sensor, label (N,) int64."""

    t: NDArray[np.int64]
    corners: NDArray[np.float32]
    label: NDArray[np.int64]

    def keep(self, kept: NDArray[np.bool_] | NDArray[np.integer]) -> RawBoxes:
        """The boxes of a mask (N,) or of indices."""
        return RawBoxes(self.t[kept], self.corners[kept], self.label[kept])


def read_boxes(path: Path, known_classes: int) -> RawBoxes:
    """Boxes of a file; old ones name the time `ts` instead of `t`.

    Raises:
        UserError: the file is damaged, or holds boxes that are none.
    """
    return raw_boxes(load_array(path), path, known_classes)


def raw_boxes(stored: NDArray[Any], path: Path, known_classes: int) -> RawBoxes:
    """Boxes of a structured array with x, y, w, h, class_id, and t or ts.

    Raises:
        UserError: a field is missing, a time steps back, a number is none, a side is negative, a class is unknown.
    """
    names = stored.dtype.names or ()
    time = "t" if "t" in names else "ts"
    missing = [name for name in (time, "x", "y", "w", "h", "class_id") if name not in names]
    if missing or stored.ndim != 1:
        raise UserError(path, f"has no field {missing[0] if missing else 'of boxes'}", "give a file of boxes")
    for name, kinds in ((time, "iu"), ("class_id", "iu"), *((name, "fiu") for name in "xywh")):
        if stored[name].dtype.kind not in kinds or stored[name].ndim != 1:
            raise UserError(path, f"its field {name} is {stored.dtype[name]}", AGAIN)
    t, label = stored[time].astype(np.int64), stored["class_id"].astype(np.int64)
    left, top, width, height = (stored[name].astype(np.float32) for name in ("x", "y", "w", "h"))
    numbers = np.stack([left, top, width, height], axis=1).reshape(-1, 4)
    for bad, what in (
        (~np.isfinite(numbers).all(axis=1), "a place or size that is no number"),
        ((numbers[:, 2:] < 0).any(axis=1), "a negative size"),
        ((label < 0) | (label >= known_classes), f"a class other than 0 to {known_classes - 1}"),
        (t < 0, "a negative time"),
        (np.diff(t, prepend=t[:1]) < 0, "a time before that of the box before it"),
    ):
        if bad.any():
            raise UserError(path, f"box {int(np.argmax(bad))} has {what}", AGAIN)
    return RawBoxes(t, np.concatenate([numbers[:, :2], numbers[:, :2] + numbers[:, 2:]], axis=1), label)


@dataclass(frozen=True)
class BoxRules:
    """Which boxes, and which frames of them, are labels.

    Attributes:
        boxes: "rvt" for the filters below, "all" for none but the crop to the sensor.
        frames: "rvt" for one frame each `period_us`, "all" for every time that has boxes.
        period_us: between label frames.
        min_diagonal: of a box in px of the sensor.
        min_side: of a box in px of the sensor.
        max_width_share: of the sensor's width, in training.
    """

    boxes: str
    frames: str
    period_us: int
    min_diagonal: float
    min_side: float
    max_width_share: float


def choose_boxes(boxes: RawBoxes, rules: BoxRules, classes: int, height: int, width: int, training: bool) -> RawBoxes:
    """Boxes that count, in the order of uzh-rpg/RVT: class, crop to the sensor, size, and width in training."""
    kept = boxes.keep(boxes.label < classes)
    corners = np.clip(kept.corners, 0, (width, height, width, height)).astype(np.float32)
    kept = kept._replace(corners=corners)
    sides = corners[:, 2:] - corners[:, :2]
    fits = np.all(sides > 0, axis=1)
    if rules.boxes == "rvt":
        fits &= np.all(sides >= rules.min_side, axis=1) & (np.hypot(*sides.T) >= rules.min_diagonal)
        if training:
            fits &= sides[:, 0] <= rules.max_width_share * width
    return kept.keep(fits)


def choose_frames(times: NDArray[np.int64], rules: BoxRules) -> NDArray[np.int64]:
    """Times of the label frames, of the sorted times (N,) in us at which there are boxes."""
    times = np.unique(times)
    if rules.frames == "all" or not len(times):
        return times
    times = times[times >= FIRST_LABEL_US]
    if not len(times):
        return times
    since = times - times[0]
    number = np.round(since / rules.period_us).astype(np.int64)
    near = np.abs(since - number * rules.period_us) <= TOLERANCE_US
    _, first = np.unique(number[near], return_index=True)
    chosen: NDArray[np.int64] = times[near][first]
    return chosen


@dataclass(frozen=True, eq=False)
class BoxLabels:
    """Boxes of each label frame.

    Attributes:
        corners: (M, 4) float32 in px of the histograms.
        label: (M,) int64.
        borders: (K + 1,) int64: label k has the boxes from borders[k] to borders[k + 1].
    """

    corners: NDArray[np.float32]
    label: NDArray[np.int64]
    borders: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.borders) - 1

    def __getitem__(self, index: int) -> Boxes:
        """Boxes of label number `index`."""
        begin, end = self.borders[: len(self)][index], self.borders[1:][index]
        return make_boxes(self.corners[begin:end], self.label[begin:end])

    def checksums(self) -> list[int]:
        """CRC-32 of each label's boxes."""
        return [zlib.crc32(self[index].corners.tobytes() + self[index].label.tobytes()) for index in range(len(self))]


def box_labels(boxes: RawBoxes, times: NDArray[np.int64], factor: int) -> BoxLabels:
    """Boxes of the frames at `times` (K,), for histograms downsampled by `factor`."""
    kept = boxes.keep(np.isin(boxes.t, times))
    borders = np.searchsorted(kept.t, np.append(times, np.iinfo(np.int64).max))
    return BoxLabels((kept.corners / factor).astype(np.float32), kept.label, borders.astype(np.int64))
