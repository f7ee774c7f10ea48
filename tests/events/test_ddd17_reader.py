"""Recording folders of the DDD17 archive."""

import json

import numpy as np
import pytest
from event_cases import assert_same_events, random_events
from recording_files import ddd17

from tespec.core.errors import UserError
from tespec.datasets import ddd17 as ddd17_reader
from tespec.datasets.ddd17 import Ddd17, image_index
from tespec.events import Events, EventStream, open_events

EPOCH_US = 1_487_842_276_585_000  # a day in 2017: in ns it does not fit a double
EVENTS = random_events(2_000, height=260, width=346, start=EPOCH_US, end=EPOCH_US + 200_000)
WHOLE = (EPOCH_US, EPOCH_US + 200_000)


@pytest.mark.parametrize("ticks_per_us", [1, 1000])
@pytest.mark.parametrize("frame_period_us", [10_000, 33_000, 100_000])
def test_times_come_out_in_microseconds_whatever_the_unit(tmp_path, ticks_per_us, frame_period_us):
    folder = ddd17(tmp_path / "dir0", EVENTS, ticks_per_us=ticks_per_us, frame_period_us=frame_period_us)
    stream = open_events(folder)
    assert isinstance(stream, EventStream)
    assert (stream.height, stream.width, stream.count, stream.clamped) == (260, 346, 2_000, 0)
    assert (stream.t_first, stream.t_last) == (EVENTS.t[0], EVENTS.t[-1])
    assert_same_events(stream.slice(*WHOLE), EVENTS)
    times, first_events = image_index(folder)
    assert times.tolist() == (EVENTS.t[0] + frame_period_us * np.arange(1, 5)).tolist()
    np.testing.assert_array_equal(first_events, np.searchsorted(EVENTS.t, times))


def test_nanoseconds_are_cut_to_the_microsecond_and_slices_stay_half_open(tmp_path):
    folder = ddd17(tmp_path / "dir0", EVENTS)
    nanoseconds = np.fromfile(folder / "events.dat.t", "<i8") + np.arange(len(EVENTS.t)) * 999 // len(EVENTS.t)
    nanoseconds.tofile(folder / "events.dat.t")
    stream = open_events(folder)
    t0, t1 = int(EVENTS.t[700]), int(EVENTS.t[1_500])
    kept = (EVENTS.t >= t0) & (EVENTS.t < t1)
    assert_same_events(stream.slice(t0, t1), Events(*(column[kept] for column in EVENTS)))


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_times_that_step_back_are_raised(tmp_path, monkeypatch, block):
    monkeypatch.setattr(ddd17_reader, "BLOCK", block)
    t = EVENTS.t.copy()
    t[100] -= 5_000
    stream = open_events(ddd17(tmp_path / "dir0", EVENTS._replace(t=t)))
    assert stream.clamped == 1
    np.testing.assert_array_equal(stream.slice(*WHOLE).t, np.maximum.accumulate(t))


def test_the_sensor_is_the_given_one_else_that_of_the_data_set(tmp_path):
    events = random_events(500, height=80, width=96, end=100_000)
    folder = ddd17(tmp_path / "dir0", events)
    (tmp_path / "dataset.json").write_text(json.dumps({"sensor": {"height": 80, "width": 96}}))
    assert (Ddd17.reader(folder).height, Ddd17.reader(folder).width) == (80, 96)
    assert Ddd17.reader(folder, 120, 160).height == 120


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ('{"sensor": 7}', "does not name the sensor's size"),
        ('{"sensor": {"height": 1e999, "width": 96}}', "does not name the sensor's size"),
        ('{"sensor": {"height": -80, "width": 96}}', "names a sensor of 96x-80 px"),
        ('{"sensor": {"height": 80, "width": 1000000}}', "names a sensor of 1000000x80 px"),
    ],
)
def test_a_size_that_is_none_is_refused(tmp_path, facts, message):
    folder = ddd17(tmp_path / "dir0", EVENTS)
    (tmp_path / "dataset.json").write_text(facts)
    with pytest.raises(UserError, match=message):
        Ddd17.reader(folder)


def test_events_outside_of_the_sensor_are_refused(tmp_path):
    folder = ddd17(tmp_path / "dir0", EVENTS)
    with pytest.raises(UserError, match="has events outside of the 300x260 px sensor"):
        open_events(folder, 260, 300)


def cut(path, count):
    path.write_bytes(path.read_bytes()[:-count])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "events.dat.t").unlink(), r"events\.dat\.t: no such file"),
        (lambda f: (f / "events.dat.xyp").unlink(), r"events\.dat\.xyp: no such file"),
        (lambda f: (f / "events.dat.t").write_bytes(b""), r"events\.dat\.t: the file is empty"),
        (lambda f: (f / "events.dat.xyp").write_bytes(b""), r"events\.dat\.xyp: the file is empty"),
        (lambda f: cut(f / "events.dat.t", 3), "truncated: 5 bytes after the last whole time"),
        (lambda f: cut(f / "events.dat.t", 8), r"has 12000 bytes, not the 11994 of 1999 events"),
        (lambda f: cut(f / "events.dat.xyp", 6), "copy both files again"),
        (lambda f: (f / "index" / "index_50ms.npy").unlink(), "holds none of index_50ms"),
        (lambda f: cut(f / "index" / "index_50ms.npy", 5), r"index_50ms\.npy: not a readable \.npy file"),
        (lambda f: np.save(f / "index" / "index_50ms.npy", np.zeros((4, 2), int)), r"has shape \(4, 2\)"),
        (lambda f: np.save(f / "index" / "index_50ms.npy", np.full((4, 3), np.nan)), "other things than numbers"),
        (lambda f: np.save(f / "index" / "index_50ms.npy", np.zeros((4, 3), int)), "images are 0 ticks apart"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, damage, message):
    folder = ddd17(tmp_path / "dir0", EVENTS)
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        open_events(folder)
    assert str(folder) in str(caught.value)


def test_any_of_the_three_indices_will_do(tmp_path):
    folder = ddd17(tmp_path / "dir0", EVENTS)
    (folder / "index" / "index_50ms.npy").rename(folder / "index" / "index_250ms.npy")
    assert open_events(folder).count == 2_000
