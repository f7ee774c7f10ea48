import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tespec.datasets.windows import (
    WindowRule,
    windows_of_length,
    windows_on_grid,
    windows_side_by_side,
    windows_since_last,
)

TIMES = st.lists(st.integers(1, 10**7), min_size=1, max_size=20, unique=True).map(sorted).map(np.array)


@given(TIMES)
def test_windows_since_the_last_label_hold_every_event_once(times):
    windows = windows_since_last(times, 0)
    np.testing.assert_array_equal(windows[:, 1], times)
    np.testing.assert_array_equal(windows[1:, 0], windows[:-1, 1])
    assert windows[0, 0] == 0
    assert windows.dtype == np.int64


@given(TIMES, st.integers(1, 10**6))
def test_windows_of_a_length_end_at_their_labels(times, length):
    windows = windows_of_length(times, length)
    np.testing.assert_array_equal(windows[:, 1], times)
    assert (np.diff(windows, axis=1) == length).all()


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**6), st.integers(1, 10**5))
def test_windows_side_by_side_fill_the_time_as_far_as_they_fit(first, duration, length):
    windows = windows_side_by_side(first, first + duration, length)
    assert len(windows) == duration // length
    assert (np.diff(windows.ravel())[::2] == length).all()
    assert (windows.ravel()[2::2] == windows.ravel()[1:-1:2]).all()
    assert not len(windows) or (windows[0, 0] == first and windows[-1, 1] <= first + duration)


@given(TIMES, st.integers(1_000, 10**6))
def test_windows_on_a_grid_hold_every_event_once_and_end_at_the_labels(times, length):
    windows, labelled = windows_on_grid(times, 0, length)
    np.testing.assert_array_equal(windows[labelled, 1], times)
    np.testing.assert_array_equal(windows[1:, 0], windows[:-1, 1])
    assert (np.diff(windows, axis=1) > 0).all()
    assert labelled[-1] == len(windows) - 1
    lead = windows[: labelled[0] + 1]
    assert (np.diff(lead, axis=1) == length).all()
    assert len(lead) == 1 or lead[0, 0] >= 0
    assert lead[0, 0] - length < 0


def test_gen1_has_five_windows_between_labels_and_1mpx_two():
    for spacing, count in ((250_000, 5), (100_000, 2)):
        times = 300_000 + spacing * np.arange(4)
        windows, labelled = windows_on_grid(times, 0, 50_000)
        assert (np.diff(windows, axis=1) == 50_000).all()
        assert np.diff(labelled).tolist() == [count] * 3
        assert labelled[0] == 5


def test_parts_between_labels_are_as_close_to_the_length_as_whole_numbers_allow():
    windows, labelled = windows_on_grid(np.array([100, 103, 250]), 90, 50)
    assert windows.tolist() == [[50, 100], [100, 103], [103, 152], [152, 201], [201, 250]]
    assert labelled.tolist() == [0, 1, 4]


def test_a_rule_chooses_among_the_three():
    times = np.array([200_000, 300_000])
    since_last, each = WindowRule(True, None).apply(times, 0)
    assert since_last.tolist() == [[0, 200_000], [200_000, 300_000]]
    alone, _ = WindowRule(False, 100).apply(times, 0)
    assert alone.tolist() == [[100_000, 200_000], [200_000, 300_000]]
    grid, labelled = WindowRule(True, 50).apply(times, 0)
    assert (len(grid), each.tolist(), labelled.tolist()) == (6, [0, 1], [3, 5])
    with pytest.raises(ValueError, match="need a length"):
        WindowRule(False, None)
