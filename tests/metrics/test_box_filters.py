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


@pytest.mark.parametrize("size", [(0, 0), (0, 50), (50, 0), (-20, 50)])
def test_boxes_without_an_area_are_never_kept(size):
    assert not len(filter_boxes(box(5, 5, *size), 0, 0).label)


@pytest.mark.parametrize(("time_us", "passes"), [(0, False), (500_000, False), (500_001, True)])
def test_the_first_half_second_is_left_out(time_us, passes):
    assert len(GEN1.apply(box(5, 5, 50, 50), time_us).label) == passes


@pytest.mark.parametrize("numbers", [(-1, 10, 0), (30, -1, 0), (30, 10, -1)])
def test_negative_limits_are_refused(numbers):
    with pytest.raises(ValueError, match="no negative numbers"):
        BoxFilter(*numbers)
