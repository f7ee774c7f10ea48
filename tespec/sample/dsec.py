"""DSEC-Semantic as its README lays it."""

from __future__ import annotations

from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.events.stream import Events
from tespec.sample import scene
from tespec.sample.recordings import Recording
from tespec.sample.street import Film

CLASSES = ("11classes", "19classes")
IGNORE = 255
OFFSET_US = 49_500_000_000  # of the recording's clock; labels are in absolute time
LABEL_STRIDE = 5  # rendered frames per label: 50 ms at 100 frames per second
DISTORTION = 0.09  # share by which the lens moves the corners of the image
BLOSC = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)

# Class of the scene: its number among the 11, and among Cityscapes' 19 (sky and terrain have one there).
_NUMBERS = {
    scene.ROAD: (5, 0),
    scene.SIDEWALK: (6, 1),
    scene.BUILDING: (1, 2),
    scene.WALL: (9, 3),
    scene.FENCE: (2, 4),
    scene.POLE: (4, 5),
    scene.SIGN: (10, 7),
    scene.VEGETATION: (7, 8),
    scene.TERRAIN: (7, 9),
    scene.SKY: (0, 10),
    scene.PERSON: (3, 11),
    scene.RIDER: (3, 12),
    scene.CAR: (8, 13),
    scene.TRUCK: (8, 14),
    scene.TWO_WHEELER: (8, 18),
}
_CLASS_OF = np.array([_NUMBERS[label] for label in range(scene.CLASSES)], np.uint8).T


def write(film: Film, root: Path, recording: Recording) -> None:
    """Write `<split>/<name>/`: events and rectification, masks of 11 and 19 classes at 20 Hz with their times.

    The film is the rectified view. Its events are moved to where the lens would have shown them, so that only
    rectified events lie on the labels.
    """
    sensor = recording.sensor
    folder = root / recording.split / recording.name
    (folder / "events" / "left").mkdir(parents=True)
    for classes in CLASSES:
        (folder / "semantic" / "left" / classes).mkdir(parents=True)
    rectified = rectify_map(sensor.height, sensor.width)
    raw = _raw_places(rectified)
    columns: list[Events] = []
    stamps: list[int] = []
    for frame, events in film:
        x, y = raw[events.y, events.x].T
        columns.append(Events(x, y, events.t, events.p))
        if frame.index % LABEL_STRIDE == 0:
            for classes, mapping in zip(CLASSES, _CLASS_OF, strict=True):
                mask = mapping[frame.label[: sensor.label_rows]]
                mask[:, :1] = IGNORE
                Image.fromarray(mask).save(folder / "semantic" / "left" / classes / f"{len(stamps):06d}.png")
            stamps.append(OFFSET_US + frame.time_us)
    (folder / "semantic" / "timestamps.txt").write_text("".join(f"{stamp}\n" for stamp in stamps))
    x, y, t, p = (np.concatenate(column) for column in zip(*columns, strict=True))
    index = np.searchsorted(t, 1000 * np.arange(int(t[-1]) // 1000 + 1))
    with h5py.File(folder / "events" / "left" / "events.h5", "w") as file:
        for name, values, kind in (
            ("events/x", x, "<u2"),
            ("events/y", y, "<u2"),
            ("events/t", t, "<u4"),
            ("events/p", p, "u1"),
            ("ms_to_idx", index, "<u8"),
        ):
            file.create_dataset(name, data=values.astype(kind), track_times=False, chunks=True, **BLOSC)
        file.create_dataset("t_offset", data=np.int64(OFFSET_US), track_times=False)
    with h5py.File(folder / "events" / "left" / "rectify_map.h5", "w") as file:
        file.create_dataset("rectify_map", data=rectified, track_times=False, chunks=True, **BLOSC)


def rectify_map(height: int, width: int) -> npt.NDArray[np.float32]:
    """(H, W, 2) float32 rectified x and y of each raw pixel, real-valued, some outside of the image."""
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    x, y = columns - (width - 1) / 2, rows - (height - 1) / 2
    stretch = 1 + DISTORTION * (x**2 + y**2) / ((width / 2) ** 2 + (height / 2) ** 2)
    places = np.stack([x * stretch + (width - 1) / 2, y * stretch + (height - 1) / 2], axis=-1)
    return places.astype(np.float32)


def _raw_places(rectified: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """(H, W, 2) raw x and y whose rectified place is nearest to each rectified pixel."""
    height, width, _ = rectified.shape
    raw = np.zeros((height, width, 2), np.uint16)
    flat = rectified.reshape(-1, 2).astype(np.float64)
    for row in range(height):
        distance = (flat[None, :, 0] - np.arange(width)[:, None]) ** 2 + (flat[None, :, 1] - row) ** 2
        raw[row, :, 1], raw[row, :, 0] = np.divmod(distance.argmin(axis=1), width)
    return raw
