"""The NumPy and numba path of event histograms."""

import subprocess
import sys

import numpy as np
import pytest
from event_cases import HEIGHT, WIDTH, event_arrays, plain_histogram, random_events
from hypothesis import given
from hypothesis import strategies as st

from tespec.events import Events, event_histogram

WINDOW = {"t_start": 0, "t_end": 3_000, "height": HEIGHT, "width": WIDTH}


@given(event_arrays(), st.integers(1, 11), st.sampled_from(["edges", "rvt"]), st.sampled_from([1, 10, 255]))
def test_it_counts_as_the_plain_way_does(events, bins, rule, clip):
    options = WINDOW | {"bins": bins, "rule": rule, "clip": clip}
    found = event_histogram(*events, **options)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, plain_histogram(*events, **options))


def test_worked_example():
    events = Events(
        np.array([1, 1, 1, 3], np.uint16),
        np.array([0, 0, 0, 2], np.uint16),
        np.array([0, 4, 5, 9]),
        np.array([0, 0, 1, 1], np.uint8),
    )
    histogram = event_histogram(*events, t_start=0, t_end=10, bins=2, height=3, width=4)
    wanted = np.zeros((4, 3, 4), np.uint8)
    wanted[0, 0, 1] = 2  # negative, first half
    wanted[3, 0, 1] = 1  # positive, second half
    wanted[3, 2, 3] = 1
    np.testing.assert_array_equal(histogram, wanted)


def test_the_rules_part_ways_in_a_sparse_window():
    t = np.array([20_000, 21_000, 30_000])
    zeros = np.zeros(3, np.uint16)
    options = {"t_start": 0, "t_end": 50_000, "bins": 10, "height": 1, "width": 1}

    def bins_of(rule):
        histogram = event_histogram(zeros, zeros, t, zeros.astype(np.uint8), rule=rule, **options)
        return np.repeat(np.arange(20), histogram.ravel()).tolist()

    assert bins_of("edges") == [4, 4, 6]
    assert bins_of("rvt") == [0, 1, 9]


def test_hot_pixels_saturate():
    events = random_events(5_000, height=1, width=1)
    histogram = event_histogram(*events, t_start=0, t_end=50_000, bins=1, height=1, width=1, clip=255)
    assert histogram.ravel().tolist() == [255, 255]


@given(event_arrays(), st.sampled_from(["edges", "rvt"]))
def test_mirrored_events_give_the_mirrored_histogram(events, rule):
    options = WINDOW | {"bins": 5, "rule": rule}
    mirrored = events._replace(x=(WIDTH - 1 - events.x).astype(np.uint16))
    np.testing.assert_array_equal(event_histogram(*mirrored, **options), event_histogram(*events, **options)[..., ::-1])


@given(event_arrays(largest=200), st.integers(0, 200))
def test_parts_of_the_events_add_up_where_nothing_is_clipped(events, cut):
    options = WINDOW | {"bins": 5, "clip": 255}
    whole = event_histogram(*events, **options)
    parts = [
        event_histogram(*(column[part] for column in events), **options) for part in (slice(cut), slice(cut, None))
    ]
    np.testing.assert_array_equal(whole, parts[0] + parts[1])


@given(event_arrays())
def test_swapped_polarity_swaps_the_halves(events):
    options = WINDOW | {"bins": 4}
    swapped = event_histogram(*events._replace(p=1 - events.p), **options)
    np.testing.assert_array_equal(swapped, np.roll(event_histogram(*events, **options), 4, axis=0))


def test_counting_goes_on_in_a_given_array():
    events = random_events(500)
    options = {"t_start": 0, "t_end": 50_000, "bins": 2, "height": HEIGHT, "width": WIDTH, "clip": 255}
    out = event_histogram(*events, **options)
    once = out.copy()
    assert event_histogram(*events, out=out, **options) is out
    np.testing.assert_array_equal(out, 2 * once)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint32])
def test_any_integer_type_and_any_stride_is_taken(dtype):
    events = random_events(500)
    options = {"t_start": 0, "t_end": 50_000, "bins": 4, "height": HEIGHT, "width": WIDTH}
    table = np.stack([events.x, events.y, events.p], axis=1).astype(dtype)
    found = event_histogram(table[:, 0], table[:, 1], events.t, table[:, 2], **options)
    np.testing.assert_array_equal(found, event_histogram(*events, **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [0, WIDTH]}, "x has values outside of 0 to 7"),
        ({"x": [0, -1]}, "x has values"),
        ({"y": [HEIGHT, 0]}, "y has values"),
        ({"p": [0, -1]}, "p has values"),
        ({"t": [5, 4]}, "not sorted"),
        ({"t": [5]}, "shapes"),
    ],
)
def test_events_that_cannot_be_counted_are_refused(change, message):
    columns = {name: np.array(change.get(name, [0, 1])) for name in ("x", "y", "t", "p")}
    with pytest.raises(ValueError, match=message):
        event_histogram(*columns.values(), bins=2, **WINDOW)


@pytest.mark.parametrize("out", [np.zeros((4, HEIGHT, WIDTH), np.int8), np.zeros((WIDTH, HEIGHT, 4), np.uint8).T[:1]])
def test_an_array_that_cannot_hold_the_counts_is_refused(out):
    with pytest.raises(ValueError, match="out must be"):
        event_histogram(*random_events(3), bins=2, out=out, **WINDOW)


def test_importing_events_does_not_import_torch():
    code = "import sys, tespec.events; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
