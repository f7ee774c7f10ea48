"""DDD17: time units, masks and their events; `tests/twins` covers damaged folders."""

import zipfile

import numpy as np
import pytest
from ddd17_copies import png
from event_files import assert_same_events, ddd17, plain_histogram, random_events, whole
from twins import opened

from tespec.core.errors import UserError
from tespec.core.settings import Binning
from tespec.datasets.sources import EventSource, pack_missing
from tespec.events import open_events
from tespec.events.readers.ddd17 import read_image_times

EPOCH_US = 1_487_842_276_585_000  # a day in 2017; in ns it is not exact in float64


def official_mask(number):
    mask = np.random.default_rng(number).integers(0, 6, (200, 346), np.uint8)
    mask[0] = 255
    return mask


def write_official(root, ticks=1000, masks=range(1, 9), start_us=5_000_000):
    """Write a recording like an official one: 346x260 px, an image every 30 ms, masks of 200 rows,
    no dataset.json.
    """
    events = random_events(4000, height=260, width=346, start=start_us, end=start_us + 320_000)
    folder = ddd17(root / "dir1", events, ticks_per_us=ticks, frame_period_us=30_000, images=10)
    with zipfile.ZipFile(folder / "segmentation_masks.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in masks:
            archive.writestr(
                f"segmentation_masks/segmentation_{number:08d}.png", png(official_mask(number))
            )
    return events, events.t[0] + 30_000 * np.arange(1, 11)


def open_test(root):
    (recording,) = opened(root, "ddd17").recordings("test")
    return recording


@pytest.mark.parametrize("ticks", [1, 1000])
@pytest.mark.parametrize("start_us", [5_000_000, EPOCH_US])
def test_official_sizes_and_units(tmp_path, ticks, start_us):
    events, stamps = write_official(tmp_path, ticks=ticks, start_us=start_us)
    stream = open_events(tmp_path / "dir1")
    assert (stream.height, stream.width) == (260, 346)
    assert_same_events(whole(stream), events)
    np.testing.assert_equal(read_image_times(tmp_path / "dir1")[::2], (stamps, ticks))
    recording = open_test(tmp_path)
    assert (recording.region.height, recording.region.width, recording.ego_speed) == (
        200,
        346,
        None,
    )
    np.testing.assert_array_equal(recording.label_times, stamps[:8])
    expected = plain_histogram(
        *events, t_start=stamps[2], t_end=stamps[3], bins=5, height=260, width=346
    )
    np.testing.assert_array_equal(
        recording.histograms(3, 1, Binning(5, "edges"))[0], expected[:, :200]
    )
    np.testing.assert_array_equal(recording.labels[3], official_mask(4))


def test_nanoseconds_are_cut_and_steps_back_are_raised_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("tespec.events.readers.BLOCK", 7)
    events, _ = write_official(tmp_path)
    before, t = events.t.copy(), events.t
    t[100] = t[99] - 5_000
    (1000 * t + np.arange(len(t)) * 999 // len(t)).tofile(tmp_path / "dir1" / "events.dat.t")
    stream = open_events(tmp_path / "dir1")
    before[100] = t[99]
    assert stream.clamped == 1
    np.testing.assert_array_equal(stream.slice(t[0], t[-1] + 1).t, before)


def test_the_unit_of_the_index_decides_even_if_the_same_events_are_in_the_cache(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    write_official(tmp_path, ticks=1)
    pack_missing([EventSource(tmp_path / "dir1")])
    packed = open_events(tmp_path / "dir1")
    index = tmp_path / "dir1" / "index" / "index_50ms.npy"
    np.save(index, np.load(index) * (1000, 1, 1))
    stream = open_events(tmp_path / "dir1")
    assert stream.t_last - stream.t_first == pytest.approx(
        (packed.t_last - packed.t_first) / 1000, abs=1
    )


def test_any_index_will_do_and_the_sensor_is_the_given_one(tmp_path):
    write_official(tmp_path)
    index = tmp_path / "dir1" / "index" / "index_50ms.npy"
    index.rename(index.with_name("index_250ms.npy"))
    assert len(open_test(tmp_path)) == 8
    with pytest.raises(UserError, match="has events on 346x260 px, but its sensor has 300x260 px"):
        open_events(tmp_path / "dir1", (260, 300))


def test_events_add_up_where_masks_are_missing_and_each_is_a_label_at_the_time_of_its_image(
    tmp_path,
):
    _, stamps = write_official(tmp_path, masks=[3, 4, 8])
    np.save(tmp_path / "dir1" / "ego_speed.npy", np.arange(10, dtype=np.float32))
    recording = open_test(tmp_path)
    expected = [[stamps[1], stamps[2]], [stamps[2], stamps[3]], [stamps[3], stamps[7]]]
    np.testing.assert_array_equal(recording.windows, expected)
    np.testing.assert_array_equal(
        [recording.labels[index] for index in range(3)], [*map(official_mask, (3, 4, 8))]
    )
    assert (recording.label_times.tolist(), recording.ego_speed.tolist()) == (
        stamps[[2, 3, 7]].tolist(),
        [2, 3, 7],
    )


def test_the_first_image_has_the_events_before_it_and_counts_without_any(tmp_path):
    for name in ("early", "late"):
        events, stamps = write_official(tmp_path / name, masks=[1, 2])
    windows = [[events.t[0], stamps[0]], [stamps[0], stamps[1]]]
    np.testing.assert_array_equal(open_test(tmp_path / "early").windows, windows)
    (1000 * (events.t + 35_000)).tofile(tmp_path / "late" / "dir1" / "events.dat.t")
    assert not open_test(tmp_path / "late").histograms(0, 1, Binning(10, "edges")).any()
