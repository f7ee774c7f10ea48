"""DDD17: units of time, masks and their events, and what a damaged folder is refused for."""

import io
import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest
from ddd17_copies import copy_archive, extract, open_ddd17, png, write_official
from PIL import Image

from tespec.core.errors import UserError
from tespec.datasets import ddd17
from tespec.datasets.ddd17 import Ddd17, image_index
from tespec.events import event_histogram, load_events

EPOCH_US = 1_487_842_276_585_000  # a day in 2017: in ns it does not fit a double


def open_test(root, window_ms=None):
    (recording,) = open_ddd17(root, window_ms).recordings("test")
    return recording


@pytest.fixture
def archive(tiny_world, tmp_path):
    return copy_archive(tiny_world, tmp_path)


@pytest.mark.parametrize("ticks", [1, 1000])
@pytest.mark.parametrize("start_us", [5_000_000, EPOCH_US])
def test_official_sizes_and_units(tmp_path, ticks, start_us):
    t, xyp, stamps = write_official(tmp_path, ticks=ticks, start_us=start_us)
    stream = load_events(tmp_path / "dir1")
    assert (stream.height, stream.width, stream.count) == (260, 346, len(t))
    for found, expected in zip(stream.slice(t[0], t[-1] + 1), (*xyp.T[:2], t, xyp.T[2]), strict=True):
        np.testing.assert_array_equal(found, expected)
    times, first_events = image_index(tmp_path / "dir1")
    np.testing.assert_array_equal(times, stamps)
    np.testing.assert_array_equal(first_events, np.searchsorted(t, stamps))
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


def test_any_index_and_the_folder_above_data_will_do(tmp_path):
    write_official(tmp_path / "ddd17_seg" / "data")
    index = tmp_path / "ddd17_seg" / "data" / "dir1" / "index"
    (index / "index_50ms.npy").rename(index / "index_250ms.npy")
    assert len(open_test(tmp_path / "ddd17_seg")) == 8


def test_the_sensor_is_the_given_one_else_that_of_the_archive(tmp_path):
    write_official(tmp_path)
    assert Ddd17.reader(tmp_path / "dir1", 300, 400).height == 300
    with pytest.raises(UserError, match="has events outside of the 300x260 px sensor"):
        load_events(tmp_path / "dir1", 260, 300)


def test_every_mask_is_a_label_at_the_time_of_its_image_zipped_or_not(archive):
    recording = open_test(archive)
    index = np.load(archive / "dir2" / "index" / "index_50ms.npy")
    speed = np.load(archive / "dir2" / "ego_speed.npy")
    with zipfile.ZipFile(archive / "dir2" / "segmentation_masks.zip") as masks:
        names = sorted(masks.namelist())
        stored = [np.asarray(Image.open(io.BytesIO(masks.read(name)))) for name in names]
    images = [int(name[-12:-4]) - 1 for name in names]
    np.testing.assert_array_equal(recording.label_times, index[images, 0] // 1000)
    np.testing.assert_array_equal(recording.ego_speed, speed[images])
    checksums = recording.labels.checksums()
    np.testing.assert_array_equal([recording.labels[number] for number in range(len(names))], stored)
    extract(archive / "dir2")
    extracted = open_test(archive)
    np.testing.assert_array_equal([extracted.labels[number] for number in range(len(names))], stored)
    assert extracted.labels.checksums() == checksums


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


def test_recordings_travel_to_workers_closed(archive):
    recording = open_test(archive)
    recording.histograms(0, 1, 10, "edges")
    content = pickle.dumps(recording)
    assert len(content) < 10_000
    copy = pickle.loads(content)
    np.testing.assert_array_equal(copy.histograms(5, 2, 10, "edges"), recording.histograms(5, 2, 10, "edges"))
    np.testing.assert_array_equal(copy.labels[5], recording.labels[5])


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def cut_events(recording):
    count = (recording / "events.dat.t").stat().st_size // 16
    cut(recording / "events.dat.t", 8 * count)
    cut(recording / "events.dat.xyp", 6 * count)


def describe(root, **changes):
    path = root / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_index(root, change):
    path = root / "dir2" / "index" / "index_50ms.npy"
    index = np.load(path)
    np.save(path, change(index))


def rename_mask(root, name):
    folder = extract(root / "dir2")
    min(folder.iterdir()).rename(folder / name)


def rewrite_mask(image):
    return lambda root: min(extract(root / "dir2").iterdir()).write_bytes(png(image))


T, XYP = "dir2/events.dat.t", "dir2/events.dat.xyp"
BROKEN = [
    (shutil.rmtree, "ddd17: no such folder"),
    (lambda root: shutil.rmtree(root / "dir2"), "dir2: recording of the test split is missing"),
    (lambda root: describe(root, splits={"train": ["dir2"]}), "no recordings are named for split test"),
    (lambda root: describe(root, splits={"train": ["dir2"], "test": ["dir2"]}), "a recording of both train and test"),
    (lambda root: describe(root, classes=["road", "car"]), "its classes are road, car, not flat"),
    (lambda root: describe(root, label_rows=81), "has 80 rows, of which 81"),
    (lambda root: (root / "dir2" / "segmentation_masks.zip").unlink(), "has neither segmentation_masks"),
    (lambda root: cut(root / "dir2" / "segmentation_masks.zip", 999), "not a readable zip archive"),
    (lambda root: [path.unlink() for path in extract(root / "dir2").iterdir()], "segmentation_masks: holds no masks"),
    (lambda root: rename_mask(root, "a_00000999.png"), "mask 999 has no image among 66"),
    (lambda root: rename_mask(root, "a_00000000.png"), "mask 0 has no image"),
    (lambda root: rename_mask(root, "a_00000009.png"), r"a_00000009.png and mask_00000009.png are both mask 9"),
    (lambda root: cut(root / T, 0), r"events\.dat\.t: the file is empty"),
    (lambda root: cut(root / T, 803), "truncated: 3 bytes after the last whole time"),
    (lambda root: cut(root / T, 800), r"events\.dat\.xyp: has \d+ bytes, not the 600 of 100 events"),
    (lambda root: cut(root / XYP, 601), r"events\.dat\.xyp: has 601 bytes"),
    (lambda root: cut_events(root / "dir2"), r"events\.dat\.xyp: truncated: \d+ events, the masks"),
    (lambda root: (root / T).unlink(), r"events\.dat\.t: no such file"),
    (lambda root: (root / XYP).unlink(), r"events\.dat\.xyp: no such file"),
    (lambda root: shutil.rmtree(root / "dir2" / "index"), "index: holds none of index_50ms"),
    (lambda root: cut(root / "dir2" / "index" / "index_50ms.npy", 300), r"index_50ms\.npy: not a readable \.npy file"),
    (lambda root: change_index(root, lambda index: index[:, :2]), r"has shape \(66, 2\)"),
    (lambda root: change_index(root, lambda index: np.full((4, 3), np.nan)), "other things than numbers"),
    (lambda root: change_index(root, lambda index: 0 * index), "images are 0 ticks apart"),
    (lambda root: change_index(root, lambda index: index + np.array([10**12, 0, 0])), "its labels lie at "),
    (lambda root: change_index(root, lambda index: index[np.r_[:20, 19, 21:66]]), "step back or repeat"),
    (lambda root: np.save(root / "dir2" / "ego_speed.npy", np.zeros(3, np.float32)),
     r"ego_speed.npy: holds float32 of shape \(3,\) for 66 images"),
    (rewrite_mask(np.zeros((64, 95), np.uint8)), r"label 0 \(mask_\d{8}.png\): mask has 95x64 px"),
    (rewrite_mask(np.full((64, 96), 6, np.uint8)), r"label 0 \(mask_\d{8}.png\): mask holds class 6 of 6"),
    (rewrite_mask(np.zeros((64, 96, 3), np.uint8)), r"mask_\d{8}.png: is an image of mode RGB"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_a_broken_archive_is_refused_in_one_line(archive, spoil, message):
    spoil(archive)
    with pytest.raises(UserError, match=message) as caught:
        open_test(archive).labels[0]
    assert "\n" not in str(caught.value)
