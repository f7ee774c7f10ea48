"""Defects of real downloads: a change to a copy of a data set, and a part of the error message."""

import json
import shutil
from functools import partial
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that twins are compressed with
import numpy as np
from event_files import cut
from PIL import Image

from twins.layouts import extracted
from twins.rvt_archive import GEN1, archive

HANDLED = ""  # in place of a message: the data set is read despite the defect
torn = partial(cut, count=0.5)  # keeps half of a file


def at(pattern, spoil):
    """Spoil the first file or folder that matches a pattern in the data set's folder."""
    return lambda root: spoil(min(root.glob(pattern)))


def content(change, name=None):
    """Change the array of a `.npy` file, a raw array of dtype `name`, or an HDF5 dataset.

    A change to None removes the dataset `name`.
    """

    def spoil(path):
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


def describe(**changes):
    return at(
        "dataset.json",
        lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes)),
    )


def stepping_back(times):
    """Make a time in the middle later than the times after it."""
    times[len(times) // 2] = times[3 * len(times) // 4]
    return times


def first_with(value):
    return lambda values: (
        np.concatenate([[value], values.ravel()[1:]]).astype(values.dtype).reshape(values.shape)
    )


def column(place, change):
    """Change one column of a table, or one field of a structured array."""

    def of_rows(rows):
        rows[place] = change(rows[place])
        return rows

    return of_rows


def masks(spoil):
    """Spoil the folder of a recording's extracted masks."""
    return lambda root: (extracted(root), spoil(root / "dir3" / "segmentation_masks"))


TIMES, XYP, ZIP = "dir3/events.dat.t", "dir3/events.dat.xyp", "dir3/segmentation_masks.zip"
ROWS = "dir3/index/index_50ms.npy"
DDD17 = {
    "truncated": (at(XYP, torn), "events.dat.xyp: has"),
    "truncated alike": (
        lambda root: (
            content(lambda t: t[:-300], "i8")(root / TIMES),
            content(lambda p: p[:-900], "i2")(root / XYP),
        ),
        "truncated: ",
    ),
    "other classes": (describe(classes=["road", "car"]), "lists the classes road, car, not flat, "),
    "no events": (at(TIMES, lambda path: path.write_bytes(b"")), "but the 0 events of"),
    "no times": (at(TIMES, Path.unlink), "events.dat.t: no such file"),
    "unsorted": (at(TIMES, content(stepping_back, "<i8")), HANDLED),
    "times in another unit": (at(TIMES, content(lambda t: t // 1000, "<i8")), "its labels are at"),
    "x and y swapped": (
        at(XYP, content(lambda xyp: xyp.reshape(-1, 3)[:, [1, 0, 2]], "<i2")),
        "but its sensor has ",
    ),
    "events without labels": (at(ZIP, Path.unlink), "masks.zip: no such folder or zip archive"),
    "missing recording": (at("dir3", shutil.rmtree), "recording of the val split is missing"),
    "too many rows": (describe(label_rows=81), "has 80 rows, fewer than the 81 rows with labels"),
    "no index": (at("dir3/index", shutil.rmtree), "index: holds none of"),
    "torn index": (at(ROWS, torn), "not a readable .npy file"),
    "index of two columns": (
        at(ROWS, content(lambda rows: rows[:, :2])),
        "not numbers (images, 3)",
    ),
    "index steps back": (
        lambda root: (
            (root / "dir3/ego_speed.npy").unlink(),  # official archives have no speeds
            content(lambda t: np.concatenate([t[:-2], t[:-3:-1]]))(root / ROWS),
        ),
        "step back or repeat",
    ),
    "a mask too many": (
        masks(at("*", lambda path: path.rename(path.with_stem("9999")))),
        "mask 9999 matches none of",
    ),
    "nothing labelled anywhere": (
        masks(
            lambda folder: [Image.new("L", (96, 64), 255).save(path) for path in folder.iterdir()]
        ),
        "labels that were read are empty; copy the labels again",
    ),
    "torn zip": (at(ZIP, torn), "not a readable zip archive"),
    "other speeds": (
        at("dir3/ego_speed.npy", content(lambda speed: speed[:3])),
        "is float32 (3,), not float (N, 2)",
    ),
    "torn mask": (masks(at("*", torn)), "not a readable PNG"),
    "masks in two folders": (
        masks(lambda folder: shutil.copytree(folder, folder / "colour")),
        "are both mask 4; keep the one",
    ),
    "recording twice": (
        lambda root: shutil.copytree(root / "dir3", root / "test" / "dir3"),
        "dir3: also exists as ",
    ),
}

ONE = "test/zurich_city_13_a"
EVENTS, MAP = f"{ONE}/events/left/events.h5", f"{ONE}/events/left/rectify_map.h5"
STAMPS, PNG = f"{ONE}/semantic/timestamps.txt", f"{ONE}/semantic/left/11classes/*"
DSEC = {
    "truncated": (at(EVENTS, torn), "incomplete or unreadable HDF5 file"),
    "unsorted": (at(EVENTS, content(stepping_back, "events/t")), HANDLED),
    "another clock": (
        at(EVENTS, content(lambda offset: offset + 10**9, "t_offset")),
        "its labels are at",
    ),
    "no sequence": (
        at(ONE, shutil.rmtree),
        "recording of the test split is missing; copy it there",
    ),
    "labels without events": (at(EVENTS, Path.unlink), "recording of the test split is missing"),
    "no rectification": (at(MAP, Path.unlink), "rectify_map.h5: no such file"),
    "rectification of another size": (
        at(MAP, content(lambda map_: map_[1:], "rectify_map")),
        "rectify_map has the",
    ),
    "rectification with NaN": (
        at(MAP, content(first_with(np.nan), "rectify_map")),
        "non-finite values",
    ),
    "events without labels": (at(f"{ONE}/semantic", shutil.rmtree), "holds no masks of 11 classes"),
    "a mask too few": (at(PNG, Path.unlink), "times for 39 masks"),
    "a mask twice": (
        at(PNG, lambda path: shutil.copy(path, path.with_name("0.png"))),
        "are both mask 0",
    ),
    "events twice": (
        lambda root: shutil.copytree(root / ONE / "events", root / "zurich_city_13_a" / "events"),
        "events.h5: also exists as ",
    ),
    "traces of macOS": (
        at(PNG, lambda path: path.with_name(f"._{path.name}").write_bytes(b"\0\5")),
        HANDLED,
    ),
    "no times": (
        at(STAMPS, Path.unlink),
        "timestamps.txt: no such file; copy the times of the masks",
    ),
}

DATA, TABLE = "outdoor_day1_data.hdf5", "davis/left/events"
TRUTH, DEPTH = "outdoor_day1_gt.hdf5", "davis/left/depth_image_raw"


def depths(change, name=DEPTH):
    return at(TRUTH, content(change, name))


MVSEC = {
    "times in single precision": (
        at(DATA, content(lambda table: table.astype(np.float32), TABLE)),
        "too coarse for bins",
    ),
    "unsorted": (at(DATA, content(column((..., 2), stepping_back), TABLE)), HANDLED),
    "labels without events": (at(DATA, Path.unlink), "recording of the test split is missing"),
    "events without labels": (at(TRUTH, Path.unlink), "outdoor_day1_gt.hdf5: no such file"),
    "twice": (lambda root: shutil.copytree(root, root / "again"), "data.hdf5: also exists as "),
    "torn truth": (at(TRUTH, torn), "incomplete or unreadable HDF5 file"),
    "no depth": (depths(lambda _: None), "has no dataset"),
    "depth of another size": (depths(lambda maps: maps[:, :-1]), "px, but the histograms have"),
    "depth in whole mm": (depths(lambda maps: np.nan_to_num(maps).astype("i4")), "raw is int32"),
    "depth below zero": (depths(lambda maps: 0 * maps - 1), "depth holds -1 m; give m above 0"),
    "depth 0 for none": (depths(np.nan_to_num), HANDLED),
    "a time too few": (depths(lambda times: times[1:], f"{DEPTH}_ts"), "maps, but"),
    "times step back": (depths(stepping_back, f"{DEPTH}_ts"), "step back or repeat"),
}

DAT, BOXES = "test/*_td.dat", "test/*_bbox.npy"


def archived(path, folder=None):
    """Add the labels file of RVT's archives to a folder, by default the recording's own."""
    labels = (
        (folder or path.with_name(path.name.removesuffix("_td.dat"))) / "labels_v2" / "labels.npz"
    )
    labels.parent.mkdir(parents=True)
    labels.touch()


def boxes(field, change):
    return at(BOXES, content(column(field, change)))


PROPHESEE = {
    "not HDF5": (
        at("val/*.dat", lambda path: path.rename(f"{path}.h5")),
        "incomplete or unreadable HDF5 file",
    ),
    "in another format as well": (
        at("val/*.dat", lambda path: path.with_name(f"{path.name}.h5").touch()),
        "_td.dat.h5: also exists as ",
    ),
    "a split in two folders": (
        lambda root: shutil.copytree(root / "val", root / "Validation"),
        "also exists as ",
    ),
    "labels without events": (at(DAT, Path.unlink), "recording of the test split is missing"),
    "events without labels": (at(BOXES, Path.unlink), "no such file, but events exist"),
    "labels after the last event": (boxes("t", lambda times: times + 10**9), "the events at"),
    "no boxes": (at(BOXES, content(lambda stored: stored[:0])), "holds no boxes"),
    "torn boxes": (at(BOXES, torn), "not a readable .npy file"),
    "boxes without width": (
        at(BOXES, content(lambda old: old[["t", "x", "y", "h", "class_id"]])),
        "no field of name",
    ),
    "box with NaN": (
        boxes("x", first_with(float("nan"))),
        "box 0 has a position or size that is NaN",
    ),
    "box of infinite size": (
        boxes("w", first_with(3e38)),
        "box 0 has a position or size that is NaN",
    ),
    "box of negative size": (boxes("w", first_with(-5)), "box 0 has a negative size"),
    "unknown class": (boxes("class_id", first_with(99)), "a class other than 0 to"),
    "all boxes outside": (boxes("x", lambda x: 0 * x + 9999), "passes the filters"),
    "box partly outside": (boxes("x", first_with(-2)), HANDLED),
    "missing split": (at("test", shutil.rmtree), "recording of the test split is missing"),
    "as an archive as well": (at(DAT, archived), "_td.dat: also exists as "),
    "another as an archive": (
        at(DAT, lambda path: archived(path, path.with_name("a"))),
        HANDLED,
    ),
    "RVT's public script": (
        partial(archive, **GEN1 | {"windows_per_period": 2}),
        "50 ms are 125 ms apart",
    ),
    "in two splits": (
        lambda root: shutil.copytree(root / "test", root / "train", dirs_exist_ok=True),
        "again in test",
    ),
}

DEFECTS = {"ddd17": DDD17, "dsec": DSEC, "mvsec": MVSEC, "gen1": PROPHESEE}
