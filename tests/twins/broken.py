"""What goes wrong with real downloads, done to one recording of a copy of the sample world."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that twins are compressed with
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from twins.layouts import ARCHIVE, EVENT_TYPE, dsec_labels, extracted, rvt_files

Spoil = Callable[[Path], object]
Change = Callable[[Any], Any]


class Way(NamedTuple):
    """One way to break a data set.

    Attributes:
        spoil: does it, in the data set's folder.
        outcome: part of the sentence that refuses it, or several between bars; "" where it is handled.
        handled: what is done instead, in words.
    """

    spoil: Spoil
    outcome: str = ""
    handled: str = ""


def at(pattern: str, spoil: Spoil) -> Spoil:
    """Spoils the first file or folder that fits a pattern in the data set's folder."""
    return lambda root: spoil(min(root.glob(pattern)))


def cut(share: float) -> Spoil:
    """Keep the first part of a file."""

    def spoil(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return spoil


def replaced(old: bytes, new: bytes) -> Spoil:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new))


def binary(dtype: Any, change: Change) -> Spoil:
    """Replace the content of a file without a header by what `change` makes of it."""
    return lambda path: change(np.fromfile(path, dtype)).tofile(path)


def npy(change: Change) -> Spoil:
    """Replace the array of a `.npy` file by what `change` makes of it."""
    return lambda path: np.save(path, change(np.load(path)))


def hdf5(name: str, change: Change) -> Spoil:
    """Replace a data set of an HDF5 file by what `change` makes of it; None removes it."""

    def spoil(path: Path) -> None:
        with h5py.File(path, "a") as file:
            values = change(file[name][()])
            del file[name]
            if values is not None:
                file.create_dataset(name, data=values)

    return spoil


def image(change: Callable[[Image.Image], Image.Image]) -> Spoil:
    """Replace an image by what `change` makes of it."""

    def spoil(path: Path) -> None:
        with Image.open(path) as opened:
            changed = change(opened)
        changed.save(path)

    return spoil


def removed(values: Any) -> None:
    """Removes a data set of an HDF5 file."""


def stepping_back(times: NDArray[Any]) -> NDArray[Any]:
    """Times one of which, in the middle, is later than those after it."""
    changed = times.copy()
    changed[len(changed) // 2] = changed[3 * len(changed) // 4]
    return changed


def repeating(times: NDArray[Any]) -> NDArray[Any]:
    """Times the middle half of which are one and the same."""
    changed = times.copy()
    changed[len(changed) // 4 : 3 * len(changed) // 4] = changed[len(changed) // 4]
    return changed


def first_with(value: Any) -> Change:
    """Sets the first entry."""

    def change(values: NDArray[Any]) -> NDArray[Any]:
        changed = np.array(values)
        changed.reshape(-1)[0] = value
        return changed

    return change


def column(name: Any, change: Change) -> Change:
    """Changes one column of a table, or one field of records."""

    def of_rows(rows: NDArray[Any]) -> NDArray[Any]:
        place = name if isinstance(name, str) else (slice(None), name)
        rows[place] = change(rows[place])
        return rows

    return of_rows


def signed(polarities: NDArray[Any]) -> NDArray[np.int8]:
    """Polarities 0 and 1 coded as -1 and 1."""
    return 2 * polarities.astype(np.int8) - 1


def with_palette(mask: Image.Image) -> Image.Image:
    """As label tools save it: pixels keep their classes, viewers show colours."""
    coloured = mask.copy()
    coloured.putpalette(np.random.default_rng(0).integers(0, 256, 3 * 256).tolist())
    return coloured


def masks(mask: Callable[[Spoil], Spoil], classes: int) -> dict[str, Way]:
    """Ways to break a mask."""
    return {
        "mask of another size": Way(mask(image(lambda _: Image.new("L", (3, 3)))), "mask has 3x3 px, the histograms"),
        "unknown class": Way(mask(image(lambda old: Image.new("L", old.size, 77))), f"holds class 77 of {classes}"),
        "coloured mask": Way(mask(image(lambda old: old.convert("RGB"))), "is an image of mode RGB"),
        "mask of 16 bits": Way(mask(image(lambda old: old.convert("I;16"))), "is an image of mode I;16"),
        "mask with a palette": Way(mask(image(with_palette)), handled="numbers of colours are classes"),
        "nothing labelled": Way(mask(image(lambda old: Image.new("L", old.size, 255))), handled="the score skips it"),
        "torn mask": Way(mask(cut(0.5)), "not a readable PNG"),
    }


CLAMPED = "raised to the latest before, counted"


def xyp(change: Change) -> Spoil:
    return at("dir3/events.dat.xyp", binary("<i2", lambda events: change(events.reshape(-1, 3))))


def index(change: Change) -> Spoil:
    return lambda root: [npy(change)(path) for path in root.glob("dir3/index/*")]


def ddd17_mask(spoil: Spoil) -> Spoil:
    return lambda root: (extracted(root), at("dir3/segmentation_masks/*", spoil)(root))


def unzip(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(path.parent)


def every_second(root: Path) -> None:
    extracted(root)
    for path in sorted(root.glob("dir3/segmentation_masks/*"))[1::2]:
        path.unlink()


TIMES, ZIP = "dir3/events.dat.t", "dir3/segmentation_masks.zip"
DDD17 = {
    "truncated": Way(at("dir3/events.dat.xyp", cut(0.5)), "events.dat.xyp: has"),
    "empty": Way(at(TIMES, cut(0)), "the file is empty"),
    "unsorted": Way(at(TIMES, binary("<i8", stepping_back)), handled=CLAMPED),
    "repeated": Way(at(TIMES, binary("<i8", repeating)), handled="events may share a time"),
    "times in another unit": Way(at(TIMES, binary("<i8", lambda t: t // 1000)), "its labels lie at"),
    "outside": Way(xyp(first_with(9999)), "has events outside of the"),
    "x and y swapped": Way(xyp(lambda events: events[:, [1, 0, 2]]), "has events outside of the"),
    "polarity": Way(xyp(column(2, signed)), "has events outside of the"),
    "labels without events": Way(at("dir3/events.dat.xyp", Path.unlink), "events.dat.xyp: no such file"),
    "events without labels": Way(at(ZIP, Path.unlink), "has neither segmentation_masks"),
    "missing recording": Way(at("dir3", shutil.rmtree), "split is missing"),
    "no index": Way(at("dir3/index", shutil.rmtree), "index: holds none of"),
    "half an index": Way(index(lambda table: table[: len(table) // 2]), "has no image among"),
    "index of two columns": Way(index(lambda table: table[:, :2]), "instead of (images, 3)"),
    "index steps back": Way(index(lambda t: np.concatenate([t[:-2], t[:-3:-1]])), "step back or repeat"),
    "index of more events": Way(index(lambda table: table * [1, 100, 1]), "events, the masks need"),
    "a mask without an image": Way(
        ddd17_mask(lambda mask: shutil.copy(mask, mask.with_name("mask_00009999.png"))), "mask 9999 has no image among"
    ),
    "every second mask": Way(every_second, handled="events add up until the next mask"),
    "torn zip": Way(at(ZIP, cut(0.5)), "not a readable zip archive"),
    "unzipped beside the zip": Way(at(ZIP, unzip), handled="the zip is read"),
    **masks(ddd17_mask, 6),
}

ONE = "test/zurich_city_13_a"
EVENTS, MAP, STAMPS = (
    f"{ONE}/events/left/events.h5",
    f"{ONE}/events/left/rectify_map.h5",
    f"{ONE}/semantic/timestamps.txt",
)
MASKS = f"{ONE}/semantic/left/11classes"


def lines(change: Callable[[list[str]], list[str]]) -> Spoil:
    return at(STAMPS, lambda path: path.write_text("".join(f"{line}\n" for line in change(path.read_text().split()))))


def two_dsec_layouts(root: Path) -> None:
    other = root.with_name(".other")
    shutil.copytree(root, other)
    dsec_labels(other, *ARCHIVE)
    shutil.rmtree(root / ONE)
    shutil.move(other / ONE, root / "test")


DSEC = {
    "truncated": Way(at(EVENTS, cut(0.6)), "not a whole HDF5 file"),
    "no events": Way(
        lambda root: [at(EVENTS, hdf5(f"events/{name}", lambda values: values[:0]))(root) for name in "xytp"],
        "holds no events",
    ),
    "wrong codec": Way(
        at(EVENTS, replaced((32001).to_bytes(2, "little"), (32766).to_bytes(2, "little"))), "compressed by filter 32766"
    ),
    "wrong dtype": Way(at(EVENTS, hdf5("events/x", lambda x: x.astype(np.float32))), "events/x is float32"),
    "columns of different lengths": Way(at(EVENTS, hdf5("events/x", lambda x: x[:-1])), "columns have different"),
    "unsorted": Way(at(EVENTS, hdf5("events/t", stepping_back)), handled=CLAMPED),
    "repeated": Way(at(EVENTS, hdf5("events/t", repeating)), "ms_to_idx does not fit"),
    "outside": Way(at(EVENTS, hdf5("events/x", first_with(9999))), "x from"),
    "polarity": Way(at(EVENTS, hdf5("events/p", first_with(7))), "polarities from"),
    "polarity -1 and 1": Way(at(EVENTS, hdf5("events/p", signed)), handled="read like 0 and 1"),
    "no offset": Way(at(EVENTS, hdf5("t_offset", removed)), "has no dataset t_offset"),
    "another clock": Way(at(EVENTS, hdf5("t_offset", lambda offset: offset + 10**9)), "its labels lie at"),
    "no rectification": Way(at(MAP, Path.unlink), "labels need rectified events"),
    "rectification of another size": Way(at(MAP, hdf5("rectify_map", lambda map_: map_[:-1])), "rectify_map has the"),
    "rectification in whole pixels": Way(at(MAP, hdf5("rectify_map", lambda map_: map_.astype("i2"))), "map is int16"),
    "rectification with NaN": Way(at(MAP, hdf5("rectify_map", first_with(np.nan))), "places that are no numbers"),
    "labels without events": Way(at(EVENTS, Path.unlink), "events.h5: no such file"),
    "events without labels": Way(at(f"{ONE}/semantic", shutil.rmtree), "holds no masks of 11 classes"),
    "a mask too few": Way(at(f"{MASKS}/*", Path.unlink), "times for 39 masks"),
    "a mask twice": Way(at(f"{MASKS}/*", lambda path: shutil.copy(path, path.with_name("0.png"))), "are both mask 0"),
    "traces of macOS": Way(
        at(f"{MASKS}/*", lambda path: path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")),
        handled="names that begin with a dot are left alone",
    ),
    "no times": Way(at(STAMPS, Path.unlink), "the file with the times of the masks is missing"),
    "times step back": Way(lines(lambda times: times[::-1]), "step back or repeat"),
    "times are words": Way(lines(lambda times: ["soon", *times[1:]]), "whole number"),
    "times in ms": Way(lines(lambda times: [time[:-3] for time in times]), "its labels lie at"),
    "missing recording": Way(at(ONE, shutil.rmtree), "recording of the test split is missing"),
    "two layouts": Way(two_dsec_layouts, "two layouts are mixed"),
    **masks(lambda spoil: at(f"{MASKS}/*", spoil), 11),
}

DATA, TRUTH = "outdoor_day1_data.hdf5", "outdoor_day1_gt.hdf5"
ROWS, DEPTH = "davis/left/events", "davis/left/depth_image_raw"


def rows(change: Change) -> Spoil:
    return at(DATA, hdf5(ROWS, change))


def swapped(root: Path) -> None:
    (root / DATA).rename(root / "data")
    (root / TRUTH).rename(root / DATA)
    (root / "data").rename(root / TRUTH)


MVSEC = {
    "empty": Way(at(DATA, cut(0)), "not a whole HDF5 file"),
    "no events": Way(rows(lambda table: table[:0]), "holds no events"),
    "wrong dtype": Way(rows(lambda table: table.astype(np.int64)), "davis/left/events is int64"),
    "transposed": Way(rows(lambda table: table.T), "instead of (events, 4)"),
    "times in single precision": Way(rows(lambda table: table.astype(np.float32)), "its depth lies at"),
    "times from the start": Way(rows(column(2, lambda times: times - times[0])), "its depth lies at"),
    "times in us": Way(rows(column(2, lambda times: 1e6 * times)), "holds times that are none"),
    "no times": Way(rows(column(2, first_with(np.nan))), "holds times that are none"),
    "unsorted": Way(rows(column(2, stepping_back)), handled=CLAMPED),
    "outside": Way(rows(column(0, first_with(9999.0))), "x from"),
    "half pixels": Way(rows(column(0, lambda x: x + 0.5)), "no whole numbers"),
    "polarity": Way(rows(column(3, first_with(7.0))), "polarities from"),
    "polarity 0 and 1": Way(rows(column(3, lambda p: (p + 1) / 2)), handled="read like -1 and 1"),
    "labels without events": Way(at(DATA, Path.unlink), "recording of the test split is missing"),
    "events without labels": Way(at(TRUTH, Path.unlink), "outdoor_day1_gt.hdf5: no such file"),
    "files swapped": Way(swapped, "holds no events"),
    "torn truth": Way(at(TRUTH, cut(0.5)), "not a whole HDF5 file"),
    "no depth": Way(at(TRUTH, hdf5(DEPTH, removed)), "has no dataset"),
    "depth of another size": Way(at(TRUTH, hdf5(DEPTH, lambda maps: maps[:, :-1])), "depth_image_raw has maps of"),
    "depth in whole mm": Way(at(TRUTH, hdf5(DEPTH, lambda maps: np.nan_to_num(maps).astype("i4"))), "raw is int32"),
    "depth below zero": Way(at(TRUTH, hdf5(DEPTH, lambda maps: 0 * maps - 1)), "depths below zero"),
    "depth NaN everywhere": Way(at(TRUTH, hdf5(DEPTH, lambda maps: maps + np.nan)), handled="kept, the score skips it"),
    "depth 0 for none": Way(at(TRUTH, hdf5(DEPTH, np.nan_to_num)), handled="read like NaN"),
    "a time too few": Way(at(TRUTH, hdf5(f"{DEPTH}_ts", lambda times: times[1:])), "maps for"),
    "times repeat": Way(at(TRUTH, hdf5(f"{DEPTH}_ts", repeating)), "step back or repeat"),
    "another clock": Way(at(TRUTH, hdf5(f"{DEPTH}_ts", lambda times: times - 1e9)), "its depth lies at"),
}

DAT, BOXES = "test/*_td.dat", "test/*_bbox.npy"


def records(field: str, change: Change) -> Spoil:
    def spoil(path: Path) -> None:
        header, mark, body = path.read_bytes().partition(EVENT_TYPE)
        found = np.frombuffer(body, [("t", "<u4"), ("word", "<u4")]).copy()
        path.write_bytes(header + mark + column(field, change)(found).tobytes())

    return at(DAT, spoil)


def boxes(field: str, change: Change) -> Spoil:
    return at(BOXES, npy(column(field, change)))


def two_prophesee_layouts(root: Path) -> None:
    other = root.with_name(".other")
    shutil.copytree(root, other)
    rvt_files(other, "_td.h5")
    at(DAT, Path.unlink)(root)
    shutil.copy(min((other / "test").glob("*_td.h5")), root / "test")


PROPHESEE = {
    "truncated": Way(at(DAT, lambda path: path.write_bytes(path.read_bytes()[:-3])), "truncated: 5 bytes"),
    "empty": Way(at(DAT, cut(0)), "the file is empty"),
    "garbage header": Way(at(DAT, lambda path: path.write_bytes(b"hello" * 99)), "does not begin with a header"),
    "another event type": Way(at(DAT, replaced(EVENT_TYPE, b"\x0e\x08")), "its event type is 14"),
    "unsorted": Way(records("t", stepping_back), handled=CLAMPED),
    "outside": Way(records("word", first_with(9999)), "has events on"),
    "labels without events": Way(at(DAT, Path.unlink), "is missing|holds no recordings"),
    "events without labels": Way(at(BOXES, Path.unlink), "no such file, but there are events"),
    "labels after the last event": Way(boxes("t", lambda times: times + 10**9), "the events at"),
    "no boxes": Way(at(BOXES, npy(lambda stored: stored[:0])), "holds no boxes"),
    "torn boxes": Way(at(BOXES, cut(0.5)), "not a readable .npy file"),
    "boxes without width": Way(at(BOXES, npy(lambda stored: stored[["t", "x", "y", "h", "class_id"]])), "no field w"),
    "box with NaN": Way(boxes("x", first_with(float("nan"))), "a place or size that is no number"),
    "box of negative size": Way(boxes("w", first_with(-3)), "a negative size"),
    "unknown class": Way(boxes("class_id", first_with(99)), "a class other than 0 to"),
    "boxes step back": Way(boxes("t", first_with(10**9)), "a time before that of the box before it"),
    "all boxes outside": Way(boxes("x", lambda x: 0 * x + 9999), "no label frame left after the filters"),
    "box partly outside": Way(boxes("x", first_with(-2)), handled="cropped to the sensor"),
    "missing split": Way(at("test", shutil.rmtree), "is missing|holds no recordings"),
    "two layouts": Way(two_prophesee_layouts, "two layouts are mixed"),
}

WAYS = {"ddd17": DDD17, "dsec": DSEC, "mvsec": MVSEC, "gen1": PROPHESEE, "1mpx": PROPHESEE}


def damage(root: Path, dataset: str, way: str) -> Way:
    """Break the data set in folder `root`; says what was done and what is to be expected."""
    done = WAYS[dataset][way]
    done.spoil(root)
    return done
