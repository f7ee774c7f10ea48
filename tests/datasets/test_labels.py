"""Labels: masks hold the numbers of their files, and labels that a task cannot learn from are
refused.
"""

import multiprocessing
import zipfile
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from ddd17_copies import png, png_of

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError
from tespec.datasets import labels
from tespec.datasets.labels import (
    BOXES,
    DEPTH,
    MASK,
    MaskFiles,
    ego_speed_at,
    mask_names,
    read_label_times,
    with_checks,
)
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource
from tespec.events.histogram import Region

MASKS = np.random.default_rng(0).integers(0, 6, (6, 40, 56), np.uint8)


def open_masks(place):
    return MaskFiles(place, tuple(labels.mask_names(place).values()))


GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6


@pytest.mark.parametrize("name", ["masks", "masks.zip"])
def test_masks_that_are_missing_are_not_called_damaged(tmp_path, name):
    with pytest.raises(UserError, match=rf"{name}: no such folder or zip archive; copy the masks"):
        mask_names(tmp_path / name)


@pytest.mark.parametrize(
    ("depth", "colour", "row", "classes"),
    [(1, GREY, b"\x50", [0, 1, 0, 1]),
     (2, GREY, b"\x1b", [0, 1, 2, 3]),
     (4, GREY, b"\x03\x45", [0, 3, 4, 5]),
     (8, GREY, b"\0\xff\5\3", [0, 255, 5, 3]),
     (2, PALETTE, b"\x1b", [0, 1, 2, 3]),
     (8, PALETTE, b"\0\1\2\3", [0, 1, 2, 3]),
     (16, GREY, bytes(8), r"uint16 of shape \(1, 4\)"),
     (8, RGB, bytes(12), r"uint8 of shape \(1, 4, 3\)"),
     (8, GREY_ALPHA, bytes(8), r"uint8 of shape \(1, 4, 2\)"),
     (8, RGB_ALPHA, bytes(16), r"uint8 of shape \(1, 4, 4\)")],
)  # fmt: skip
def test_masks_are_the_numbers_in_the_file_or_refused(tmp_path, depth, colour, row, classes):
    palette = bytes(range(200, 212)) if colour == PALETTE else b""
    (tmp_path / "m_00000001.png").write_bytes(png_of(depth, colour, row, palette))
    masks, window = open_masks(tmp_path), np.array([[0, 1]])
    recording = LabelledRecording(
        "a", EventSource(tmp_path), Region(1, 4), window, masks, np.array([0])
    )
    checked = with_checks(recording, MASK, 6).labels
    if isinstance(classes, list):
        assert (checked[0].tolist(), checked[0].dtype) == ([classes], np.uint8)
    else:
        with pytest.raises(UserError, match=rf"label 0 \(m_00000001\.png\): mask is {classes}"):
            checked[0]


def read_many_times(place, seed):
    masks, order = open_masks(place), np.random.default_rng(seed).integers(0, len(MASKS), 600)
    return all(np.array_equal(masks[index], MASKS[index]) for index in order.tolist())


@pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning"
)  # Python 3.12 on, where other tests left threads
def test_forked_workers_read_one_archive_at_the_same_time(tmp_path):
    place = tmp_path / "masks.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, image in enumerate(MASKS, start=1):
            archive.writestr(f"segmentation_masks/segmentation_{number:08d}.png", png(image))
        for other in (
            "__MACOSX/segmentation_masks/._segmentation_00000001.png",
            "segmentation_masks/notes.txt",
        ):
            archive.writestr(other, b"x")
    np.testing.assert_array_equal(open_masks(place)[0], MASKS[0])
    with ProcessPoolExecutor(3, multiprocessing.get_context("fork")) as workers:
        assert all(workers.map(read_many_times, [place] * 3, range(3)))


def test_a_changed_byte_of_a_zipped_mask_is_noticed_by_the_checksums(tmp_path):
    place = tmp_path / "masks.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("m_00000001.png", png(MASKS[0]))
    assert open_masks(place).checksums() == {"m_00000001.png": zlib.crc32(png(MASKS[0]))}
    changed = bytearray(place.read_bytes())
    changed[changed.index(b"IDAT") + 8] ^= 1
    other = tmp_path / "other.zip"
    other.write_bytes(changed)
    with pytest.raises(UserError, match=r"m_00000001\.png: not readable"):
        open_masks(other).checksums()


def test_speed_is_interpolated_and_optional(tmp_path):
    path = tmp_path / "a.npy"
    assert ego_speed_at(path, np.array([1])) is None
    np.save(path, np.array([[0, 1.0], [10, 3.0]]))
    assert ego_speed_at(path, np.array([-5, 5, 10, 99])).tolist() == [1, 2, 3, 3]
    for rows in (np.zeros(3), np.array([[9, 1.0], [2, 1.0]]), np.array([[0, 1.0], [np.nan, 1.0]])):
        np.save(path, rows)
        with pytest.raises(
            UserError, match=r"not float \(N, 2\) with rising times and speeds in m/s; remove it"
        ):
            ego_speed_at(path, np.array([1]))


@pytest.mark.parametrize("text", ["1\n2.5\n", "\0"])
def test_stamps_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match="one integer per"):
        read_label_times(tmp_path / "a.txt")


# Checks of masks, depth maps and boxes, for histograms of 4 rows and 6 columns and three classes.
BOX = np.array([[0, 0, 6.5, 4], [1, 1, 2, 3]])


def mask(value=2, shape=(4, 6)):
    return np.full(shape, value, np.uint8)


def depth(value=7.5, dtype=np.float32):
    return np.full((4, 6), value, dtype)


def boxes(corners=BOX, classes=(0, 2)):
    return Boxes(
        np.asarray(corners, np.float32), np.asarray(classes), np.ones(len(classes), np.float32)
    )


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [
        (MASK, mask(), ""),
        (DEPTH, depth(), ""),
        (DEPTH, depth(np.nan), ""),
        (BOXES, boxes(), ""),
        (BOXES, make_boxes(np.empty((0, 4)), np.empty(0, np.int64)), ""),
        (MASK, mask(shape=(4, 5)), "mask has 5x4 px, but the histograms have 6x4; "),
        (MASK, mask(shape=(4, 6, 1)), r"mask is uint8 of shape \(4, 6, 1\); give \(H, W\) uint8"),
        (MASK, mask(3), "mask holds class 3 of 3; list"),
        (
            DEPTH,
            depth(dtype=np.float64),
            r"depth is float64 of shape \(4, 6\); give \(H, W\) float32",
        ),
        (DEPTH, depth(0), "depth holds 0 m; give"),
        (DEPTH, depth(np.inf), "depth holds inf m"),
        (BOXES, BOX, r"boxes are float64 of shape \(2, 4\); give tespec.core.boxes.make_boxes"),
        (BOXES, boxes(classes=(0, 3)), r"box 1 \(1, 1, 2, 3; class 3\) has an unknown class; list"),
        (
            BOXES,
            boxes(np.add(BOX, [[0], [5]])),
            r"box 1 \(6, 6, 7, 8; class 2\) is outside of 6x4 px; give",
        ),
        (BOXES, boxes(BOX * np.nan), r"box 0 \(nan, nan, nan, nan; class 0\) is outside"),
        (BOXES, boxes(BOX[:, [2, 1, 0, 3]]), r"box 0 \(6.5, 0, 0, 4; class 0\) has left > right"),
    ],
)
def test_labels_are_what_their_task_learns_from_or_named(kind, label, message):
    recording = LabelledRecording(
        "a", EventSource("street"), Region(4, 6), np.array([[0, 1]]), [label], np.array([0])
    )
    checked = with_checks(recording, kind, 3).labels
    if not message:
        assert checked[0] is label
    else:
        with pytest.raises(UserError, match=f"^street, recording a, label 0: {message}"):
            checked[0]


def test_a_part_names_labels_by_their_number_in_the_recording_and_their_file(tmp_path):
    for number, image in enumerate((mask(), mask(), mask(9))):
        (tmp_path / f"m_{number}.png").write_bytes(png(image))
    source, windows = EventSource(tmp_path / "drive.raw"), 1000 * np.arange(8).reshape(4, 2)
    drive = LabelledRecording(
        "drive", source, Region(4, 6), windows, open_masks(tmp_path), np.array([0, 1, 3])
    )
    found = with_checks(drive, MASK, 3)
    for part in (found.part(1, 4).labels, found.subset(np.array([0, 2])).labels):
        assert len(part) == 2
        part[0]
        with pytest.raises(
            UserError, match=r"recording drive, label 2 \(m_2.png\): mask holds class 9 of 3"
        ):
            part[1]
    with pytest.raises(
        UserError, match=r"drive\.raw, recording drive: 3 labels for 2 labelled windows; give the"
    ):
        with_checks(replace(drive, label_indices=np.array([0, 1])), MASK, 3)
