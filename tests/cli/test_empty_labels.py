"""Labels without content are refused before the first step, and nothing is written."""

import numpy as np
import pytest
from PIL import Image
from twins import copied
from twins.broken import content
from twins.layouts import extracted

from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task

MAPS = "davis/left/depth_image_raw"


def unlabelled(*names):
    """Function that leaves all pixels of the masks of recordings unlabelled."""

    def spoil(root):
        extracted(root)
        for name in names:
            for path in (root / name / "segmentation_masks").iterdir():
                Image.new("L", (96, 64), 255).save(path)

    return spoil


def unknown(value, *names):
    """Function that sets all depths of recordings to a value in m."""
    spoil = content(lambda maps: np.full_like(maps, value), MAPS)
    return lambda root: [spoil(root / f"{name}_gt.hdf5") for name in names]


def narrow(side, split):
    """Function that sets the width of all boxes of a split to `side` px."""

    def spoil(boxes):
        boxes["w"] = side
        return boxes

    return lambda root: [content(spoil)(path) for path in (root / split).glob("*_bbox.npy")]


def untouched(root):
    """Leave the data as they are."""


# Task, change of its data, arguments, and a part of the message.
CLASS = "labels has a pixel with a class: "
DEPTH = "labels has a pixel from head.min_depth to head.max_depth: "
BOX = "labels has a box that is large and late enough: 17-04-13_15-05-1{}_500000_8500000 (8 labels)"
ALL_BOXES = "--set protocol.min_side=0.0 --set protocol.min_diagonal=0.0"
EMPTY = [
    (
        "ddd17",
        unlabelled("dir0", "dir1"),
        "",
        f"train recordings: none of the 126 {CLASS}dir0 (63 labels), dir1 (63",
    ),
    (
        "ddd17",
        unlabelled("dir2"),
        "",
        f"test recordings: none of the 63 {CLASS}dir2 (63 labels); give recordings with",
    ),
    ("ddd17", unlabelled("dir3"), "--split val", f"val recordings: none of the 63 {CLASS}dir3"),
    (
        "mvsec",
        unknown(np.nan, "outdoor_day2"),
        "",
        f"train recordings: none of the 39 {DEPTH}outdoor_day2",
    ),
    (
        "mvsec",
        unknown(1.0, "outdoor_day2"),
        "",
        f"train recordings: none of the 39 {DEPTH}outdoor_day2",
    ),
    (
        "mvsec",
        unknown(90, "outdoor_day1", "outdoor_night1"),
        "",
        f"test recordings: none of the 78 {DEPTH}outdoor_d",
    ),
    (
        "gen1",
        narrow(0.0, "train"),
        ALL_BOXES,
        "_bbox.npy: no label frame from 250000 to 2000000 us passes the filters; ",
    ),
    (
        "gen1",
        untouched,
        "--set head.min_diagonal=1000.0",
        f"test recordings: none of the 8 {BOX.format(3)}",
    ),
    (
        "gen1",
        untouched,
        "--set head.skip_ms=60000.0",
        f"test recordings: none of the 8 {BOX.format(3)}",
    ),
]


@pytest.mark.parametrize(("task", "spoil", "more", "message"), EMPTY)
def test_labels_without_content_are_refused(
    call, tiny_world, tmp_path, monkeypatch, task, spoil, more, message
):
    root = copied(tiny_world, tmp_path, task)
    spoil(root)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    what = ["--method", "scratch", "--task", task, "--profile", "smoke", "--device", "cpu"]
    folders = ["--results", "results", "--runs", "runs", "--data", root]
    code, out, err = call("run", *what, *folders, *more.split())
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert sum(line.startswith("error") for line in err.splitlines()) == 1
    assert list(folder.iterdir()) == []


def test_one_label_with_content_suffices(tiny_world, tmp_path):
    """Labels are read up to the first with content."""
    root = copied(tiny_world, tmp_path, "mvsec")
    unknown(np.nan, "outdoor_day1")(root)  # outdoor_night1 is scored too
    build_task(settings_of(Data(root, "sample"), "mvsec", "recurrent"), root)
