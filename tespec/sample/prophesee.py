"""Gen1 and 1Mpx: raw files with their boxes; and images of such objects in a folder for each class, like ImageNet's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.events.readers.prophesee import write_dat
from tespec.sample.recordings import Recording
from tespec.sample.render import CAR, PERSON, RIDER, SIGN, TRUCK, TWO_WHEELER
from tespec.sample.street import FRAME_RATE, Film, Frame, gather

# 40 bytes a box (prophesee-ai/prophesee-automotive-dataset-toolbox, src/io/box_loading.py).
FIELDS = ("t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence")
BOX = np.dtype(list(zip(FIELDS, ("<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"), strict=True)), align=True)
SEEN = 10  # px of an instance that must be seen for a box
BEYOND = 3.0  # px by which a box that is cut off by the image's border goes on outside of it
SIGN_TRACK = 100_000  # first track of the signs, which have no instances
# Number of the class of what shows a label of the scene, the first that it shows; a bicycle counts with its rider.
GEN1 = {TRUCK: 0, CAR: 0, PERSON: 1}
ONE_MPX = {TWO_WHEELER: 1, RIDER: 1, TRUCK: 3, CAR: 2, PERSON: 0, SIGN: 5}
RATES = {"gen1": (GEN1, 4), "1mpx": (ONE_MPX, 60)}  # classes, and labels per second

OBJECTS = ("car", "truck", "person", "two_wheeler", "street")
OF_OBJECTS = {TWO_WHEELER: 3, RIDER: 3, TRUCK: 1, CAR: 0, PERSON: 2}
STRIDE = 10  # frames between two whose objects are cut out
SMALLEST, MARGIN = 12, 0.25  # px of an object's shorter side, and what is seen around it as a share of the longer one
SIDE = 40  # px of a piece of street


def frame_boxes(frame: Frame, classes: dict[int, int]) -> npt.NDArray[np.void]:
    """Boxes (N,) of dtype `BOX` around the visible parts of a frame's instances, by their track; then of the signs."""
    boxes = []
    tracks = np.unique(frame.instance[frame.instance > 0]).tolist()
    for track in [*tracks, SIGN_TRACK]:
        pixels = frame.label == SIGN if track == SIGN_TRACK else frame.instance == track
        labels = np.unique(frame.label[pixels])
        number = next((number for label, number in classes.items() if label in labels), None)
        if number is not None and pixels.sum() >= SEEN:
            boxes.append(_box(pixels, frame.time_us, number, track))
    return np.array(boxes, BOX)


def _box(pixels: npt.NDArray[np.bool_], time_us: int, number: int, track: int) -> tuple[float, ...]:
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    height, width = pixels.shape
    left, top, right, bottom = float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
    left, top = left - BEYOND * (left == 0), top - BEYOND * (top == 0)
    right, bottom = right + BEYOND * (right == width), bottom + BEYOND * (bottom == height)
    return (time_us, left, top, right - left, bottom - top, number, track, 1.0)


def write(film: Film, root: Path, recording: Recording) -> None:
    """Write `<split>/<name>_td.dat` and `<split>/<name>_bbox.npy`.

    Labels are at the official rates, at the frames that are nearest in time.
    """
    classes, rate = RATES[recording.dataset]
    labelled = {round(number * FRAME_RATE / rate) for number in range(1, int(recording.seconds * rate) + 1)}
    boxes = [np.empty(0, BOX)]

    def see(frame: Frame) -> None:
        if frame.index in labelled:
            boxes.append(frame_boxes(frame, classes))

    x, y, t, p = gather(film, see)
    folder = root / recording.split
    folder.mkdir(exist_ok=True)
    write_dat(folder / f"{recording.name}_td.dat", x, y, t, p, recording.sensor.height, recording.sensor.width)
    # Zeros between the fields, so that the same boxes are the same bytes.
    stored = np.zeros(sum(map(len, boxes)), BOX)
    for name in FIELDS:
        stored[name] = np.concatenate(boxes)[name]
    np.save(folder / f"{recording.name}_bbox.npy", stored)


def write_objects(film: Film, root: Path, recording: Recording) -> None:
    """Write `<split>/<class>/<name>_<number>.png`: square grey images of objects, and of street without any."""
    rng = np.random.default_rng([recording.seed, 7])
    written = 0
    for frame, _ in film:
        if frame.index % STRIDE:
            continue
        pieces = []
        for box in frame_boxes(frame, OF_OBJECTS):
            if min(box["w"], box["h"]) >= SMALLEST:
                half = round((0.5 + MARGIN) * max(box["w"], box["h"]))
                left, top = (max(0, int(box[at] + box[size] / 2) - half) for at, size in (("x", "w"), ("y", "h")))
                pieces.append((box["class_id"], frame.grey[top : top + 2 * half, left : left + 2 * half]))
        height, width = frame.grey.shape
        top, left = int(rng.integers(0, height - SIDE + 1)), int(rng.integers(0, width - SIDE + 1))
        if not (frame.instance[top : top + SIDE, left : left + SIDE] > 0).any():
            pieces.append((OBJECTS.index("street"), frame.grey[top : top + SIDE, left : left + SIDE]))
        for number, image in pieces:
            folder = root / recording.split / OBJECTS[number]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{recording.name}_{written:05d}.png", compress_level=1)
            written += 1
