"""Prophesee .dat files."""

import numpy as np
import pytest
from event_cases import assert_same_events, event_arrays, random_events
from hypothesis import HealthCheck, given, settings
from recording_files import dat

from tespec.core.errors import UserError
from tespec.events import Events, PackedEvents, load_events, open_events
from tespec.events.opening import open_reader
from tespec.events.packing import pack
from tespec.events.readers import prophesee
from tespec.events.readers.prophesee import write_dat


def test_words_are_read_as_described(tmp_path):
    path = dat(tmp_path / "a_td.dat", [(3, 2, 100, 1), (639, 479, 2**31 + 5, 0)])
    stream = open_events(path)
    assert isinstance(stream, PackedEvents)
    assert (stream.height, stream.width, stream.count) == (480, 640, 2)
    assert (stream.t_first, stream.t_last) == (100, 2**31 + 5)
    events = stream.slice(0, 2**32)
    assert [column.tolist() for column in events] == [[3, 639], [2, 479], [100, 2**31 + 5], [1, 0]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(event_arrays(start=0))
def test_what_is_written_is_read(tmp_path, events):
    path = tmp_path / "a.dat"
    write_dat(path, *events, 6, 8)
    if not len(events.t):
        with pytest.raises(UserError, match="holds no events"):
            open_events(path)
        return
    stream = open_events(path)
    assert (stream.height, stream.width, stream.count, stream.clamped) == (6, 8, len(events.t), 0)
    assert_same_events(stream.slice(0, 10_000), events)


def test_slices_are_half_open_within_and_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(prophesee, "BLOCK", 1_000)
    events = random_events(3_005, end=700)
    write_dat(tmp_path / "a.dat", *events, 6, 8)
    stream = open_events(tmp_path / "a.dat")
    for t0, t1 in [(0, 700), (5, 5), (5, 6), (100, 350), (650, 10_000), (-10, 0), (700, 900)]:
        kept = (events.t >= t0) & (events.t < t1)
        assert_same_events(stream.slice(t0, t1), Events(*(column[kept] for column in events)))


def test_times_that_step_back_are_raised_in_every_slice(tmp_path, monkeypatch):
    monkeypatch.setattr(prophesee, "BLOCK", 10_000)
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, 10_000, 30_000)) - rng.integers(0, 3, 30_000)
    times = np.maximum(times, 0)
    path = dat(tmp_path / "a.dat", [(1, 1, int(t), 1) for t in times])
    stream, raised = open_events(path), np.maximum.accumulate(times)
    assert stream.clamped == (raised != times).sum() > 0
    for t0, t1 in [(0, 20_000), (17, 18), (3_000, 3_400), (9_990, 20_000)]:
        np.testing.assert_array_equal(stream.slice(t0, t1).t, raised[(raised >= t0) & (raised < t1)])


@pytest.mark.parametrize("kind", [(0, 8), (12, 8)])
def test_both_types_of_events_are_read(tmp_path, kind):
    assert open_events(dat(tmp_path / "a.dat", [(1, 2, 3, 1)], kind=kind)).count == 1


def test_a_size_may_be_given_where_the_header_has_none(tmp_path):
    path = dat(tmp_path / "a.dat", [(300, 200, 3, 1)], header="% Data file containing CD events.\n")
    stream = open_events(path, height=240, width=304)
    assert (stream.height, stream.width) == (240, 304)
    with pytest.raises(UserError, match="does not name the sensor's size; give --sensor"):
        open_events(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"header": "% Version 1\n% Height 480\n% Width 640\n"},
            "is version 1 of the format; give a file of version 2",
        ),
        ({"kind": (14, 8)}, "event type is 14 of 8 bytes"),
        ({"kind": (12, 16)}, "event type is 12 of 16 bytes"),
        ({"kind": ()}, "event type is"),
        ({"header": ""}, "does not begin with a header"),
        ({"header": "% Height 480"}, "its header does not end"),
        ({"header": "% Height 480\n% Width 0\n"}, "a sensor of 0x480 px"),
        ({"header": "% Height 480\n% Width 2\n"}, "has events on 4x3 px, its sensor is 2x480 px"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path, options, message):
    path = dat(tmp_path / "a.dat", [(3, 2, 1, 1)] * 2, **options)
    with pytest.raises(UserError, match=message) as caught:
        open_events(path)
    assert str(path) in str(caught.value)


def test_a_truncated_file_is_refused(tmp_path):
    path = dat(tmp_path / "a.dat", [(3, 2, 1, 1)] * 5)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="truncated: 5 bytes after the last whole event; copy it again"):
        open_events(path)


@pytest.mark.parametrize("t", [[-1, 5], [5, 2**32]])
def test_times_that_do_not_fit_are_not_written(tmp_path, t):
    zeros = np.zeros(2, int)
    with pytest.raises(ValueError, match="do not fit 32 bits"):
        write_dat(tmp_path / "a.dat", zeros, zeros, np.array(t), zeros, 4, 4)
    assert not list(tmp_path.iterdir())


WRAP = 1 << 32


def wrapped(path, times):
    """A file whose clock of 32 bits has gone through `times` us."""
    return dat(path, [(number % 640, number % 480, int(t) % WRAP, number % 2) for number, t in enumerate(times)])


def test_time_goes_on_where_its_32_bits_end(tmp_path, monkeypatch):
    monkeypatch.setattr(prophesee, "BLOCK", 7_000)
    rng = np.random.default_rng(0)
    # Three hours, over two ends of the clock; more events than a block, and some that step back, across an end as well.
    times = np.sort(rng.integers(WRAP - 1_800_000_000, 3 * WRAP - 2_000_000_000, 50_000))
    times[20_000] -= 700_000
    ends = np.searchsorted(times, [WRAP, 2 * WRAP])
    times[ends] = [WRAP + 3, 2 * WRAP]
    times[ends + 1] = [WRAP - 9, 2 * WRAP + 5]
    raised = np.maximum.accumulate(times)
    path = wrapped(tmp_path / "a.dat", times)
    for stream in (load_events(path), open_events(path)):
        assert (stream.count, stream.t_first, stream.t_last) == (50_000, times[0], raised[-1])
        assert stream.clamped == (raised != times).sum() > 1
        np.testing.assert_array_equal(stream.slice(0, 3 * WRAP).t, raised)
        for t0, t1 in [(WRAP - 5_000_000, WRAP + 5_000_000), (2 * WRAP, 2 * WRAP + 1), (2 * WRAP - 7, 3 * WRAP)]:
            inside = (raised >= t0) & (raised < t1)
            found = stream.slice(t0, t1)
            np.testing.assert_array_equal(found.t, raised[inside])
            np.testing.assert_array_equal(found.x, (np.arange(50_000) % 640)[inside])


def test_nothing_is_lost_when_such_a_file_is_packed(tmp_path):
    times = np.arange(WRAP - 2_000_000, WRAP + 2_000_000, 1_000)
    path = wrapped(tmp_path / "a.dat", times)
    store = open_events(pack(open_reader(path), tmp_path / "store", path))
    assert (store.count, store.clamped) == (4_000, 0)
    np.testing.assert_array_equal(store.slice(0, 2 * WRAP).t, times)


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([3_000_000_000, 1_000_000_000, 3_000_000_001], [3_000_000_000, 3_000_000_000, 3_000_000_001]),
        ([3_000_000_000, 800_000_000], [3_000_000_000, WRAP + 800_000_000]),
        ([3, WRAP - 2, 5], [3, 3, 5]),  # right after the clock's start as well
        ([WRAP - 1, 0, WRAP - 2, 1], [WRAP - 1, WRAP, WRAP, WRAP + 1]),
    ],
)
def test_half_of_the_clock_tells_a_step_back_from_its_end(tmp_path, times, wanted):
    stream = open_events(dat(tmp_path / "a.dat", [(1, 1, t, 1) for t in times]))
    assert stream.slice(0, 2 * WRAP).t.tolist() == wanted
    assert stream.t_last == wanted[-1]
