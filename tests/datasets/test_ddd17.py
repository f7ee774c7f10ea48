"""DDD17: units of time, masks and their events; broken folders are among the twins."""

import io
import zipfile

import numpy as np
import pytest
from ddd17_copies import copy_archive, open_ddd17, write_official
from PIL import Image

from tespec.core.errors import UserError
from tespec.datasets import ddd17
from tespec.datasets.ddd17 import image_times
from tespec.events import event_histogram, load_events

EPOCH_US = 1_487_842_276_585_000  # a day in 2017: in ns it does not fit a double


def open_test(root, window_ms=None):
    (recording,) = open_ddd17(root, window_ms).recordings("test")
    return recording


@pytest.mark.parametrize("ticks", [1, 1000])
@pytest.mark.parametrize("start_us", [5_000_000, EPOCH_US])
def test_official_sizes_and_units(tmp_path, ticks, start_us):
    t, xyp, stamps = write_official(tmp_path, ticks=ticks, start_us=start_us)
    stream = load_events(tmp_path / "dir1")
    assert (stream.height, stream.width, stream.count) == (260, 346, len(t))
    for found, expected in zip(stream.slice(t[0], t[-1] + 1), (*xyp.T[:2], t, xyp.T[2]), strict=True):
        np.testing.assert_array_equal(found, expected)
    times, found = image_times(tmp_path / "dir1")
    np.testing.assert_array_equal(times, stamps)
    assert found == ticks
    recording = open_test(tmp_path)
    assert (recording.region.height, recording.region.width, recording.ego_speed) == (200, 346, None)
    np.testing.assert_array_equal(recording.label_times, stamps[:8])
    rows = (t >= stamps[2]) & (t < stamps[3]) & (xyp[:, 1] < 200)
    x, y, p = xyp[rows].T
    edges = {"t_start": int(stamps[2]), "t_end": int(stamps[3])}
    columns = x.astype(np.uint16), y.astype(np.uint16), t[rows], p.astype(np.uint8)
    expected = event_histogram(*columns, **edges, bins=5, height=200, width=346)
    np.testing.assert_array_equal(recording.histograms(3, 1, 5, "edges")[0], expected)
    assert (recording.labels[3][0] == 255).all()


def test_nanoseconds_are_cut_and_steps_back_are_raised_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(ddd17, "BLOCK", 7)
    t, _, _ = write_official(tmp_path)
    before = t.copy()
    t[100] = t[99] - 5_000
    (1000 * t + np.arange(len(t)) * 999 // len(t)).tofile(tmp_path / "dir1" / "events.dat.t")
    stream = load_events(tmp_path / "dir1")
    before[100] = t[99]
    assert stream.clamped == 1
    np.testing.assert_array_equal(stream.slice(t[0], t[-1] + 1).t, before)


def test_any_index_will_do_and_the_sensor_is_the_given_one(tmp_path):
    write_official(tmp_path)
    index = tmp_path / "dir1" / "index" / "index_50ms.npy"
    index.rename(index.with_name("index_250ms.npy"))
    assert len(open_test(tmp_path)) == 8
    with pytest.raises(UserError, match=r"x from \d+ to \d+ on a sensor of 300x260 px"):
        load_events(tmp_path / "dir1", 260, 300)


def test_every_mask_is_a_label_at_the_time_of_its_image(tiny_world, tmp_path):
    archive = copy_archive(tiny_world, tmp_path)
    recording = open_test(archive)
    index = np.load(archive / "dir2" / "index" / "index_50ms.npy")
    speed = np.load(archive / "dir2" / "ego_speed.npy")
    with zipfile.ZipFile(archive / "dir2" / "segmentation_masks.zip") as masks:
        names = sorted(masks.namelist())
        stored = [np.asarray(Image.open(io.BytesIO(masks.read(name)))) for name in names]
    images = [int(name[-12:-4]) - 1 for name in names]
    np.testing.assert_array_equal(recording.label_times, index[images, 0] // 1000)
    np.testing.assert_array_equal(recording.ego_speed, speed[images])
    np.testing.assert_array_equal([recording.labels[number] for number in range(len(names))], stored)


def test_events_add_up_where_masks_are_missing(tmp_path):
    t, _, stamps = write_official(tmp_path, masks=[3, 4, 8])
    recording = open_test(tmp_path)
    expected = [[stamps[1], stamps[2]], [stamps[2], stamps[3]], [stamps[3], stamps[7]]]
    np.testing.assert_array_equal(recording.windows, expected)
    assert len(recording.stream.slice(*recording.windows[2]).t) == ((t >= stamps[3]) & (t < stamps[7])).sum()


def test_the_first_image_has_the_events_before_it_and_counts_without_any(tmp_path):
    t, _, stamps = write_official(tmp_path / "a", masks=[1, 2])
    np.testing.assert_array_equal(open_test(tmp_path / "a").windows, [[t[0], stamps[0]], [stamps[0], stamps[1]]])
    write_official(tmp_path / "b", masks=[1, 2], start_us=0)
    times = np.fromfile(tmp_path / "b" / "dir1" / "events.dat.t", "<i8")
    (times - times[0] + 25_000_000).tofile(tmp_path / "b" / "dir1" / "events.dat.t")
    assert not open_test(tmp_path / "b").histograms(0, 1, 10, "edges").any()
