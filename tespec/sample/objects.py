"""What a camera sees of a street's objects, as a folder of images for each class, like ImageNet's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.sample.prophesee import SEEN, Classes
from tespec.sample.recordings import Recording
from tespec.sample.street import Film, Frame

CLASSES = ("car", "truck", "person", "two_wheeler", "street")
OF_SCENE = Classes(car=0, truck=1, person=2, two_wheeler=3, sign=None)
STREET = 4
STRIDE = 10  # frames between two that are used
SMALLEST, MARGIN = 12, 0.25  # px of an object's shorter side, and what is seen around it as a share of the longer one
SIDE = 40  # px of a piece of street


def write(film: Film, root: Path, recording: Recording) -> None:
    """Write `<split>/<class>/<name>_<number>.png`: square grey images of objects, and of street without any."""
    rng = np.random.default_rng([recording.seed, 7])
    count = 0
    for frame, _ in film:
        if frame.index % STRIDE:
            continue
        for number, image in _pieces(frame, rng):
            folder = root / recording.split / CLASSES[number]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{recording.name}_{count:05d}.png", compress_level=1)
            count += 1


def _pieces(frame: Frame, rng: np.random.Generator) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Class and image of each object of a frame that is large enough, and a piece of street."""
    height, width = frame.grey.shape
    for track in np.unique(frame.instance[frame.instance > 0]).tolist():
        pixels = frame.instance == track
        number = OF_SCENE.of(frame.label[pixels])
        rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
        sides = (len(rows), len(columns))
        if number is None or pixels.sum() < SEEN or min(sides) < SMALLEST:
            continue
        half = round((0.5 + MARGIN) * max(sides))
        middle = (rows[0] + rows[-1]) // 2, (columns[0] + columns[-1]) // 2
        top, left = max(0, middle[0] - half), max(0, middle[1] - half)
        yield number, frame.grey[top : middle[0] + half, left : middle[1] + half]
    top, left = int(rng.integers(0, height - SIDE + 1)), int(rng.integers(0, width - SIDE + 1))
    if not (frame.instance[top : top + SIDE, left : left + SIDE] > 0).any():
        yield STREET, frame.grey[top : top + SIDE, left : left + SIDE]
