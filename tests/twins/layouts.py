"""Layouts in which data sets are distributed, converted in place from the sample world's."""

import shutil
import zipfile
from functools import partial

import numpy as np
from event_files import write_h5

from tespec.events.opening import open_reader
from tespec.events.readers import Events
from tespec.sample.layouts import DSEC_MASKS
from twins.rvt_archive import GEN1, ONE_MPX, archive

EVENT_TYPE = b"\x0c\x08"


def extracted(root):
    """Extract masks from zip archives into folders."""
    for path in root.glob("dir*/segmentation_masks.zip"):
        with zipfile.ZipFile(path) as masks:
            masks.extractall(path.parent)
        path.unlink()


def microseconds(root):
    for path in root.glob("dir*/events.dat.t"):
        (np.fromfile(path, "<i8") // 1000).tofile(path)
    for path in root.glob("dir*/index/*"):
        np.save(path, np.load(path) // [1000, 1, 1])


def into(root, name, *kept):
    """Move all but the files `kept` into a subfolder, as after unpacking an archive."""
    moved = [path for path in root.iterdir() if path.name not in kept]
    (root / name).mkdir()
    for path in moved:
        shutil.move(path, root / name / path.name)


def dsec_labels(root, place, times="semantic/timestamps.txt", flat=False):
    """Move the masks of each set of classes to folder `place`.

    `flat`: move sequences out of train and test.
    """
    for folder in sorted(path.parents[2] for path in root.glob("**/events/left/events.h5")):
        for classes in DSEC_MASKS:
            target = folder / place.format(classes)
            shutil.move(folder / "semantic" / "left" / classes, folder / "moved")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(folder / "moved", target)
        shutil.move(folder / "semantic" / "timestamps.txt", folder / times.format(folder.name))
        for path in (folder / "semantic" / "left", folder / "semantic"):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if flat:
            shutil.move(folder, root / folder.name)


def side_by_side(root):
    """Unpack DSEC's archives into a folder each, as in the file paths of its public loaders."""
    dsec_labels(root, *ARCHIVE)
    for split in ("train", "test"):
        shutil.move(root / split, moved := root / "moved")
        for folder in sorted(moved.iterdir()):
            shutil.move(folder / "events", made(root / f"{split}_events" / folder.name) / "events")
            shutil.move(folder, made(root / f"{split}_semantic_segmentation" / split) / folder.name)
        moved.rmdir()


def made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def one_folder(root):
    """Unpack DSEC's archives into one folder, as hamarh/HMNet_pth (scripts/prepair.sh)."""
    dsec_labels(root, *ARCHIVE)
    for folder in sorted(root.glob("t*/*")):
        shutil.move(folder / "events", made(root / folder.name) / "events")


def eraft(root):
    """Move events to events_left, as uzh-rpg/E-RAFT (download_dsec_test.py), and times to masks."""
    dsec_labels(root, "semantic/left/{}", "semantic/left/{}_semantic_timestamps.txt")
    for folder in sorted(root.glob("t*/*")):
        shutil.move(folder / "events" / "left", folder / "events_left")


def renamed(root, **names):
    """Rename folders of splits."""
    for path in [path for path in root.iterdir() if path.name in names]:
        path.rename(path.with_name(names[path.name]))


def by_split(root):
    """Move DDD17's recordings into folders of their split."""
    for path in sorted(root.glob("dir*")):
        shutil.move(path, made(root / ("test" if path.name == "dir1" else "train")) / path.name)


def rvt_raw(root, ending, sized=True):
    """Write the events of `.dat` files as RVT's page hosts them."""
    for path in root.glob("*/*_td.dat"):
        reader = open_reader(path)
        events = Events(*map(np.concatenate, zip(*reader.chunks(), strict=True)))
        content = {f"events/{name}": values for name, values in events._asdict().items()}
        sides = {"events/height": reader.height, "events/width": reader.width} if sized else {}
        write_h5(path.with_name(path.name.removesuffix("_td.dat") + ending), content | sides)
        path.unlink()


def by_day(root):
    """Sort recordings into folders of day and night, as in MVSEC's downloads."""
    for path in list(root.glob("outdoor_*.hdf5")):
        folder = root / ("outdoor_day" if "day" in path.name else "outdoor_night")
        folder.mkdir(exist_ok=True)
        shutil.move(path, folder / path.name)


def without_size(root):
    """Remove the sensor's size from the headers, as in older files."""
    for path in root.glob("*/*_td.dat"):
        header, mark, body = path.read_bytes().partition(EVENT_TYPE)
        lines = [
            line
            for line in header.splitlines(keepends=True)
            if b"Height" not in line and b"Width" not in line
        ]
        path.write_bytes(b"".join(lines) + mark + body)


def older(root):
    """Write event type 0 instead of 12, and boxes with ts and confidence, as in older files."""
    for path in root.glob("*/*_td.dat"):
        path.write_bytes(path.read_bytes().replace(EVENT_TYPE, b"\x00\x08", 1))
    for path in root.glob("*/*_bbox.npy"):
        boxes = np.load(path)
        names = {"t": "ts", "class_confidence": "confidence"}
        boxes.dtype.names = tuple(names.get(field, field) for field in boxes.dtype.names)
        np.save(path, boxes)


PROPHESEE = {
    "dat": str,
    "dat-no-size": without_size,
    "older": older,
    "nested": lambda root: into(root, "detection_dataset_duration_60s_ratio_1.0", "dataset.json"),
    "other names": partial(renamed, train="Training", val="validation", test="TEST"),
    "dat.h5": partial(rvt_raw, ending="_td.dat.h5"),
    "h5": partial(rvt_raw, ending="_td.h5"),
    "h5-no-size": partial(rvt_raw, ending="_td.h5", sized=False),
}
ARCHIVE = "{}", "{}_semantic_timestamps.txt"
LAYOUTS = {
    "ddd17": {
        "zip": str,
        "folder": extracted,
        "us": microseconds,
        "by split": by_split,
        "outer": lambda root: (
            into(root, "data", "dataset.json"),
            shutil.copy(root / "dataset.json", root / "data"),
        ),
    },
    "dsec": {
        "readme": str,
        "ess-readme": lambda root: dsec_labels(root, "semantic/left/{}/data"),
        "ess": lambda root: dsec_labels(root, "semantic/{}/data"),
        "archive": lambda root: dsec_labels(root, *ARCHIVE),
        "side by side": side_by_side,
        "one folder": one_folder,
        "events_left": eraft,
        "other names": partial(renamed, train="Train", test="testing"),
        "flat": lambda root: dsec_labels(root, "semantic/left/{}", flat=True),
        "flat-archive": lambda root: dsec_labels(root, *ARCHIVE, flat=True),
    },
    "mvsec": {"hdf5": str, "folders": by_day},
    "gen1": PROPHESEE | {"rvt-archive": partial(archive, **GEN1)},
    "1mpx": PROPHESEE | {"rvt-archive": partial(archive, **ONE_MPX)},
}


def relayout(root, dataset, layout):
    """Convert a data set of the sample world in place into another layout."""
    LAYOUTS[dataset][layout](root)
