import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prophesee_files import boxes

from tespec.core.errors import UserError
from tespec.datasets.prophesee_boxes import (
    PropheseeProtocol,
    box_labels,
    choose_boxes,
    choose_frames,
    label_period,
    raw_boxes,
    read_boxes,
)

GEN1 = PropheseeProtocol("rvt", "rvt", 250, False, 30, 10, 0.9, ())
ONE_MPX = PropheseeProtocol("rvt", "rvt", 100, True, 0, 5, 0.9, ())
ALL = dataclasses.replace(GEN1, boxes="all", frames="all")
HEIGHT, WIDTH = 240, 304

# Places and sizes around every limit: the sensor's edges, a side of 10, a diagonal of 30, a width of 273.
LEFT = [-400.0, -20.5, -1.0, 0.0, 10.25, 30.5, 293.5, 302.0, 303.0, 303.5, 304.0, 900.0]
TOP = [-9.5, 0.0, 215.0, 229.0, 239.0, 240.0]
WIDTHS = [0.0, 4.0, 9.75, 10.0, 18.0, 24.0, 28.5, 272.5, 273.0, 273.5, 274.0, 700.0]
HEIGHTS = [0.0, 0.5, 9.75, 10.0, 18.0, 24.0, 300.0]


def plain_filter(row, rules, training):
    """The corners of one box, or None if it does not count; all numbers are exact in float32."""
    _, x, y, w, h, label = row
    rvt = rules.boxes == "rvt"
    right, bottom = (WIDTH - 1, HEIGHT - 1) if rvt else (WIDTH, HEIGHT)
    corners = [min(max(value, 0), limit) for value, limit in ((x, right), (y, bottom), (x + w, right), (y + h, bottom))]
    width, height = corners[2] - corners[0], corners[3] - corners[1]
    if label >= 2 or width <= 0 or height <= 0:
        return None
    if rvt and (min(width, height) < rules.min_side or width**2 + height**2 < rules.min_diagonal**2):
        return None
    if rvt and training and width > 273:
        return None
    return corners


@pytest.mark.parametrize("rules", [GEN1, ALL], ids=["rvt", "all"])
@pytest.mark.parametrize("training", [True, False])
def test_boxes_are_filtered_as_one_by_one(rules, training):
    rows = [(0, *row) for row in itertools.product(LEFT, TOP, WIDTHS, HEIGHTS, (1, 2))]
    kept = choose_boxes(raw_boxes(boxes(*rows), "a", 4), rules, 2, HEIGHT, WIDTH, training)
    expected = [(corners, row[5]) for row in rows if (corners := plain_filter(row, rules, training)) is not None]
    assert 300 < len(expected) < len(rows) / 2
    assert kept.corners.tolist() == [corners for corners, _ in expected]
    assert kept.label.tolist() == [label for _, label in expected]


def test_a_frame_whose_boxes_are_all_dropped_is_no_label():
    rows = [(100_000, 0, 0, 40, 40, 0), (350_000, 0, 0, 5, 5, 0), (600_000, 0, 0, 40, 40, 1)]
    kept = choose_boxes(raw_boxes(boxes(*rows), "a", 2), GEN1, 2, HEIGHT, WIDTH, training=False)
    assert choose_frames(kept.t, GEN1).tolist() == [100_000, 600_000]


def test_too_wide_boxes_are_dropped_in_training_alone():
    stored = raw_boxes(boxes((0, 0, 0, 274, 50, 0)), "a", 2)
    assert len(choose_boxes(stored, GEN1, 2, HEIGHT, WIDTH, training=False).t) == 1
    assert len(choose_boxes(stored, GEN1, 2, HEIGHT, WIDTH, training=True).t) == 0


FRAMES = {
    "4 Hz": (GEN1, range(0, 2_000_000, 250_000), range(250_000, 2_000_000, 250_000)),
    "the first from 100 ms on": (GEN1, [99_999, 100_000, 349_999, 350_000], [100_000, 349_999]),
    "1 Hz": (GEN1, [500_000, 1_500_000, 2_500_000], [500_000, 1_500_000, 2_500_000]),
    "2 ms late or early": (GEN1, [200_000, 452_000, 700_000, 948_000], [200_000, 452_000, 700_000, 948_000]),
    "3 ms late": (GEN1, [200_000, 453_000, 700_000], [200_000, 700_000]),
    "off the period": (GEN1, [200_000, 300_000, 450_000, 575_000], [200_000, 450_000]),
    "two at once": (GEN1, [200_000, 200_900, 450_000, 450_900], [200_000, 450_000]),
    "none late enough": (GEN1, [0, 99_999], []),
    "none": (GEN1, [], []),
    "every one": (ALL, [0, 0, 3, 99_999], [0, 3, 99_999]),
}


@pytest.mark.parametrize("case", FRAMES)
def test_label_frames(case):
    rules, times, expected = FRAMES[case]
    assert choose_frames(np.array(times, np.int64), rules).tolist() == list(expected)


@pytest.mark.parametrize(("spacing", "each"), [(16_666, 6), (16_667, 6), (16_683, 6), (33_333, 3), (33_367, 3)])
def test_frames_of_1mpx_keep_their_distance_over_a_minute(spacing, each):
    """Periods that differ a little from 100 ms add up to more than the tolerance within seconds."""
    times = 100_000 + spacing * np.arange(60_000_000 // spacing)
    np.testing.assert_array_equal(choose_frames(times, ONE_MPX), times[::each])
    with_a_gap = np.delete(times, np.arange(each, 40 * each))
    np.testing.assert_array_equal(choose_frames(with_a_gap, ONE_MPX), np.delete(times[::each], np.arange(1, 40)))


@pytest.mark.parametrize(
    ("rules", "times", "period"),
    [
        (GEN1, [0, 251_000, 502_000], 250_000),
        (ONE_MPX, [0, 16_683, 33_366], 100_098),
        (ONE_MPX, [0, 33_367, 66_734], 100_101),
        (ONE_MPX, [0, 66_667, 133_334], 100_000),
        (ONE_MPX, [0, 7_000_000], 100_000),
        (ONE_MPX, [0], 100_000),
    ],
)
def test_the_period_follows_labels_near_it_alone(rules, times, period):
    assert label_period(np.array(times, np.int64), rules) == period


@given(st.lists(st.integers(0, 60_000), max_size=60), st.sampled_from([GEN1, ONE_MPX]))
def test_distances_of_frames_are_whole_periods(hundredths, rules):
    times = np.unique(np.array(hundredths, np.int64) * 100)
    chosen = choose_frames(times, rules)
    period = label_period(times, rules)

    def fits(before, after):
        number = round((after - before) / period)
        return number > 0 and abs(after - before - number * period) <= 2_000

    assert all(fits(before, after) for before, after in itertools.pairwise(chosen.tolist()))
    late = times[times >= 100_000].tolist()
    assert chosen[:1].tolist() == late[:1]
    for time in set(late) - set(chosen.tolist()):
        assert not fits(int(chosen[chosen < time][-1]), time)


def test_labels_are_the_boxes_of_their_frames():
    stored = boxes(*((t, 10 * place, 4, 20, 10, place % 2) for place, t in enumerate([1, 1, 2, 3, 3, 3, 5])))
    times = np.array([1, 3, 5])
    labels = box_labels(raw_boxes(stored, "a", 2), times, factor=2)
    assert [labels[index].corners[:, 0].tolist() for index in range(3)] == [[0, 5], [15, 20, 25], [30]]
    assert [labels[index].label.tolist() for index in range(3)] == [[0, 1], [1, 0, 1], [0]]
    assert labels[-1].corners.tolist() == [[30, 2, 40, 7]]
    with pytest.raises(IndexError):
        _ = labels[3]


def test_checksums_know_places_and_classes():
    def of(*rows):
        return box_labels(raw_boxes(boxes(*rows), "a", 2), np.array([1, 2]), 1).checksums()

    one = of((1, 5, 5, 9, 9, 0), (2, 5, 5, 9, 9, 0))
    assert one[0] == one[1]
    assert of((1, 5, 5, 9, 9, 0), (2, 5, 5, 9, 9, 1))[0] == one[0]
    assert of((1, 5, 5, 9, 9, 0), (2, 5, 5, 9, 9, 1))[1] != one[1]
    assert of((1, 5, 5, 9, 8, 0), (2, 5, 5, 9, 9, 0))[0] != one[0]


def test_old_names_and_other_types_of_fields_are_read(tmp_path):
    new = boxes((1, 2, 3, 4, 5, 1))
    old = np.zeros(1, [("ts", "<u8"), *((name, "<f8") for name in "xywh"), ("class_id", "u1"), ("confidence", "<f4")])
    old["ts"], old["class_id"] = new["t"], new["class_id"]
    for name in "xywh":
        old[name] = new[name]
    np.save(tmp_path / "new_bbox.npy", new)
    np.save(tmp_path / "old_bbox.npy", old)
    for one, other in zip(*(read_boxes(tmp_path / f"{age}_bbox.npy", 2) for age in ("new", "old")), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


SOUND = (1, 2, 3, 4, 5, 1)
BROKEN = {
    "NaN": (boxes(SOUND, (1, np.nan, 3, 4, 5, 1)), "box 1 has a place or size that is no number; copy it again"),
    "infinite": (boxes((1, 2, np.inf, 4, 5, 1)), "box 0 has a place or size that is no number"),
    "far beyond": (boxes((1, 3e38, 3, 3e38, 5, 1)), r"box 0 has a place or size beyond 1,000,000 px"),
    "negative size": (boxes(SOUND, SOUND, (1, 2, 3, 4, -5, 1)), "box 2 has a negative size"),
    "unknown class": (boxes((1, 2, 3, 4, 5, 2)), "box 0 has a class other than 0 to 1"),
    "negative time": (boxes((-1, 2, 3, 4, 5, 1)), "box 0 has a negative time"),
    "time steps back": (boxes(SOUND, (0, 2, 3, 4, 5, 1)), "box 1 has a time before that of the box before it"),
    "no time": (boxes(SOUND)[["x", "y", "w", "h", "class_id"]], "has no field t; give a file of boxes"),
    "no width": (boxes(SOUND)[["t", "x", "y", "h", "class_id"]], "has no field w"),
    "no fields": (np.zeros((3, 6)), "has no field t"),
    "two axes": (np.stack([boxes(SOUND), boxes(SOUND)]), "has no field of boxes"),
    "times as text": (np.zeros(1, [("t", "<U9"), *((name, "<f4") for name in "xywh"), ("class_id", "<u4")]),
                      "its field t is <U9"),
    "classes as real numbers": (np.zeros(1, [("t", "<i8"), *((name, "<f4") for name in "xywh"), ("class_id", "<f4")]),
                                "its field class_id is float32"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_with_boxes_is_said(tmp_path, kind):
    stored, message = BROKEN[kind]
    np.save(tmp_path / "a_bbox.npy", stored)
    with pytest.raises(UserError, match=rf"a_bbox\.npy: {message}"):
        read_boxes(tmp_path / "a_bbox.npy", 2)


def test_a_file_that_is_no_array_is_refused(tmp_path):
    (tmp_path / "a_bbox.npy").write_bytes(b"t,x,y")
    with pytest.raises(UserError, match=r"a_bbox\.npy: not a readable \.npy file; copy it again"):
        read_boxes(tmp_path / "a_bbox.npy", 2)
