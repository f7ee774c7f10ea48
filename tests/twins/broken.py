"""Defects of real downloads, applied to a copy of a data set of the sample world."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that twins are compressed with
import numpy as np
from PIL import Image

from twins.layouts import extracted
from twins.rvt_archive import GEN1, archive

Spoil = Callable[[Path], object]
Change = Callable[[Any], Any]


class Way(NamedTuple):
    """A defect, and a part of the error message; without a message, the reader handles the defect."""

    spoil: Spoil
    outcome: str = ""


def at(pattern: str, spoil: Spoil) -> Spoil:
    """Spoil the first file or folder that matches a pattern in the data set's folder."""
    return lambda root: spoil(min(root.glob(pattern)))


def cut(share: float) -> Spoil:
    """Keep only the first `share` of a file."""
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def content(change: Change, name: Any = None) -> Spoil:
    """Change the array of a `.npy` file, a raw array of dtype `name`, or the HDF5 dataset `name` (None removes it)."""

    def spoil(path: Path) -> None:
        if path.suffix == ".npy":
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


def shortened(kind: str, columns: int) -> Spoil:
    """Drop the last hundredth of the rows."""
    return content(lambda values: values.reshape(-1, columns)[: -(len(values) // columns // 100)], kind)


def describe(**changes: Any) -> Spoil:
    return at("dataset.json", lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes)))


def stepping_back(times: Any) -> Any:
    """Make a time in the middle later than the times after it."""
    times[len(times) // 2] = times[3 * len(times) // 4]
    return times


def first_with(value: Any) -> Change:
    return lambda values: np.concatenate([[value], values.ravel()[1:]]).astype(values.dtype).reshape(values.shape)


def column(name: Any, change: Change) -> Change:
    """Change one column of a table, or one field of a structured array."""

    def of_rows(rows: Any) -> Any:
        place = name if isinstance(name, str) else (slice(None), name)
        rows[place] = change(rows[place])
        return rows

    return of_rows


def unlabelled(root: Path) -> None:
    """Leave no pixel labelled in the masks of a recording."""
    extracted(root)
    for path in root.glob("dir3/segmentation_masks/*"):
        Image.new("L", (96, 64), 255).save(path)


def ddd17_mask(spoil: Spoil) -> Spoil:
    return lambda root: (extracted(root), at("dir3/segmentation_masks/*", spoil)(root))


TIMES, XYP, ZIP = "dir3/events.dat.t", "dir3/events.dat.xyp", "dir3/segmentation_masks.zip"
ROWS = "dir3/index/index_50ms.npy"
DDD17 = {
    "truncated": Way(at(XYP, cut(0.5)), "events.dat.xyp: has"),
    "truncated alike": Way(
        lambda root: (at(TIMES, shortened("<i8", 1))(root), at(XYP, shortened("<i2", 3))(root)), "truncated: "
    ),
    "other classes": Way(describe(classes=["road", "car"]), "lists the classes road, car, not flat, "),
    "no events": Way(at(TIMES, cut(0)), "the file is empty"),
    "no times": Way(at(TIMES, Path.unlink), "events.dat.t: no such file"),
    "unsorted": Way(at(TIMES, content(stepping_back, "<i8"))),
    "times in another unit": Way(at(TIMES, content(lambda t: t // 1000, "<i8")), "its labels are at"),
    "x and y swapped": Way(at(XYP, content(lambda xyp: xyp.reshape(-1, 3)[:, [1, 0, 2]], "<i2")), " on a sensor of "),
    "events without labels": Way(at(ZIP, Path.unlink), "has neither segmentation_masks"),
    "missing recording": Way(at("dir3", shutil.rmtree), "recording of the val split is missing"),
    "too many rows": Way(describe(label_rows=81), "has 80 rows, fewer than the 81 rows with labels"),
    "no index": Way(at("dir3/index", shutil.rmtree), "index: holds none of"),
    "torn index": Way(at(ROWS, cut(0.5)), "not a readable .npy file"),
    "index of two columns": Way(at(ROWS, content(lambda rows: rows[:, :2])), "not numbers (images, 3)"),
    "index steps back": Way(at(ROWS, content(lambda t: np.concatenate([t[:-2], t[:-3:-1]]))), "step back or repeat"),
    "a mask without an image": Way(
        ddd17_mask(lambda path: path.rename(path.with_name("m_9999.png"))), "mask 9999 matches none of"
    ),
    "nothing labelled anywhere": Way(unlabelled, "labels that were read are empty; copy the labels again"),
    "torn zip": Way(at(ZIP, cut(0.5)), "not a readable zip archive"),
    "other speeds": Way(at("dir3/ego_speed.npy", content(lambda speed: speed[:3])), "float32 of shape (3,), not float"),
    "torn mask": Way(ddd17_mask(cut(0.5)), "not a readable PNG"),
}

ONE = "test/zurich_city_13_a"
EVENTS, MAP = f"{ONE}/events/left/events.h5", f"{ONE}/events/left/rectify_map.h5"
STAMPS, PNG = f"{ONE}/semantic/timestamps.txt", f"{ONE}/semantic/left/11classes/*"


DSEC = {
    "truncated": Way(at(EVENTS, cut(0.6)), "incomplete or unreadable HDF5 file"),
    "unsorted": Way(at(EVENTS, content(stepping_back, "events/t"))),
    "another clock": Way(at(EVENTS, content(lambda offset: offset + 10**9, "t_offset")), "its labels are at"),
    "no sequence": Way(at(ONE, shutil.rmtree), "recording of the test split is missing; copy it there"),
    "labels without events": Way(at(EVENTS, Path.unlink), "events.h5: no such file"),
    "no rectification": Way(at(MAP, Path.unlink), "labels need rectified events"),
    "rectification of another size": Way(at(MAP, content(lambda map_: map_[1:], "rectify_map")), "rectify_map has the"),
    "rectification with NaN": Way(at(MAP, content(first_with(np.nan), "rectify_map")), "non-finite values"),
    "events without labels": Way(at(f"{ONE}/semantic", shutil.rmtree), "holds no masks of 11 classes"),
    "a mask too few": Way(at(PNG, Path.unlink), "times for 39 masks"),
    "a mask twice": Way(at(PNG, lambda path: shutil.copy(path, path.with_name("0.png"))), "are both mask 0"),
    "traces of macOS": Way(at(PNG, lambda path: path.with_name(f"._{path.name}").write_bytes(b"\0\5"))),
    "no times": Way(at(STAMPS, Path.unlink), "timestamps.txt: no such file; copy the times of the masks"),
}

DATA, TRUTH, DEPTH = "outdoor_day1_data.hdf5", "outdoor_day1_gt.hdf5", "davis/left/depth_image_raw"


def rows(change: Change) -> Spoil:
    return at(DATA, content(change, "davis/left/events"))


def depths(change: Change, name: str = DEPTH) -> Spoil:
    return at(TRUTH, content(change, name))


MVSEC = {
    "times in single precision": Way(rows(lambda table: table.astype(np.float32)), "its depth is at"),
    "unsorted": Way(rows(column(2, stepping_back))),
    "labels without events": Way(at(DATA, Path.unlink), "recording of the test split is missing"),
    "events without labels": Way(at(TRUTH, Path.unlink), "outdoor_day1_gt.hdf5: no such file"),
    "twice": Way(lambda root: shutil.copytree(root, root / "again"), "data.hdf5: also exists as "),
    "torn truth": Way(at(TRUTH, cut(0.5)), "incomplete or unreadable HDF5 file"),
    "no depth": Way(depths(lambda _: None), "has no dataset"),
    "depth of another size": Way(depths(lambda maps: maps[:, :-1]), "px, but the histograms have"),
    "depth in whole mm": Way(depths(lambda maps: np.nan_to_num(maps).astype("i4")), "raw is int32"),
    "depth below zero": Way(depths(lambda maps: 0 * maps - 1), "negative depths"),
    "depth 0 for none": Way(depths(np.nan_to_num)),
    "a time too few": Way(depths(lambda times: times[1:], f"{DEPTH}_ts"), "maps, but"),
    "times step back": Way(depths(stepping_back, f"{DEPTH}_ts"), "step back or repeat"),
}

DAT, BOXES = "test/*_td.dat", "test/*_bbox.npy"


def archived(path: Path, folder: Path | None = None) -> None:
    """Add the labels file of RVT's archives to a folder, by default the recording's own."""
    labels = (folder or path.with_name(path.name.removesuffix("_td.dat"))) / "labels_v2" / "labels.npz"
    labels.parent.mkdir(parents=True)
    labels.touch()


def boxes(field: str, change: Change) -> Spoil:
    return at(BOXES, content(column(field, change)))


PROPHESEE = {
    "RVT's intermediate": Way(at("val/*.dat", lambda path: path.rename(f"{path}.h5")), ".h5: is RVT's intermediate"),
    "one packed": Way(at("train/*.dat", lambda path: path.rename(f"{path}.h5.store")), ".store: is RVT's intermediate"),
    "labels without events": Way(at(DAT, Path.unlink), "recording of the test split is missing"),
    "events without labels": Way(at(BOXES, Path.unlink), "no such file, but events exist"),
    "labels after the last event": Way(boxes("t", lambda times: times + 10**9), "the events at"),
    "no boxes": Way(at(BOXES, content(lambda stored: stored[:0])), "holds no boxes"),
    "torn boxes": Way(at(BOXES, cut(0.5)), "not a readable .npy file"),
    "boxes without width": Way(
        at(BOXES, content(lambda old: old[["t", "x", "y", "h", "class_id"]])), "no field of name"
    ),
    "box with NaN": Way(boxes("x", first_with(float("nan"))), "box 0 has a position or size that is NaN"),
    "box of infinite size": Way(boxes("w", first_with(3e38)), "box 0 has a position or size that is NaN"),
    "box of negative size": Way(boxes("w", first_with(-5)), "box 0 has a negative size"),
    "unknown class": Way(boxes("class_id", first_with(99)), "a class other than 0 to"),
    "all boxes outside": Way(boxes("x", lambda x: 0 * x + 9999), "passes the filters"),
    "box partly outside": Way(boxes("x", first_with(-2))),
    "missing split": Way(at("test", shutil.rmtree), "recording of the test split is missing"),
    "as an archive as well": Way(at(DAT, archived), "_td.dat: also exists as "),
    "another as an archive": Way(at(DAT, lambda path: archived(path, path.with_name("a"))), "files with RVT's"),
    "RVT's public script": Way(partial(archive, **GEN1 | {"windows_per_period": 2}), "50 ms are 125 ms apart"),
    "in two splits": Way(
        at("test", lambda test: shutil.copytree(test, test.with_name("train"), dirs_exist_ok=True)),
        "is in train and again in test",
    ),
}

WAYS = {"ddd17": DDD17, "dsec": DSEC, "mvsec": MVSEC, "gen1": PROPHESEE}


def damage(root: Path, dataset: str, way: str) -> Way:
    """Break the data set in folder `root`, and return the defect with the expected error."""
    done = WAYS[dataset][way]
    done.spoil(root)
    return done
