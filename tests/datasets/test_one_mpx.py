import numpy as np
import pytest
from prophesee_files import boxes, frames_at, opened, write_recording

from tespec.core.errors import UserError
from tespec.events import load_events

END = 1_000_000


def one_recording(root, stored, count=4000):
    return write_recording(root / "test", "a", stored, task="1mpx", end=END, count=count)


def test_labels_at_60_hz_give_ten_frames_a_second(tmp_path):
    one_recording(tmp_path, frames_at(range(16_667, END, 16_667)))
    (recording,) = opened(tmp_path, "1mpx").recordings("test")
    np.testing.assert_array_equal(recording.label_times, 16_667 * np.arange(6, 60, 6))
    np.testing.assert_array_equal(np.diff(recording.labelled), 2)
    assert np.abs(np.diff(recording.windows, axis=1) - 50_000).max() <= 1
    np.testing.assert_array_equal(recording.windows[1:, 0], recording.windows[:-1, 1])


def test_three_of_seven_classes_count_and_boxes_are_halved(tmp_path):
    rows = [(100_000, 40 + 100 * label, 30, 60, 50, label) for label in range(7)]
    one_recording(tmp_path, boxes(*rows, (100_000, 1200, 700, 300, 300, 2), (200_000, 8, 8, 80, 80, 6)))
    (recording,) = opened(tmp_path, "1mpx").recordings("test")
    assert recording.label_times.tolist() == [100_000]
    assert recording.left_out == 1
    assert recording.labels[0].label.tolist() == [0, 1, 2, 2]
    assert recording.labels[0].corners.tolist() == [
        [20, 15, 50, 40],
        [70, 15, 100, 40],
        [120, 15, 150, 40],
        [600, 350, 639.5, 359.5],
    ]


def test_small_boxes_are_labels_and_leave_scoring_to_its_own_limits(tmp_path):
    one_recording(tmp_path, boxes((100_000, 8, 8, 5, 6, 0), (200_000, 8, 8, 4.5, 90, 0)))
    (recording,) = opened(tmp_path, "1mpx").recordings("test")
    assert recording.label_times.tolist() == [100_000]


def test_histograms_keep_the_events_of_odd_rows_and_columns(tmp_path):
    path = one_recording(tmp_path, frames_at([200_000]), count=200_000)
    (recording,) = opened(tmp_path, "1mpx").recordings("test")
    found = recording.histograms(3, 1, 10, "edges")
    x, y, _, p = load_events(path).slice(150_000, 200_000)
    expected = np.zeros((2, 360, 640), np.int64)
    kept = (x % 2 == 1) & (y % 2 == 1)
    np.add.at(expected, (p[kept].astype(int), y[kept] // 2, x[kept] // 2), 1)
    assert found.shape == (1, 20, 360, 640)
    assert expected.sum() > 1000
    np.testing.assert_array_equal(found[0].reshape(2, 10, 360, 640).sum(axis=1), expected)


def test_unknown_classes_are_refused(tmp_path):
    one_recording(tmp_path, frames_at([100_000], label=7))
    with pytest.raises(UserError, match=r"a_bbox\.npy: box 0 has a class other than 0 to 6; copy it again"):
        opened(tmp_path, "1mpx").recordings("test")


def test_the_protocol_is_said_in_words(tmp_path):
    one_recording(tmp_path, frames_at([100_000]))
    said = opened(tmp_path, "1mpx").describe()["labels"]
    assert said.startswith("one frame each about 100 ms; boxes cropped to the sensor, diagonal from 0 px, sides from 5")
    assert said.endswith(", then divided by 2")
