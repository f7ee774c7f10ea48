"""What goes wrong with real downloads, done to one recording of a copy of the sample world."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that twins are compressed with
import numpy as np
from PIL import Image

from twins.layouts import ARCHIVE, dsec_labels, extracted

Spoil = Callable[[Path], object]
Change = Callable[[Any], Any]


class Way(NamedTuple):
    """How to break a data set, and a part of what refuses it (several between bars), or what is done instead."""

    spoil: Spoil
    outcome: str = ""
    handled: str = ""


def at(pattern: str, spoil: Spoil) -> Spoil:
    """Spoils the first file or folder that fits a pattern in the data set's folder."""
    return lambda root: spoil(min(root.glob(pattern)))


def cut(share: float) -> Spoil:
    """Keeps the first part of a file."""
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def content(change: Change, name: Any = None) -> Spoil:
    """Changes an image, an array of a `.npy` file or of the type `name`, or `name` in HDF5, where None removes it."""

    def spoil(path: Path) -> None:
        if path.suffix == ".png":
            with Image.open(path) as image:
                changed = change(image)
            changed.save(path)
        elif path.suffix == ".npy":
            np.save(path, change(np.load(path)))
        elif path.suffix in (".h5", ".hdf5"):
            with h5py.File(path, "a") as file:
                values = change(file[name][()])
                del file[name]
                if values is not None:
                    file[name] = values
        else:
            change(np.fromfile(path, name)).tofile(path)

    return spoil


def stepping_back(times: Any) -> Any:
    """Times one of which, in the middle, is later than those after it."""
    times[len(times) // 2] = times[3 * len(times) // 4]
    return times


def repeating(times: Any) -> Any:
    """Times the middle half of which are one and the same."""
    times[len(times) // 4 : 3 * len(times) // 4] = times[len(times) // 4]
    return times


def first_with(value: Any) -> Change:
    """Sets the first entry."""
    return lambda values: np.concatenate([[value], values.ravel()[1:]]).astype(values.dtype).reshape(values.shape)


def column(name: Any, change: Change) -> Change:
    """Changes one column of a table, or one field of records."""

    def of_rows(rows: Any) -> Any:
        place = name if isinstance(name, str) else (slice(None), name)
        rows[place] = change(rows[place])
        return rows

    return of_rows


def with_palette(mask: Image.Image) -> Image.Image:
    """As label tools save it: pixels keep their classes, viewers show colours."""
    mask.load()
    mask.putpalette(np.random.default_rng(0).integers(0, 256, 3 * 256).tolist())
    return mask


def masks(mask: Callable[[Spoil], Spoil], classes: int) -> dict[str, Way]:
    """Ways to break a mask."""
    return {
        "mask of another size": Way(mask(content(lambda _: Image.new("L", (3, 3)))), "has 3x3 px"),
        "unknown class": Way(mask(content(lambda old: Image.new("L", old.size, 77))), f"holds class 77 of {classes}"),
        "coloured mask": Way(mask(content(lambda old: old.convert("RGB"))), "is an image of mode RGB"),
        "mask of 16 bits": Way(mask(content(lambda old: old.convert("I;16"))), "is an image of mode I;16"),
        "mask with a palette": Way(mask(content(with_palette)), handled="numbers of colours are classes"),
        "nothing labelled": Way(mask(content(lambda old: Image.new("L", old.size, 255))), handled="the score skips it"),
        "torn mask": Way(mask(cut(0.5)), "not a readable PNG"),
    }


CLAMPED = "raised to the latest before, counted"


def index(change: Change) -> Spoil:
    return lambda root: [content(change)(path) for path in root.glob("dir3/index/*")]


def ddd17_mask(spoil: Spoil) -> Spoil:
    return lambda root: (extracted(root), at("dir3/segmentation_masks/*", spoil)(root))


TIMES, XYP, ZIP = "dir3/events.dat.t", "dir3/events.dat.xyp", "dir3/segmentation_masks.zip"
DDD17 = {
    "truncated": Way(at(XYP, cut(0.5)), "events.dat.xyp: has"),
    "unsorted": Way(at(TIMES, content(stepping_back, "<i8")), handled=CLAMPED),
    "times in another unit": Way(at(TIMES, content(lambda t: t // 1000, "<i8")), "its labels lie at"),
    "x and y swapped": Way(
        at(XYP, content(lambda events: events.reshape(-1, 3)[:, [1, 0, 2]], "<i2")), "has events outside of the"
    ),
    "events without labels": Way(at(ZIP, Path.unlink), "has neither segmentation_masks"),
    "missing recording": Way(at("dir3", shutil.rmtree), "split is missing"),
    "no index": Way(at("dir3/index", shutil.rmtree), "index: holds none of"),
    "half an index": Way(index(lambda table: table[: len(table) // 2]), "has no image among"),
    "index steps back": Way(index(lambda t: np.concatenate([t[:-2], t[:-3:-1]])), "step back or repeat"),
    "index of more events": Way(index(lambda table: table * [1, 100, 1]), "events, the masks need"),
    "a mask without an image": Way(
        ddd17_mask(lambda mask: shutil.copy(mask, mask.with_name("mask_00009999.png"))), "mask 9999 has no image among"
    ),
    "torn zip": Way(at(ZIP, cut(0.5)), "not a readable zip archive"),
    **masks(ddd17_mask, 6),
}

ONE = "test/zurich_city_13_a"
EVENTS, MAP = f"{ONE}/events/left/events.h5", f"{ONE}/events/left/rectify_map.h5"
STAMPS, MASKS = f"{ONE}/semantic/timestamps.txt", f"{ONE}/semantic/left/11classes"


def lines(change: Callable[[list[str]], list[str]]) -> Spoil:
    return at(STAMPS, lambda path: path.write_text("".join(f"{line}\n" for line in change(path.read_text().split()))))


def two_layouts(root: Path) -> None:
    other = shutil.copytree(root, root.with_name(".other"))
    dsec_labels(other, *ARCHIVE)
    shutil.rmtree(root / ONE)
    shutil.move(other / ONE, root / "test")


DSEC = {
    "truncated": Way(at(EVENTS, cut(0.6)), "not a whole HDF5 file"),
    "unsorted": Way(at(EVENTS, content(stepping_back, "events/t")), handled=CLAMPED),
    "repeated": Way(at(EVENTS, content(repeating, "events/t")), "ms_to_idx does not fit"),
    "polarity -1 and 1": Way(
        at(EVENTS, content(lambda p: 2 * p.astype(np.int8) - 1, "events/p")), handled="read like 0 and 1"
    ),
    "no offset": Way(at(EVENTS, content(lambda _: None, "t_offset")), "has no dataset t_offset"),
    "another clock": Way(at(EVENTS, content(lambda offset: offset + 10**9, "t_offset")), "its labels lie at"),
    "no rectification": Way(at(MAP, Path.unlink), "labels need rectified events"),
    "rectification of another size": Way(at(MAP, content(lambda map_: map_[:-1], "rectify_map")), "map has the"),
    "rectification with NaN": Way(at(MAP, content(first_with(np.nan), "rectify_map")), "places that are no numbers"),
    "events without labels": Way(at(f"{ONE}/semantic", shutil.rmtree), "holds no masks of 11 classes"),
    "a mask too few": Way(at(f"{MASKS}/*", Path.unlink), "times for 39 masks"),
    "a mask twice": Way(at(f"{MASKS}/*", lambda path: shutil.copy(path, path.with_name("0.png"))), "are both mask 0"),
    "traces of macOS": Way(
        at(f"{MASKS}/*", lambda path: path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")),
        handled="passed over",
    ),
    "no times": Way(at(STAMPS, Path.unlink), "the file with the times of the masks is missing"),
    "times step back": Way(lines(lambda times: times[::-1]), "step back or repeat"),
    "times are words": Way(lines(lambda times: ["soon", *times[1:]]), "whole number"),
    "two layouts": Way(two_layouts, "two layouts are mixed"),
    **masks(lambda spoil: at(f"{MASKS}/*", spoil), 11),
}

DATA, TRUTH, DEPTH = "outdoor_day1_data.hdf5", "outdoor_day1_gt.hdf5", "davis/left/depth_image_raw"


def rows(change: Change) -> Spoil:
    return at(DATA, content(change, "davis/left/events"))


def depths(change: Change, name: str = DEPTH) -> Spoil:
    return at(TRUTH, content(change, name))


MVSEC = {
    "times in single precision": Way(rows(lambda table: table.astype(np.float32)), "its depth lies at"),
    "no times": Way(rows(column(2, first_with(np.nan))), "holds times that are none"),
    "unsorted": Way(rows(column(2, stepping_back)), handled=CLAMPED),
    "half pixels": Way(rows(column(0, lambda x: x + 0.5)), "no whole numbers"),
    "polarity 0 and 1": Way(rows(column(3, lambda p: (p + 1) / 2)), handled="read like -1 and 1"),
    "labels without events": Way(at(DATA, Path.unlink), "recording of the test split is missing"),
    "events without labels": Way(at(TRUTH, Path.unlink), "outdoor_day1_gt.hdf5: no such file"),
    "torn truth": Way(at(TRUTH, cut(0.5)), "not a whole HDF5 file"),
    "no depth": Way(depths(lambda _: None), "has no dataset"),
    "depth of another size": Way(depths(lambda maps: maps[:, :-1]), "depth_image_raw has maps of"),
    "depth in whole mm": Way(depths(lambda maps: np.nan_to_num(maps).astype("i4")), "raw is int32"),
    "depth below zero": Way(depths(lambda maps: 0 * maps - 1), "depths below zero"),
    "depth NaN everywhere": Way(depths(lambda maps: maps + np.nan), handled="kept, the score skips it"),
    "depth 0 for none": Way(depths(np.nan_to_num), handled="read like NaN"),
    "a time too few": Way(depths(lambda times: times[1:], f"{DEPTH}_ts"), "maps for"),
    "times repeat": Way(depths(repeating, f"{DEPTH}_ts"), "step back or repeat"),
}

DAT, BOXES = "test/*_td.dat", "test/*_bbox.npy"


def boxes(field: str, change: Change) -> Spoil:
    return at(BOXES, content(column(field, change)))


PROPHESEE = {
    "empty": Way(at(DAT, cut(0)), "the file is empty"),
    "labels without events": Way(at(DAT, Path.unlink), "is missing|holds no recordings"),
    "events without labels": Way(at(BOXES, Path.unlink), "no such file, but there are events"),
    "labels after the last event": Way(boxes("t", lambda times: times + 10**9), "the events at"),
    "no boxes": Way(at(BOXES, content(lambda stored: stored[:0])), "holds no boxes"),
    "torn boxes": Way(at(BOXES, cut(0.5)), "not a readable .npy file"),
    "boxes without width": Way(at(BOXES, content(lambda old: old[["t", "x", "y", "h", "class_id"]])), "no field w"),
    "box with NaN": Way(boxes("x", first_with(float("nan"))), "a place or size that is no number"),
    "unknown class": Way(boxes("class_id", first_with(99)), "a class other than 0 to"),
    "boxes step back": Way(boxes("t", first_with(10**9)), "a time before that of the box before it"),
    "all boxes outside": Way(boxes("x", lambda x: 0 * x + 9999), "no label frame left after the filters"),
    "box partly outside": Way(boxes("x", first_with(-2)), handled="cropped to the sensor"),
    "missing split": Way(at("test", shutil.rmtree), "is missing|holds no recordings"),
}

WAYS = {"ddd17": DDD17, "dsec": DSEC, "mvsec": MVSEC, "gen1": PROPHESEE}


def damage(root: Path, dataset: str, way: str) -> Way:
    """Break the data set in folder `root`; says what was done and what is to be expected."""
    done = WAYS[dataset][way]
    done.spoil(root)
    return done
