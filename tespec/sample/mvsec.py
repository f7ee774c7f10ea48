"""MVSEC: events in seconds since 1970, depth of a lidar with gaps."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from tespec.sample.recordings import Recording
from tespec.sample.street import FRAME_RATE, Film, Frame, gather

EPOCH_US = 1_506_118_000_123_456
DEPTH_STRIDE, IMAGE_STRIDE = 5, 2  # rendered frames per depth map and per image: 20 and 50 Hz
DEPTHS_BEFORE = 2  # depth maps that are stamped before the first event, as in the official files
EMPTY = 7  # number of the depth map in which nothing came back
RANGE = 100.0  # m
LOWEST_BEAM, HIGHEST_BEAM = 0.95, 0.12  # rows, as shares of the height, between which the lidar sees
GAPS = 0.2  # share of pixels without a return
SHIFT = 2  # px by which the rectified depth is moved against the raw one


def write(film: Film, root: Path, recording: Recording) -> None:
    """Write `<name>_data.hdf5` with events and images, and `<name>_gt.hdf5` with depth."""
    rng = np.random.default_rng(recording.seed)
    images: list[npt.NDArray[np.uint8]] = []
    depths: list[npt.NDArray[np.float32]] = []

    def see(frame: Frame) -> None:
        if frame.index % IMAGE_STRIDE == 0:
            images.append(frame.grey)
        if frame.index % DEPTH_STRIDE == 0:
            depths.append(_lidar(frame.depth, rng, empty=len(depths) == EMPTY))

    x, y, t, p = gather(film, see)
    period = 1_000_000 // FRAME_RATE
    image_stamps = IMAGE_STRIDE * period * np.arange(1, len(images) + 1)
    raw = np.stack([depths[0]] * DEPTHS_BEFORE + depths)
    stamps = DEPTH_STRIDE * period * np.delete(np.arange(-DEPTHS_BEFORE, len(depths) + 1), DEPTHS_BEFORE)
    with h5py.File(root / f"{recording.name}_data.hdf5", "w") as file:
        rows = np.stack([x, y, _seconds(t), 2.0 * p - 1], axis=1)
        _put(file, "events", rows.astype(np.float64), chunks=(min(1 << 14, len(rows)), 4))
        _put(file, "image_raw", np.stack(images))
        _put(file, "image_raw_ts", _seconds(image_stamps))
        _put(file, "image_raw_event_inds", np.searchsorted(t, image_stamps).astype(np.int64))
    with h5py.File(root / f"{recording.name}_gt.hdf5", "w") as file:
        for name, values in (("depth_image_raw", raw), ("depth_image_rect", np.roll(raw, (SHIFT, SHIFT), (1, 2)))):
            _put(file, name, values, chunks=(1, *raw.shape[1:]))
            _put(file, f"{name}_ts", _seconds(stamps))


def _put(file: h5py.File, name: str, values: npt.NDArray[np.generic], **options: object) -> None:
    file.create_dataset(f"davis/left/{name}", data=values, track_times=False, **options)


def _seconds(times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return (EPOCH_US + times_us) / 1e6


def _lidar(depth: npt.NDArray[np.float32], rng: np.random.Generator, empty: bool) -> npt.NDArray[np.float32]:
    """Depth (H, W) in m where a lidar of limited field and range has a return, else NaN."""
    height = len(depth)
    seen = (depth < RANGE) & (rng.random(depth.shape) >= GAPS)
    seen[: round(HIGHEST_BEAM * height)] = False
    seen[round(LOWEST_BEAM * height) :] = False
    return np.where(seen & (not empty), depth, np.float32(np.nan)).astype(np.float32)
