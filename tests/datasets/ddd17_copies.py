"""Copies of a DDD17 recording that tests change, and archives in the official sizes."""

import io
import shutil
import zipfile

import numpy as np
from event_files import ddd17, random_events
from PIL import Image


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def copy_archive(world, folder, names=("dir2",)):
    """The sample archive with some of its recordings, without images."""
    root = folder / "ddd17"
    root.mkdir(parents=True)
    shutil.copy(world / "ddd17" / "dataset.json", root)
    for name in names:
        shutil.copytree(world / "ddd17" / name, root / name, ignore=shutil.ignore_patterns("imgs"))
    return root


def extract(recording):
    """Replace a recording's zip archive of masks by the folder that is in it."""
    with zipfile.ZipFile(recording / "segmentation_masks.zip") as archive:
        archive.extractall(recording)
    (recording / "segmentation_masks.zip").unlink()
    return recording / "segmentation_masks"


def write_official(root, ticks=1000, masks=range(1, 9), start_us=5_000_000):
    """A recording as in the official archive: 346x260 px, one image each 30 ms, masks of 200 rows, no dataset.json."""
    events = random_events(4000, height=260, width=346, start=start_us, end=start_us + 320_000)
    folder = ddd17(root / "dir1", events, ticks_per_us=ticks, frame_period_us=30_000, images=10)
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(folder / "segmentation_masks.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in masks:
            mask = rng.integers(0, 6, (200, 346), np.uint8)
            mask[0] = 255
            archive.writestr(f"segmentation_masks/segmentation_{number:08d}.png", png(mask))
    return events, events.t[0] + 30_000 * np.arange(1, 11)
