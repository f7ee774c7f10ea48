"""DDD17 as the archive of the ESS authors holds it (uzh-rpg/ess)."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.sample import scene
from tespec.sample.recordings import Recording
from tespec.sample.street import Film

CLASSES = ("flat", "background", "object", "vegetation", "human", "vehicle")
IMAGE_STRIDE = 3  # rendered frames per image: 30 ms at 100 frames per second
FIRST_LABEL_US = 120_000
NANOSECONDS = 1000  # per microsecond

_CLASS_OF = np.empty(scene.CLASSES, np.uint8)
_CLASS_OF[[scene.ROAD, scene.SIDEWALK]] = 0
_CLASS_OF[[scene.SKY, scene.BUILDING, scene.WALL, scene.FENCE]] = 1
_CLASS_OF[[scene.POLE, scene.SIGN]] = 2
_CLASS_OF[[scene.VEGETATION, scene.TERRAIN]] = 3
_CLASS_OF[[scene.PERSON, scene.RIDER]] = 4
_CLASS_OF[[scene.CAR, scene.TRUCK, scene.TWO_WHEELER]] = 5


def mask(label: npt.NDArray[np.uint8], label_rows: int) -> npt.NDArray[np.uint8]:
    """DDD17 classes (label_rows, W) uint8 of a frame's labels (H, W): the lower rows, the bonnet, are cut off."""
    return _CLASS_OF[label[:label_rows]]


def write(film: Film, root: Path, recording: Recording) -> None:
    """Write `<name>/`: events in ns, every third frame as an image, masks of the images from `FIRST_LABEL_US` on.

    Beside the archive's files stands `ego_speed.npy`, float32 (images,), m/s.
    """
    folder = root / recording.name
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
            t_file.write((NANOSECONDS * events.t).astype("<i8").tobytes())
            xyp_file.write(np.stack([events.x, events.y, events.p], axis=1).astype("<i2").tobytes())
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
                masks.writestr(member, _png(mask(frame.label, recording.sensor.label_rows)))
    all_times, stamps = np.concatenate(times), np.array(image_times, np.int64)
    for span in (10, 50, 250):
        np.save(folder / "index" / f"index_{span}ms.npy", image_index(all_times, stamps, 1000 * span))
    np.save(folder / "ego_speed.npy", np.array(speeds, np.float32))


def image_index(times: npt.NDArray[np.int64], stamps: npt.NDArray[np.int64], span: int) -> npt.NDArray[np.int64]:
    """The archive's index table of events at sorted `times` (N,) and images at `stamps` (M,), all in microseconds.

    Returns:
        Rows (M, 3) int64: time stamp in nanoseconds, number of events before the image, number of events before the
        time `span` microseconds earlier.
    """
    at_image, earlier = np.searchsorted(times, stamps), np.searchsorted(times, stamps - span)
    return np.stack([NANOSECONDS * stamps, at_image, earlier], axis=1).astype(np.int64)


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
