"""DSEC-Semantic as its README lays it."""

from __future__ import annotations

from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.spatial import KDTree

from tespec.sample.recordings import Recording
from tespec.sample.street import Film, Frame, gather

CLASSES = ("11classes", "19classes")
IGNORE = 255
OFFSET_US = 49_500_000_000  # of the recording's clock; labels are in absolute time
LABEL_STRIDE = 5  # rendered frames per label: 50 ms at 100 frames per second
DISTORTION = 0.09  # share by which the lens moves the corners of the image
BLOSC = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)

# Of the scene's classes, in their order: number among the 11, and among Cityscapes' 19, which have sky and terrain.
_CLASS_OF = np.array(
    [[5, 6, 7, 0, 1, 9, 2, 4, 10, 7, 3, 3, 8, 8, 8], [0, 1, 9, 10, 2, 3, 4, 5, 7, 8, 11, 12, 13, 14, 18]], np.uint8
)


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
    seen = np.mgrid[: sensor.height, : sensor.width][::-1].reshape(2, -1).T
    nearest = KDTree(rectified.reshape(-1, 2)).query(seen)[1].reshape(sensor.height, sensor.width)
    y, x = np.divmod(nearest[events.y, events.x], sensor.width)
    index = np.searchsorted(events.t, 1000 * np.arange(int(events.t[-1]) // 1000 + 1)).astype("<u8")
    columns = {
        "events/x": x.astype("<u2"),
        "events/y": y.astype("<u2"),
        "events/t": events.t.astype("<u4"),
        "events/p": events.p,
        "ms_to_idx": index,
    }
    with h5py.File(folder / "events" / "left" / "events.h5", "w") as file:
        for name, values in columns.items():
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
