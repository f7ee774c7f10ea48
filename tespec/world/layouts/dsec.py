"""DSEC-Semantic: labels as its README, the code of ESS, and the label archive lay them, in train and test or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.events.stream import Events
from tespec.world import scene
from tespec.world.contents import Take
from tespec.world.street import Film

CLASSES = ("11classes", "19classes")
IGNORE = 255
OFFSET_US = 49_500_000_000  # of the recording's clock; labels are in absolute time
LABEL_STRIDE = 5  # rendered frames per label: 50 ms at 100 frames per second
FIRST_LABEL = 5  # frame
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
_OF_SCENE = np.array([_NUMBERS[label] for label in range(scene.CLASSES)], np.uint8).T


def write(film: Film, root: Path, take: Take) -> None:
    """Write `<split>/<name>/`: events and rectification, masks of 11 and 19 classes at 20 Hz with their times.

    The film is the rectified view. Its events are moved to where the lens would have shown them, so that only
    rectified events lie on the labels.
    """
    sensor = take.sensor
    folder = root / take.split / take.name
    (folder / "events" / "left").mkdir(parents=True)
    for classes in CLASSES:
        (folder / "semantic" / "left" / classes).mkdir(parents=True)
    rectified = rectify_map(sensor.height, sensor.width)
    raw = _raw_places(rectified)
    columns: list[Events] = []
    stamps: list[int] = []
    for frame, events in film:
        columns.append(_distort(events, raw))
        if frame.index >= FIRST_LABEL and frame.index % LABEL_STRIDE == 0:
            for classes, mapping in zip(CLASSES, _OF_SCENE, strict=True):
                mask = mapping[frame.label[: sensor.label_rows]]
                mask[:, :1] = IGNORE
                Image.fromarray(mask).save(folder / "semantic" / "left" / classes / f"{len(stamps):06d}.png")
            stamps.append(OFFSET_US + frame.time_us)
    (folder / "semantic" / "timestamps.txt").write_text("".join(f"{stamp}\n" for stamp in stamps))
    _write_events(folder / "events" / "left" / "events.h5", columns)
    with h5py.File(folder / "events" / "left" / "rectify_map.h5", "w") as file:
        file.create_dataset("rectify_map", data=rectified, track_times=False, chunks=True, **BLOSC)


def rectify_map(height: int, width: int) -> npt.NDArray[np.float32]:
    """(H, W, 2) float32 rectified x and y of each raw pixel, real-valued, some outside of the image."""
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    x, y = columns - (width - 1) / 2, rows - (height - 1) / 2
    stretch = 1 + DISTORTION * (x**2 + y**2) / ((width / 2) ** 2 + (height / 2) ** 2)
    places = np.stack([x * stretch + (width - 1) / 2, y * stretch + (height - 1) / 2], axis=-1)
    return places.astype(np.float32)


def _raw_places(rectified: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """(H, W, 2) raw x and y whose rectified place is nearest to each rectified pixel."""
    height, width, _ = rectified.shape
    raw = np.zeros((height, width, 2), np.int16)
    flat = rectified.reshape(-1, 2).astype(np.float64)
    for row in range(height):
        distance = (flat[None, :, 0] - np.arange(width)[:, None]) ** 2 + (flat[None, :, 1] - row) ** 2
        nearest = distance.argmin(axis=1)
        raw[row, :, 0], raw[row, :, 1] = nearest % width, nearest // width
    return raw


def _distort(events: Events, raw: npt.NDArray[np.int16]) -> Events:
    places = raw[events.y, events.x]
    return Events(places[:, 0].astype(np.uint16), places[:, 1].astype(np.uint16), events.t, events.p)


def _write_events(path: Path, columns: list[Events]) -> None:
    x, y, t, p = (np.concatenate(column) for column in zip(*columns, strict=True))
    index = np.searchsorted(t, 1000 * np.arange(int(t[-1]) // 1000 + 1))
    with h5py.File(path, "w") as file:
        for name, values in (
            ("events/x", x.astype("<u2")),
            ("events/y", y.astype("<u2")),
            ("events/t", t.astype("<u4")),
            ("events/p", p.astype("u1")),
            ("ms_to_idx", index.astype("<u8")),
        ):
            file.create_dataset(name, data=values, track_times=False, chunks=True, **BLOSC)
        file.create_dataset("t_offset", data=np.int64(OFFSET_US), track_times=False)


def _sequences(root: Path) -> list[Path]:
    return sorted(path.parents[2] for path in root.glob("**/events/left/events.h5"))


def ess_readme(root: Path) -> None:
    """semantic/left/<n>classes/data, as the README of ESS has it."""
    for folder in _sequences(root):
        for classes in CLASSES:
            _into_data(folder / "semantic" / "left" / classes)


def ess(root: Path) -> None:
    """semantic/<n>classes/data, as the code of ESS reads it."""
    for folder in _sequences(root):
        for classes in CLASSES:
            shutil.move(folder / "semantic" / "left" / classes, folder / "semantic" / classes)
            _into_data(folder / "semantic" / classes)
        (folder / "semantic" / "left").rmdir()


def archive(root: Path) -> None:
    """<n>classes and <sequence>_semantic_timestamps.txt, as the archive of the labels unpacks."""
    for folder in _sequences(root):
        for classes in CLASSES:
            shutil.move(folder / "semantic" / "left" / classes, folder / classes)
        shutil.move(folder / "semantic" / "timestamps.txt", folder / f"{folder.name}_semantic_timestamps.txt")
        shutil.rmtree(folder / "semantic")


def flat(root: Path) -> None:
    """Sequences directly in the folder."""
    for folder in _sequences(root):
        shutil.move(folder, root / folder.name)


def flat_archive(root: Path) -> None:
    """Sequences directly in the folder, each with its labels as their archive unpacks."""
    archive(root)
    flat(root)


def _into_data(folder: Path) -> None:
    masks = sorted(folder.glob("*.png"))
    (folder / "data").mkdir()
    for path in masks:
        shutil.move(path, folder / "data" / path.name)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "readme": lambda root: None,
    "ess-readme": ess_readme,
    "ess": ess,
    "archive": archive,
    "flat": flat,
    "flat-archive": flat_archive,
}
