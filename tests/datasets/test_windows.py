import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tespec.datasets.windows import windows_of_length, windows_side_by_side, windows_since_last

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
