"""Copies of a DDD17 recording that tests change, and archives in the official sizes."""

import io
import shutil
import zipfile

import numpy as np
from PIL import Image

from tespec.core.description import read_description
from tespec.datasets.ddd17 import Ddd17
from tespec.datasets.recording import WindowRule

CLASSES = ("flat", "background", "object", "vegetation", "human", "vehicle")


def open_ddd17(root, window_ms=None, classes=CLASSES):
    """The dataset with the rows and splits that its dataset.json names, else the official ones."""
    named = read_description(root).overrides()
    rule = WindowRule(window_ms is None, window_ms)
    return Ddd17(root, named.get("splits"), classes, rule, protocol=named.get("protocol", {"rows": 200}))


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


def write_official(root, name="dir1", ticks=1000, masks=range(1, 9), images=10, start_us=5_000_000):
    """A recording as in the official archive: 346x260 px, one image each 30 ms, masks of 200 rows, no dataset.json."""
    folder = root / name
    (folder / "index").mkdir(parents=True)
    rng = np.random.default_rng(0)
    stamps = start_us + 30_000 * np.arange(images)
    t = np.sort(rng.integers(start_us - 50_000, stamps[-1] + 20_000, 4000))
    xyp = np.stack([rng.integers(0, limit, len(t)) for limit in (346, 260, 2)], axis=1)
    (t * ticks).astype("<i8").tofile(folder / "events.dat.t")
    xyp.astype("<i2").tofile(folder / "events.dat.xyp")
    index = np.stack([stamps * ticks, np.searchsorted(t, stamps), np.searchsorted(t, stamps - 50_000)], axis=1)
    np.save(folder / "index" / "index_50ms.npy", index)
    with zipfile.ZipFile(folder / "segmentation_masks.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in masks:
            mask = rng.integers(0, 6, (200, 346), np.uint8)
            mask[0] = 255
            archive.writestr(f"segmentation_masks/segmentation_{number:08d}.png", png(mask))
    return t, xyp, stamps
