"""Broken twins of DDD17; each breaks one recording."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.world.layouts.ddd17 import NANOSECONDS, extracted
from twins.files import Way, cut, negative_for_0, repeating, stepping_back, with_colours

Change = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
ZIP, FOLDER = "segmentation_masks.zip", "segmentation_masks"


def _one(root: Path) -> Path:
    return max(root.glob("dir*"))


def _masks(root: Path) -> list[Path]:
    """The masks, taken out of their archive."""
    extracted(root)
    return sorted((_one(root) / FOLDER).iterdir())


def _save(root: Path, change: Callable[[Image.Image], Image.Image]) -> None:
    path = _masks(root)[0]
    with Image.open(path) as image:
        changed = change(image)
    changed.save(path)


def _times(root: Path, change: Change) -> None:
    path = _one(root) / "events.dat.t"
    change(np.fromfile(path, "<i8")).tofile(path)


def _xyp(root: Path, change: Change) -> None:
    path = _one(root) / "events.dat.xyp"
    change(np.fromfile(path, "<i2").reshape(-1, 3)).tofile(path)


def _outside(xyp: npt.NDArray[Any]) -> npt.NDArray[Any]:
    xyp[0] = 9999
    return xyp


def _polarity(xyp: npt.NDArray[Any]) -> npt.NDArray[Any]:
    xyp[:, 2] = negative_for_0(xyp[:, 2])
    return xyp


def _index(root: Path, change: Change) -> None:
    for path in (_one(root) / "index").iterdir():
        np.save(path, change(np.load(path)))


def _last_two_swapped(index: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate([index[:-2], index[:-3:-1]])


def _zip_of_nothing(root: Path) -> None:
    with zipfile.ZipFile(_one(root) / ZIP, "w"):
        pass


def _unzipped_beside(root: Path) -> None:
    with zipfile.ZipFile(_one(root) / ZIP) as archive:
        archive.extractall(_one(root))


def _every_second_mask_gone(root: Path) -> None:
    for path in _masks(root)[1::2]:
        path.unlink()


WAYS = {
    "truncated": Way(lambda root: cut(_one(root) / "events.dat.xyp", 0.5), "events.dat.xyp: has"),
    "empty": Way(lambda root: cut(_one(root) / "events.dat.t", 0), "the file is empty"),
    "wrong dtype": Way(lambda root: _xyp(root, lambda xyp: xyp.astype("<i4")), "events.dat.xyp: has"),
    "unsorted": Way(lambda root: _times(root, stepping_back), handled="times are raised to the latest before, counted"),
    "repeated": Way(lambda root: _times(root, repeating), handled="events may share a time"),
    "times in another unit": Way(
        lambda root: _times(root, lambda times: times // NANOSECONDS), "no mask lies within the recording's events"
    ),
    "outside": Way(lambda root: _xyp(root, _outside), "has events outside of the"),
    "x and y swapped": Way(lambda root: _xyp(root, lambda xyp: xyp[:, [1, 0, 2]]), "has events outside of the"),
    "polarity": Way(lambda root: _xyp(root, _polarity), "has events outside of the"),
    "labels without events": Way(lambda root: (_one(root) / "events.dat.xyp").unlink(), "events.dat.xyp: no such file"),
    "events without labels": Way(lambda root: (_one(root) / ZIP).unlink(), "has neither segmentation_masks"),
    "labels elsewhere in time": Way(
        lambda root: _index(root, lambda index: index + np.array([10**13, 0, 0])),
        "no mask lies within the recording's events",
    ),
    "missing recording": Way(lambda root: shutil.rmtree(_one(root)), "recording of the test split is missing"),
    "no index": Way(lambda root: shutil.rmtree(_one(root) / "index"), "index: holds none of"),
    "half an index": Way(lambda root: _index(root, lambda index: index[: len(index) // 2]), "has no image among"),
    "index of two columns": Way(lambda root: _index(root, lambda index: index[:, :2]), "instead of (images, 3)"),
    "index steps back": Way(lambda root: _index(root, _last_two_swapped), "step back or repeat"),
    "index of more events": Way(
        lambda root: _index(root, lambda index: index * np.array([1, 100, 1])), "events, the masks need"
    ),
    "a mask without an image": Way(
        lambda root: shutil.copy(_masks(root)[0], _one(root) / FOLDER / "mask_00009999.png"),
        "mask 9999 has no image among",
    ),
    "every second mask": Way(_every_second_mask_gone, handled="events add up until the next mask"),
    "torn zip": Way(lambda root: cut(_one(root) / ZIP, 0.5), "not a readable zip archive"),
    "no masks in the zip": Way(_zip_of_nothing, "holds no masks"),
    "unzipped beside the zip": Way(_unzipped_beside, handled="the zip is read"),
    "mask of another size": Way(lambda root: _save(root, lambda _: Image.new("L", (3, 3))), "has 3x3 px instead of"),
    "unknown class": Way(lambda root: _save(root, lambda mask: Image.new("L", mask.size, 77)), "holds class 77 of 6"),
    "coloured mask": Way(
        lambda root: _save(root, lambda mask: mask.convert("RGB")), "is not an image of one byte per pixel"
    ),
    "mask with a palette": Way(lambda root: _save(root, with_colours), handled="numbers of colours are classes"),
}
