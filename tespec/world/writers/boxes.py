"""Boxes of what is seen of cars, people and two-wheelers, as Prophesee stores them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tespec.world import scene
from tespec.world.street import Frame

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
