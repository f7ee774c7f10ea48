"""Broken twins of DDD17; each breaks one recording."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from tespec.datasets.sample.damage.files import Way, cut, repeating, stepping_back
from tespec.datasets.sample.layouts.ddd17 import extracted


def _one(root: Path) -> Path:
    return max(root.glob("dir*"))


def _mask(root: Path, image: Image.Image) -> None:
    extracted(root)
    image.save(min((_one(root) / "segmentation_masks").iterdir()))


def _times(root: Path, change: object) -> None:
    path = _one(root) / "events.dat.t"
    change(np.fromfile(path, "<i8")).tofile(path)  # type: ignore[operator]


def _outside(root: Path) -> None:
    path = _one(root) / "events.dat.xyp"
    xyp = np.fromfile(path, "<i2")
    xyp[0] = 9999
    xyp.tofile(path)


def _polarity(root: Path) -> None:
    path = _one(root) / "events.dat.xyp"
    xyp = np.fromfile(path, "<i2").reshape(-1, 3)
    xyp[:, 2] = 2 * xyp[:, 2] - 1
    xyp.tofile(path)


def _index(root: Path, shift: int) -> None:
    for path in (_one(root) / "index").iterdir():
        index = np.load(path)
        index[:, 0] += shift
        np.save(path, index)


WAYS = {
    "truncated": Way(lambda root: cut(_one(root) / "events.dat.xyp", 0.5), "events.dat.xyp: has"),
    "empty": Way(lambda root: cut(_one(root) / "events.dat.t", 0), "the file is empty"),
    "unsorted": Way(lambda root: _times(root, stepping_back), handled="times are raised to the latest before, counted"),
    "repeated": Way(lambda root: _times(root, repeating), handled="events may share a time"),
    "outside": Way(_outside, "has events outside of the"),
    "polarity": Way(_polarity, "has events outside of the"),
    "labels without events": Way(lambda root: (_one(root) / "events.dat.xyp").unlink(), "events.dat.xyp: no such file"),
    "events without labels": Way(
        lambda root: (_one(root) / "segmentation_masks.zip").unlink(), "has neither segmentation_masks"
    ),
    "labels elsewhere in time": Way(lambda root: _index(root, 10**13), "no mask lies within the recording's events"),
    "missing recording": Way(lambda root: shutil.rmtree(_one(root)), "recording of the test split is missing"),
    "no index": Way(lambda root: shutil.rmtree(_one(root) / "index"), "index: holds none of"),
    "torn zip": Way(lambda root: cut(_one(root) / "segmentation_masks.zip", 0.5), "not a readable zip archive"),
    "mask of another size": Way(lambda root: _mask(root, Image.new("L", (3, 3))), "has 3x3 px instead of"),
    "unknown class": Way(lambda root: _mask(root, Image.new("L", (96, 64), 77)), "holds class 77 of 6"),
    "coloured mask": Way(lambda root: _mask(root, Image.new("RGB", (96, 64))), "is not an image of one byte per pixel"),
}


def _zip_of_nothing(root: Path) -> None:
    with zipfile.ZipFile(_one(root) / "segmentation_masks.zip", "w"):
        pass


WAYS["no masks in the zip"] = Way(_zip_of_nothing, "holds no masks")
