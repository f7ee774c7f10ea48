"""DSEC-Semantic as its README lays it."""

from __future__ import annotations

from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.sample import render
from tespec.sample.recordings import Recording
from tespec.sample.street import Film, Frame, gather

CLASSES = ("11classes", "19classes")
IGNORE = 255
OFFSET_US = 49_500_000_000  # of the recording's clock; labels are in absolute time
LABEL_STRIDE = 5  # rendered frames per label: 50 ms at 100 frames per second
DISTORTION = 0.09  # share by which the lens moves the corners of the image
BLOSC = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)

# Class of the scene: its number among the 11, and among Cityscapes' 19 (sky and terrain have one there).
_NUMBERS = {
    render.ROAD: (5, 0),
    render.SIDEWALK: (6, 1),
    render.BUILDING: (1, 2),
    render.WALL: (9, 3),
    render.FENCE: (2, 4),
    render.POLE: (4, 5),
    render.SIGN: (10, 7),
    render.VEGETATION: (7, 8),
    render.TERRAIN: (7, 9),
    render.SKY: (0, 10),
    render.PERSON: (3, 11),
    render.RIDER: (3, 12),
    render.CAR: (8, 13),
    render.TRUCK: (8, 14),
    render.TWO_WHEELER: (8, 18),
}
_CLASS_OF = np.array([_NUMBERS[label] for label in range(render.CLASSES)], np.uint8).T


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
    stamps: list[int] = []

    def see(frame: Frame) -> None:
        if frame.index % LABEL_STRIDE:
            return
        for classes, mapping in zip(CLASSES, _CLASS_OF, strict=True):
            mask = mapping[frame.label[: sensor.label_rows]]
            mask[:, :1] = IGNORE
            Image.fromarray(mask).save(folder / "semantic" / "left" / classes / f"{len(stamps):06d}.png")
        stamps.append(OFFSET_US + frame.time_us)

    events = gather(film, see)
    (folder / "semantic" / "timestamps.txt").write_text("".join(f"{stamp}\n" for stamp in stamps))
    rectified = rectify_map(sensor.height, sensor.width)
    x, y = _raw_places(rectified)[events.y, events.x].T
    index = np.searchsorted(events.t, 1000 * np.arange(int(events.t[-1]) // 1000 + 1)).astype("<u8")
    columns = {"x": x.astype("<u2"), "y": y.astype("<u2"), "t": events.t.astype("<u4"), "p": events.p}
    with h5py.File(folder / "events" / "left" / "events.h5", "w") as file:
        for name, values in ({f"events/{name}": values for name, values in columns.items()} | {"ms_to_idx": index}).items():
            file.create_dataset(name, data=values, track_times=False, chunks=True, **BLOSC)
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
