"""Events in memory."""

import numpy as np
import pytest
from event_cases import assert_same_events, random_events

from tespec.events import ArrayStream, Events, EventStream


def stream_of(t, *, x=0, y=0, p=0, height=4, width=5):
    count = len(t)
    return ArrayStream(
        *(np.full(count, value) for value in (x, y)), np.array(t, np.int64), np.full(count, p), height, width
    )


def test_it_is_an_event_stream():
    assert isinstance(stream_of([1, 2]), EventStream)


def test_a_slice_begins_with_its_first_time_and_ends_before_its_last():
    stream = stream_of([10, 20, 20, 30])
    assert stream.slice(10, 20).t.tolist() == [10]
    assert stream.slice(20, 30).t.tolist() == [20, 20]
    assert stream.slice(-5, 1000).t.tolist() == [10, 20, 20, 30]
    assert stream.slice(31, 40).t.tolist() == []
    assert (stream.count, stream.t_first, stream.t_last) == (4, 10, 30)


def test_slices_have_the_types_of_the_interface():
    events = random_events(50)
    stream = ArrayStream(*(column.astype(np.int32) for column in events), 6, 8)
    assert_same_events(stream.slice(0, 50_000), events)


def test_times_that_step_back_are_raised_and_counted():
    stream = stream_of([5, 9, 7, 8, 9, 12])
    assert stream.slice(0, 100).t.tolist() == [5, 9, 9, 9, 9, 12]
    assert stream.clamped == 2


def test_a_stream_may_be_empty():
    stream = stream_of([])
    assert (stream.count, stream.t_first, stream.t_last, stream.clamped) == (0, 0, 0, 0)
    assert all(len(column) == 0 for column in stream.slice(0, 10))


@pytest.mark.parametrize("change", [{"x": 5}, {"y": 4}, {"x": -1}, {"p": 2}, {"p": -1}])
def test_values_that_no_event_of_the_sensor_has_are_refused(change):
    with pytest.raises(ValueError, match="outside of 0 to"):
        stream_of([1, 2], **change)


def test_arrays_that_are_not_events_are_refused():
    x, y, t, p = Events(*(np.zeros(3, int) for _ in range(4)))
    with pytest.raises(ValueError, match="shapes"):
        ArrayStream(x, y, t[:2], p, 4, 5)
    with pytest.raises(ValueError, match="shapes"):
        ArrayStream(*(column[:, None] for column in (x, y, t, p)), 4, 5)
    with pytest.raises(ValueError, match="whole numbers"):
        ArrayStream(x, y, t / 2, p, 4, 5)
