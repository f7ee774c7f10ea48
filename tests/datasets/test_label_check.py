"""Labels of any class are refused in one line where they are not what their task learns from."""

import numpy as np
import pytest
from guides import forgotten_afterwards

from tespec.cli import data as data_cli
from tespec.cli import run as run_cli
from tespec.cli.command import run
from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError
from tespec.datasets.label_check import BOXES, DEPTH, MASK, CheckedLabels, with_checks
from tespec.datasets.recording import ChosenLabels, LabelledRecording
from tespec.datasets.sources import EventSource
from tespec.events.spatial import Region

SIZE = (4, 6)  # rows and columns in px
BOX = np.array([[0, 0, 6.5, 4], [1, 1, 2, 3]])


class Listed(list):
    def part(self, first, end):
        return Listed(self[first:end])

    def checksums(self):
        return [0] * len(self)


def checked(label, kind, classes=3):
    return CheckedLabels(Listed([label]), "street", kind, SIZE, classes)


def mask(value=2, shape=SIZE, dtype=np.uint8):
    return np.full(shape, value, dtype)


def depth(value=7.5, shape=SIZE, dtype=np.float32):
    return np.full(shape, value, dtype)


def boxes(corners=BOX, classes=(0, 2)):
    return Boxes(np.asarray(corners, np.float32), np.asarray(classes), np.ones(len(classes), np.float32))


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (MASK, mask()), (MASK, mask(255)), (MASK, mask(0)),
        (DEPTH, depth()), (DEPTH, depth(np.nan)),
        (BOXES, boxes()), (BOXES, make_boxes(np.empty((0, 4)), np.empty(0, np.int64))),
    ],
)  # fmt: skip
def test_what_is_right_comes_through_as_it_is(kind, label):
    assert checked(label, kind)[0] is label


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [
        (MASK, mask(shape=(4, 5)), "mask has 5x4 px, the histograms have 6x4; crop or resize it to the histograms"),
        (MASK, mask(shape=(4, 6, 1)), r"mask is uint8 of shape \(4, 6, 1\); give an array \(H, W\)"),
        (MASK, mask().tolist(), "mask is a list; give an array"),
        (MASK, boxes(), "mask is a Boxes; give an array"),
        (MASK, mask(dtype=np.int64), "mask is int64, not uint8; convert it to uint8"),
        (MASK, mask(3), "mask holds class 3 of 3; give classes 0 to 2, and 255 for pixels without a label"),
        (MASK, mask(254), "mask holds class 254 of 3"),
        (DEPTH, depth(shape=(6, 4)), "depth has 4x6 px, the histograms have 6x4"),
        (DEPTH, depth(dtype=np.int64), "depth is int64, not float32; convert it to float32"),
        (DEPTH, depth(dtype=np.float64), "depth is float64, not float32"),
        (DEPTH, depth(0), "depth holds 0 m; give depths above 0, and NaN where there is none"),
        (DEPTH, depth(-1), "depth holds -1 m"),
        (DEPTH, depth(np.inf), "depth holds inf m"),
        (BOXES, BOX, r"boxes are float64 of shape \(2, 4\); give tespec.core.boxes.make_boxes"),
        (BOXES, boxes(BOX[:, :3]), r"corners of 2 boxes are float32 of shape \(2, 3\)"),
        (BOXES, boxes(BOX[:1]), r"corners of 2 boxes are float32 of shape \(1, 4\)"),
        (BOXES, boxes(classes=(0.0, 1.0)), r"classes of 2 boxes are float64 of shape \(2,\)"),
        (BOXES, boxes(classes=(0, 3)), "box 1 has class 3 of 3; give classes 0 to 2"),
        (BOXES, boxes(classes=(-1, 0)), "box 0 has class -1 of 3"),
        (BOXES, boxes(np.add(BOX, [[0], [5]])), r"box 1 \(6, 6, 7, 8\) is outside of 6x4 px; clip it to the image"),
        (BOXES, boxes(BOX - 1), r"box 0 \(-1, -1, 5.5, 3\) is outside"),
        (BOXES, boxes(BOX * np.nan), r"box 0 \(nan, nan, nan, nan\) is outside"),
        (BOXES, boxes(BOX[:, [2, 1, 0, 3]]), r"box 0 \(6.5, 0, 0, 4\) is turned around; give left, top, right, bottom"),
    ],
)
def test_what_is_wrong_is_named(kind, label, message):
    with pytest.raises(UserError, match=f"^street, label 0: {message}"):
        checked(label, kind)[0]


def recording(tmp_path, labelled, labels):
    windows = np.arange(8).reshape(4, 2) * 1000
    source = EventSource(tmp_path / "drive.raw")
    return LabelledRecording("drive", source, Region(*SIZE), windows, Listed(labels), np.array(labelled))


def test_a_part_names_labels_by_their_number_in_the_recording(tmp_path):
    found = with_checks(recording(tmp_path, [0, 1, 3], [mask(), mask(), mask(9)]), MASK, 3)
    for labels in (found.part(1, 4).labels, ChosenLabels(found.labels, np.array([0, 2]))):
        assert len(labels) == 2
        labels[0]
        with pytest.raises(UserError, match=r"drive.raw, recording drive, label 2: mask holds class 9 of 3"):
            labels[1]


@pytest.mark.parametrize(
    ("labelled", "message"),
    [
        ([0, 1], "3 labels for 2 labelled windows; give the window"),
        ([0, 1, 4], "its labelled windows do not rise from 0 to at most 3"),
        ([0, 2, 2], "its labelled windows do not rise"),
    ],
)
def test_labels_and_windows_have_to_fit(tmp_path, labelled, message):
    with pytest.raises(UserError, match=f"drive.raw, recording drive: {message}"):
        with_checks(recording(tmp_path, labelled, [mask()] * 3), MASK, 3)


PROGRAM = """
from dataclasses import replace

import numpy as np

from tespec.core.registry import DATASETS
from tespec.datasets.ddd17 import Ddd17


class Tall:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.zeros((80, 96), np.uint8)

    def part(self, first, end):
        return Tall(end - first)

    def checksums(self):
        return [0] * self.count


@DATASETS.register_module()
class Tiled(Ddd17):
    def open(self, files):
        recording = super().open(files)
        return replace(recording, labels=Tall(len(recording.labels)))
"""


@pytest.mark.parametrize("verb", ["check", "run", "run --workers 2"])
def test_own_label_classes_end_in_one_line_and_exit_code_2(tiny_world, tmp_path, capsys, verb):
    (tmp_path / "mine.py").write_text(PROGRAM)
    own = ["--import", str(tmp_path / "mine.py"), "--set", "dataset=Tiled"]
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    with forgotten_afterwards():
        if verb == "check":
            code = run(lambda: data_cli.main(["check", "ddd17", str(tiny_world / "ddd17"), *own]))
        else:
            what = ["--method", "scratch", "--task", "ddd17", "--data", str(tiny_world / "ddd17"), "--profile", "tiny"]
            code = run(lambda: run_cli.main([*what, "--device", "cpu", *own, *places, *verb.split()[1:]]))
    out, err = capsys.readouterr()
    errors = [line for line in f"{out}{err}".splitlines() if line.startswith("error: ")]
    assert code == 2
    assert len(errors) == (4 if verb == "check" else 1)  # of each recording, or the first
    assert "mask has 96x80 px, the histograms have 96x64; crop or resize it to the histograms" in errors[0]
    assert "Traceback" not in out + err
    assert not list((tmp_path / "results").rglob("*.json"))
