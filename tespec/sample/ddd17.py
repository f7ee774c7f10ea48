"""DDD17 as the archive of the ESS authors holds it (uzh-rpg/ess)."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.sample.recordings import Recording
from tespec.sample.street import Film, Frame, gather

CLASSES = ("flat", "background", "object", "vegetation", "human", "vehicle")
IMAGE_STRIDE = 3  # rendered frames per image: 30 ms at 100 frames per second
FIRST_LABEL_US = 120_000
NANOSECONDS = 1000  # per microsecond

# Of the scene's classes, in their order.
_CLASS_OF = np.array([0, 0, 3, 1, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5, 5], np.uint8)


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
    stamps: list[int] = []
    speeds: list[float] = []
    with zipfile.ZipFile(folder / "segmentation_masks.zip", "w") as masks:

        def see(frame: Frame) -> None:
            if frame.index % IMAGE_STRIDE:
                return
            stamps.append(frame.time_us)
            speeds.append(frame.ego_speed)
            (folder / "imgs" / f"img_{len(stamps):08d}.png").write_bytes(_png(frame.grey))
            if frame.time_us >= FIRST_LABEL_US:
                # A fixed date: the same world is the same bytes.
                member = zipfile.ZipInfo(f"segmentation_masks/mask_{len(stamps):08d}.png", (2000, 1, 1, 0, 0, 0))
                masks.writestr(member, _png(mask(frame.label, recording.sensor.label_rows)))

        x, y, t, p = gather(film, see)
    (NANOSECONDS * t).astype("<i8").tofile(folder / "events.dat.t")
    np.stack([x, y, p], axis=1).astype("<i2").tofile(folder / "events.dat.xyp")
    for span in (10, 50, 250):
        np.save(folder / "index" / f"index_{span}ms.npy", image_index(t, np.array(stamps, np.int64), 1000 * span))
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
