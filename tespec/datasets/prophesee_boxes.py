"""Boxes in Prophesee's `_bbox.npy` files, read without trusting them, and which of them count."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError
from tespec.core.settings import Flag, FromZero, Positive, Share, choice
from tespec.events.readers.arrays import load_array

FIRST_LABEL_US = 100_000  # earlier label frames are left out (uzh-rpg/RVT, scripts/genx/preprocess_dataset.py)
LATEST_FIRST_US = 1_000_000  # first events of recordings whose clock starts at 0 come before
TOLERANCE_US = 2_000  # by which a label frame may miss its place in the period
LARGEST_PX = 1e6  # no place or size is larger; a damaged one may be close to what float32 can hold
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
    time = "ts" if "ts" in names and "t" not in names else "t"
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
        ((np.abs(numbers) > LARGEST_PX).any(axis=1), f"a place or size beyond {LARGEST_PX:,.0f} px"),
        ((numbers[:, 2:] < 0).any(axis=1), "a negative size"),
        ((label < 0) | (label >= known_classes), f"a class other than 0 to {known_classes - 1}"),
        (t < 0, "a negative time"),
        (np.diff(t, prepend=t[:1]) < 0, "a time before that of the box before it"),
    ):
        if bad.any():
            raise UserError(path, f"box {int(np.argmax(bad))} has {what}", AGAIN)
    return RawBoxes(t, np.concatenate([numbers[:, :2], numbers[:, :2] + numbers[:, 2:]], axis=1), label)


@pydantic.dataclasses.dataclass(frozen=True)
class PropheseeProtocol:
    """Which recordings, frames and boxes count; sizes in px of the sensor.

    Attributes:
        boxes: "rvt" for the filters of uzh-rpg/RVT, "all" for none but the crop to the sensor.
        frames: "rvt" for one label frame each period, "all" for every time that has boxes.
        period_ms: between label frames.
        period_from_labels: whether the period is that whole number of the labels' median spacing which is closest to
            `period_ms`; where none is within 2 ms of it, it stays as it is.
        min_diagonal: of a box.
        min_side: of a box.
        max_width_share: of the sensor's width, in training.
        skip: recordings left out for faulty labels.
    """

    boxes: Annotated[str, choice(*RULES)]
    frames: Annotated[str, choice(*RULES)]
    period_ms: Positive
    period_from_labels: Flag
    min_diagonal: FromZero
    min_side: FromZero
    max_width_share: Share
    skip: tuple[str, ...]

    def check(self) -> None:
        """Refuse a period that means nothing.

        Raises:
            UserError: it is shorter than 1 us.
        """
        if self.period_us < 1:
            raise UserError("protocol.period_ms", f"{self.period_ms:g} ms is less than 1 us", "give a longer period")

    @property
    def period_us(self) -> int:
        """Time between label frames in us."""
        return round(self.period_ms * 1000)


def choose_boxes(
    boxes: RawBoxes, rules: PropheseeProtocol, classes: int, height: int, width: int, training: bool
) -> RawBoxes:
    """Boxes that count: of the first `classes` classes, cropped to the sensor, of the right size.

    The order, and the limits of the crop, which are the last pixel and not its far edge, are those of uzh-rpg/RVT
    (scripts/genx/preprocess_dataset.py, `apply_filters`); with rule "all" boxes are cropped at the far edge.
    """
    kept = boxes.keep(boxes.label < classes)
    rvt = rules.boxes == "rvt"
    edge = np.array([width, height, width, height], np.float32) - np.float32(rvt)
    corners = np.clip(kept.corners, 0, edge)
    kept = kept._replace(corners=corners)
    sides = corners[:, 2:] - corners[:, :2]
    fits = np.all(sides > 0, axis=1)
    if rvt:
        fits &= np.all(sides >= rules.min_side, axis=1) & (np.square(sides).sum(axis=1) >= rules.min_diagonal**2)
        if training:
            fits &= sides[:, 0] <= int(rules.max_width_share * width)
    return kept.keep(fits)


def start_of(first: int) -> int:
    """Time in us at which a recording starts, by that of its first event.

    The clock of the official archives starts with the recording, at 0, and the first event follows within 1 s. By any
    other clock a recording starts with its first event.
    """
    return 0 if 0 <= first < LATEST_FIRST_US else first


def choose_frames(times: NDArray[np.int64], rules: PropheseeProtocol, start: int = 0) -> NDArray[np.int64]:
    """Times of the label frames, of the sorted times (N,) in us at which there are boxes.

    By rule "rvt" the first one at 100 ms or later after the `start` (us) counts, and each whose distance to the last
    one that counts is a whole number of periods, give or take 2 ms, as in uzh-rpg/RVT
    (scripts/genx/preprocess_dataset.py).
    """
    times = np.unique(times)
    if rules.frames == "all":
        return times
    period = label_period(times, rules)
    chosen: list[int] = []
    for time in times[times >= start + FIRST_LABEL_US].tolist():
        since = time - chosen[-1] if chosen else 0
        number = round(since / period)
        if not chosen or (number and abs(since - number * period) <= TOLERANCE_US):
            chosen.append(time)
    return np.array(chosen, np.int64)


def label_period(times: NDArray[np.int64], rules: PropheseeProtocol) -> int:
    """Time in us between label frames, of the rising times (N,) in us at which there are boxes."""
    if not rules.period_from_labels or len(times) < 2:
        return rules.period_us
    median = float(np.median(np.diff(times)))
    period = int(round(rules.period_us / median) * median)
    return period if abs(period - rules.period_us) <= TOLERANCE_US else rules.period_us


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

    def part(self, first: int, end: int) -> BoxLabels:
        """The labels from `first` to `end` (exclusive)."""
        return replace(self, borders=self.borders[first : end + 1])

    def checksums(self) -> list[int]:
        """CRC-32 of each label's boxes."""
        return [zlib.crc32(self[index].corners.tobytes() + self[index].label.tobytes()) for index in range(len(self))]


def box_labels(boxes: RawBoxes, times: NDArray[np.int64], factor: int) -> BoxLabels:
    """Boxes of the frames at `times` (K,), for histograms downsampled by `factor`."""
    kept = boxes.keep(np.isin(boxes.t, times))
    borders = np.searchsorted(kept.t, np.append(times, np.iinfo(np.int64).max))
    return BoxLabels((kept.corners / factor).astype(np.float32), kept.label, borders.astype(np.int64))
