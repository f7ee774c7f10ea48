"""Broken twins of DDD17; each breaks one recording."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.world.layouts.ddd17 import NANOSECONDS, extracted
from twins.files import (
    Change,
    Spoil,
    Way,
    all_of,
    at,
    column,
    cut,
    first_with,
    image,
    negative_for_0,
    npy,
    repeating,
    stepping_back,
    tiny,
    with_colours,
)


def one(root: Path) -> Path:
    return max(root.glob("dir*"))


def zipped(root: Path) -> Path:
    return one(root) / "segmentation_masks.zip"


def masks(root: Path) -> list[Path]:
    """The masks, taken out of their archive."""
    extracted(root)
    return sorted((one(root) / "segmentation_masks").iterdir())


def first_mask(root: Path) -> Path:
    return masks(root)[0]


def times(change: Change) -> Spoil:
    def spoil(root: Path) -> None:
        change(np.fromfile(one(root) / "events.dat.t", "<i8")).tofile(one(root) / "events.dat.t")

    return spoil


def xyp(change: Change) -> Spoil:
    def spoil(root: Path) -> None:
        path = one(root) / "events.dat.xyp"
        change(np.fromfile(path, "<i2").reshape(-1, 3)).tofile(path)

    return spoil


def index(change: Change) -> Spoil:
    return lambda root: [npy(change)(path) for path in (one(root) / "index").iterdir()]


def last_two_swapped(table: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([table[:-2], table[:-3:-1]])


def empty_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w"):
        pass


def unzip(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(path.parent)


WAYS = {
    "truncated": Way(at(lambda root: one(root) / "events.dat.xyp", cut(0.5)), "events.dat.xyp: has"),
    "empty": Way(at(lambda root: one(root) / "events.dat.t", cut(0)), "the file is empty"),
    "wrong dtype": Way(xyp(lambda events: events.astype("<i4")), "events.dat.xyp: has"),
    "unsorted": Way(times(stepping_back), handled="times are raised to the latest before, counted"),
    "repeated": Way(times(repeating), handled="events may share a time"),
    "times in another unit": Way(times(lambda t: t // NANOSECONDS), "no mask lies within the recording's events"),
    "outside": Way(xyp(first_with(9999)), "has events outside of the"),
    "x and y swapped": Way(xyp(lambda events: events[:, [1, 0, 2]]), "has events outside of the"),
    "polarity": Way(xyp(column(2, negative_for_0)), "has events outside of the"),
    "labels without events": Way(lambda root: (one(root) / "events.dat.xyp").unlink(), "events.dat.xyp: no such file"),
    "events without labels": Way(at(zipped, Path.unlink), "has neither segmentation_masks"),
    "labels elsewhere in time": Way(
        index(lambda table: table + np.array([10**13, 0, 0])), "no mask lies within the recording's events"
    ),
    "missing recording": Way(at(one, shutil.rmtree), "split is missing"),
    "no index": Way(lambda root: shutil.rmtree(one(root) / "index"), "index: holds none of"),
    "half an index": Way(index(lambda table: table[: len(table) // 2]), "has no image among"),
    "index of two columns": Way(index(lambda table: table[:, :2]), "instead of (images, 3)"),
    "index steps back": Way(index(last_two_swapped), "step back or repeat"),
    "index of more events": Way(index(lambda table: table * np.array([1, 100, 1])), "events, the masks need"),
    "a mask without an image": Way(
        at(first_mask, lambda mask: shutil.copy(mask, mask.with_name("mask_00009999.png"))),
        "mask 9999 has no image among",
    ),
    "every second mask": Way(
        lambda root: [mask.unlink() for mask in masks(root)[1::2]], handled="events add up until the next mask"
    ),
    "torn zip": Way(at(zipped, cut(0.5)), "not a readable zip archive"),
    "no masks in the zip": Way(at(zipped, empty_zip), "holds no masks"),
    "unzipped beside the zip": Way(at(zipped, unzip), handled="the zip is read"),
    "mask of another size": Way(at(first_mask, image(tiny)), "has 3x3 px instead of"),
    "unknown class": Way(at(first_mask, image(all_of(77))), "holds class 77 of 6"),
    "coloured mask": Way(
        at(first_mask, image(lambda mask: mask.convert("RGB"))), "is not an image of one byte per pixel"
    ),
    "mask with a palette": Way(at(first_mask, image(with_colours)), handled="numbers of colours are classes"),
}
