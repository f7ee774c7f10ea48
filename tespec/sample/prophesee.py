"""Gen1 and 1Mpx: raw files with their boxes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tespec.events.readers.prophesee import write_dat
from tespec.sample import scene
from tespec.sample.paths import FRAME_RATE
from tespec.sample.recordings import Recording
from tespec.sample.street import Film, Frame

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


class Classes(NamedTuple):
    """Numbers of the classes of a data set; None: has none. A bicycle counts with its rider."""

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


def _box(pixels: npt.NDArray[np.bool_], time_us: int, number: int, track: int) -> tuple[float, ...]:
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    height, width = pixels.shape
    left, top, right, bottom = float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
    left, top = left - BEYOND * (left == 0), top - BEYOND * (top == 0)
    right, bottom = right + BEYOND * (right == width), bottom + BEYOND * (bottom == height)
    return (time_us, left, top, right - left, bottom - top, number, track, 1.0)


LABELS = {"gen1": (GEN1, 4), "1mpx": (ONE_MPX, 60)}  # classes, and labels per second


def write(film: Film, root: Path, recording: Recording) -> None:
    """Write `<split>/<name>_td.dat` and `<split>/<name>_bbox.npy`.

    Labels are at the official rates, at the frames that are nearest in time.
    """
    classes, rate = LABELS[recording.dataset]
    labelled = {round(number * FRAME_RATE / rate) for number in range(1, int(recording.seconds * rate) + 1)}
    columns, boxes = [], [np.empty(0, BOX)]
    for frame, events in film:
        columns.append(events)
        if frame.index in labelled:
            boxes.append(frame_boxes(frame, classes))
    folder = root / recording.split
    folder.mkdir(exist_ok=True)
    x, y, t, p = (np.concatenate(column) for column in zip(*columns, strict=True))
    write_dat(folder / f"{recording.name}_td.dat", x, y, t, p, recording.sensor.height, recording.sensor.width)
    # Zeros between the fields, so that the same boxes are the same bytes.
    stored = np.zeros(sum(map(len, boxes)), BOX)
    for name in BOX.names or ():
        stored[name] = np.concatenate(boxes)[name]
    np.save(folder / f"{recording.name}_bbox.npy", stored)
