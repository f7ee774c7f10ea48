"""Writes a street in the layout of the DDD17 archive of the ESS authors (uzh-rpg/ess)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.events.stream import Events
from tespec.world import scene
from tespec.world.street import Frame

CLASSES = ("flat", "background", "object", "vegetation", "human", "vehicle")
FLAT, BACKGROUND, OBJECT, GREEN, HUMAN, VEHICLE = range(len(CLASSES))
IMAGE_STRIDE = 3  # rendered frames per image: 30 ms at 100 frames per second
FIRST_LABEL_US = 120_000
INDEX_MS = (10, 50, 250)
NANOSECONDS = 1000  # per microsecond

_OF_SCENE = np.empty(len(scene.CLASS_NAMES), np.uint8)
_OF_SCENE[[scene.ROAD, scene.SIDEWALK]] = FLAT
_OF_SCENE[[scene.SKY, scene.BUILDING, scene.WALL, scene.FENCE]] = BACKGROUND
_OF_SCENE[[scene.POLE, scene.SIGN]] = OBJECT
_OF_SCENE[[scene.VEGETATION, scene.TERRAIN]] = GREEN
_OF_SCENE[[scene.PERSON, scene.RIDER]] = HUMAN
_OF_SCENE[[scene.CAR, scene.TRUCK, scene.TWO_WHEELER]] = VEHICLE


def mask(label: npt.NDArray[np.uint8], label_rows: int) -> npt.NDArray[np.uint8]:
    """DDD17 classes (label_rows, W) uint8 of a frame's labels (H, W): the lower rows, the bonnet, are cut off."""
    return _OF_SCENE[label[:label_rows]]


def write_ddd17(film: Iterator[tuple[Frame, Events]], folder: Path, label_rows: int) -> None:
    """Write one recording.

    Events are stored in nanoseconds. Every third frame is an image; images from `FIRST_LABEL_US` on have a mask,
    numbered from 1 like the archive's. Beside the archive's files stands `ego_speed.npy`, float32 (images,), m/s.

    Args:
        film: frames and events of `street.record`.
        folder: of the recording; made by this call.
        label_rows: rows of the masks.
    """
    (folder / "index").mkdir(parents=True)
    (folder / "imgs").mkdir()
    times: list[npt.NDArray[np.int64]] = []
    image_times: list[int] = []
    speeds: list[float] = []
    with (
        (folder / "events.dat.t").open("wb") as t_file,
        (folder / "events.dat.xyp").open("wb") as xyp_file,
        zipfile.ZipFile(folder / "segmentation_masks.zip", "w") as masks,
    ):
        for frame, events in film:
            _write_events(events, t_file, xyp_file)
            times.append(events.t)
            if frame.index % IMAGE_STRIDE:
                continue
            image_times.append(frame.time_us)
            speeds.append(frame.ego_speed)
            number = len(image_times)
            (folder / "imgs" / f"img_{number:08d}.png").write_bytes(_png(frame.grey))
            if frame.time_us >= FIRST_LABEL_US:
                # A fixed date: the same world is the same bytes.
                member = zipfile.ZipInfo(f"segmentation_masks/mask_{number:08d}.png", (2000, 1, 1, 0, 0, 0))
                masks.writestr(member, _png(mask(frame.label, label_rows)))
    all_times, stamps = np.concatenate(times), np.array(image_times, np.int64)
    for span in INDEX_MS:
        np.save(folder / "index" / f"index_{span}ms.npy", image_index(all_times, stamps, 1000 * span))
    np.save(folder / "ego_speed.npy", np.array(speeds, np.float32))


def image_index(times: npt.NDArray[np.int64], stamps: npt.NDArray[np.int64], span: int) -> npt.NDArray[np.int64]:
    """The archive's index table.

    Args:
        times: of all events (N,), sorted, microseconds.
        stamps: of the images (M,), microseconds.
        span: microseconds the last column looks back.

    Returns:
        Rows (M, 3) int64: time stamp in nanoseconds, number of events before the image, number of events before the
        time `span` earlier.
    """
    at_image, earlier = np.searchsorted(times, stamps), np.searchsorted(times, stamps - span)
    return np.stack([NANOSECONDS * stamps, at_image, earlier], axis=1).astype(np.int64)


def _write_events(events: Events, t_file: BinaryIO, xyp_file: BinaryIO) -> None:
    t_file.write((NANOSECONDS * events.t).astype("<i8").tobytes())
    xyp_file.write(np.stack([events.x, events.y, events.p], axis=1).astype("<i2").tobytes())


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
