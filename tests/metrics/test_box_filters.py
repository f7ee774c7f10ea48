import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tespec.core.boxes import make_boxes
from tespec.metrics.detection import BoxFilter, filter_boxes

GEN1 = BoxFilter(min_diagonal=30, min_side=10)


def box(left, top, width, height):
    return make_boxes(np.array([[left, top, left + width, top + height]]), np.array([0]))


sides = st.floats(0, 100, width=32)


@given(st.lists(st.tuples(sides, sides), max_size=8), st.sampled_from([0, 10, 30]), st.sampled_from([0, 5, 20]))
def test_boxes_of_the_diagonal_and_sides_are_kept_in_order(sizes, min_diagonal, min_side):
    # Far from the limits, where rounding decides; boxes stand at 0 so that their sizes are exact.
    sizes = [
        (w, h)
        for w, h in sizes
        if abs(np.hypot(w, h) - min_diagonal) > 0.01 and all(abs(side - min_side) > 0.01 for side in (w, h))
    ]
    corners = np.array([(0, 0, w, h) for w, h in sizes], np.float32).reshape(-1, 4)
    boxes = make_boxes(corners, np.arange(len(sizes)), np.linspace(0, 1, len(sizes)))
    kept = filter_boxes(boxes, min_diagonal, min_side)
    expected = [
        number
        for number, (w, h) in enumerate(sizes)
        if w**2 + h**2 >= min_diagonal**2 and min(w, h) >= min_side and min(w, h) > 0
    ]
    assert kept.label.tolist() == expected
    assert np.array_equal(kept.corners, corners[expected])
    assert np.array_equal(kept.score, boxes.score[expected])


@pytest.mark.parametrize(
    ("size", "passes"),
    [((10, 29), True), ((9.9, 29), False), ((29, 9.9), False), ((18, 24), True), ((17.9, 24), False)],
)
def test_limits_of_gen1_are_inclusive(size, passes):
    assert len(GEN1.apply(box(5, 5, *size), 500_001).label) == passes


def rvt_filter(boxes, min_diagonal, min_side):
    """The protocol in plain words: float32 width and height from the corners, each compared as it is."""
    kept = []
    for number, (left, top, right, bottom) in enumerate(boxes.corners):
        width, height = np.float32(right - left), np.float32(bottom - top)
        diagonal = np.float32(width * width) + np.float32(height * height)
        if width >= min_side and height >= min_side and diagonal >= min_diagonal**2 and width > 0 and height > 0:
            kept.append(number)
    return kept


near_the_limits = st.sampled_from([9.9995, 9.999999, 10, 10.0005, 18, 23.9995, 24, 29.9999, 30, 40])


@given(
    st.lists(st.tuples(st.floats(-20, 300), st.floats(-20, 240), near_the_limits, near_the_limits), max_size=12),
    st.sampled_from([(30, 10), (15, 5), (0, 0)]),
)
def test_sizes_at_the_limits_are_decided_as_the_protocol_decides(places, limits):
    corners = np.array([(x, y, x + w, y + h) for x, y, w, h in places]).reshape(-1, 4)
    boxes = make_boxes(corners, np.arange(len(places)))
    assert filter_boxes(boxes, *limits).label.tolist() == rvt_filter(boxes, *limits)


@pytest.mark.parametrize("short", [(9.9995, 40), (40, 9.9995), (17.9995, 24), (18, 23.9995)])
def test_a_box_that_misses_a_limit_by_less_than_a_thousandth_of_a_pixel_does_not_count(short):
    # At 0 a size is exact in float32, so that nothing but the limit decides.
    assert not len(GEN1.apply(box(0, 0, *short), 500_001).label)


@pytest.mark.parametrize("size", [(0, 0), (0, 50), (50, 0), (-20, 50)])
def test_boxes_without_an_area_are_never_kept(size):
    assert not len(filter_boxes(box(5, 5, *size), 0, 0).label)


@pytest.mark.parametrize(("time_us", "passes"), [(0, False), (500_000, False), (500_001, True)])
def test_the_first_half_second_is_left_out(time_us, passes):
    assert len(GEN1.apply(box(5, 5, 50, 50), time_us).label) == passes


def test_a_filter_says_what_it_keeps():
    assert GEN1.describe() == "time > 0.5 s, diagonal >= 30 px, width and height >= 10 px"


@pytest.mark.parametrize("numbers", [(-1, 10, 0), (30, -1, 0), (30, 10, -1)])
def test_negative_limits_are_refused(numbers):
    with pytest.raises(ValueError, match="no negative numbers"):
        BoxFilter(*numbers)
