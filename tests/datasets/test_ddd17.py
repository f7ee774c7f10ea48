import io
import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest
from ddd17_copies import CLASSES, copy_archive, extract, open_ddd17, png, write_official
from PIL import Image

from tespec.core.errors import UserError
from tespec.core.registry import DATASETS
from tespec.events import event_histogram


def open_test(root, window_ms=None):
    (recording,) = open_ddd17(root, window_ms).recordings("test")
    return recording


@pytest.fixture
def archive(tiny_world, tmp_path):
    return copy_archive(tiny_world, tmp_path)


def test_recordings_are_those_of_the_split_in_its_order(tiny_world):
    splits = {"train": ["dir1", "dir0"], "test": ["dir2"]}
    dataset = DATASETS.get("Ddd17")(tiny_world / "ddd17", splits, CLASSES, protocol={"rows": 64})
    for split, names in splits.items():
        assert [recording.name for recording in dataset.recordings(split)] == names


def test_every_mask_is_a_label_at_the_time_of_its_image(archive):
    recording = open_test(archive)
    index = np.load(archive / "dir2" / "index" / "index_50ms.npy")
    speed = np.load(archive / "dir2" / "ego_speed.npy")
    with zipfile.ZipFile(archive / "dir2" / "segmentation_masks.zip") as masks:
        names = sorted(masks.namelist())
        assert len(recording) == len(names)
        for label, name in enumerate(names):
            image = int(name[-12:-4]) - 1
            assert recording.label_times[label] == index[image, 0] // 1000
            assert recording.ego_speed[label] == speed[image]
            expected = np.asarray(Image.open(io.BytesIO(masks.read(name))))
            np.testing.assert_array_equal(recording.labels[label], expected)


def test_official_sizes_and_units(tmp_path):
    for unit, ticks in (("us", 1), ("ns", 1000)):
        t, xyp, stamps = write_official(tmp_path / unit, ticks=ticks)
        recording = open_test(tmp_path / unit)
        assert (recording.region.height, recording.region.width) == (200, 346)
        assert recording.ego_speed is None
        np.testing.assert_array_equal(recording.label_times, stamps[:8])
        rows = (t >= stamps[2]) & (t < stamps[3]) & (xyp[:, 1] < 200)
        x, y, p = xyp[rows].T
        expected = event_histogram(
            x.astype(np.uint16), y.astype(np.uint16), t[rows], p.astype(np.uint8),
            t_start=int(stamps[2]), t_end=int(stamps[3]), bins=5, height=200, width=346,
        )  # fmt: skip
        np.testing.assert_array_equal(recording.histograms(3, 1, 5, "edges")[0], expected)
        assert (recording.labels[3][0] == 255).all()


def test_the_folder_above_data_is_taken_for_it(tmp_path):
    write_official(tmp_path / "ddd17_seg" / "data")
    assert len(open_test(tmp_path / "ddd17_seg")) == 8


def test_events_add_up_where_masks_are_missing(tmp_path):
    t, _, stamps = write_official(tmp_path, masks=[3, 4, 8])
    recording = open_test(tmp_path)
    expected = [[stamps[1], stamps[2]], [stamps[2], stamps[3]], [stamps[3], stamps[7]]]
    np.testing.assert_array_equal(recording.windows, expected)
    assert len(recording.stream.slice(*recording.windows[2]).t) == ((t >= stamps[3]) & (t < stamps[7])).sum()


def test_the_first_image_has_the_events_before_it(tmp_path):
    t, _, stamps = write_official(tmp_path, masks=[1, 2])
    np.testing.assert_array_equal(open_test(tmp_path).windows, [[t[0], stamps[0]], [stamps[0], stamps[1]]])


def test_a_mask_before_the_first_event_is_still_a_label(tmp_path):
    write_official(tmp_path, masks=[1, 2], start_us=0)
    times = np.fromfile(tmp_path / "dir1" / "events.dat.t", "<i8")
    (times - times[0] + 1_000_000).tofile(tmp_path / "dir1" / "events.dat.t")
    recording = open_test(tmp_path)
    assert len(recording) == 2
    assert not recording.histograms(0, 1, 10, "edges").any()


def test_feedforward_windows_end_at_the_label(archive):
    windows = open_test(archive, window_ms=100).windows
    np.testing.assert_array_equal(windows[:, 1], open_test(archive).label_times)
    np.testing.assert_array_equal(windows[:, 1] - windows[:, 0], 100_000)


def test_extracted_masks_are_the_same_labels(archive):
    zipped = open_test(archive)
    before = [zipped.labels[index] for index in range(len(zipped))]
    checksums = zipped.labels.checksums()
    extract(archive / "dir2")
    extracted = open_test(archive)
    np.testing.assert_array_equal([extracted.labels[index] for index in range(len(extracted))], before)
    assert extracted.labels.checksums() == checksums


def test_recordings_travel_to_workers_closed(archive):
    recording = open_test(archive)
    recording.histograms(0, 1, 10, "edges")
    content = pickle.dumps(recording)
    assert len(content) < 10_000
    copy = pickle.loads(content)
    np.testing.assert_array_equal(copy.histograms(5, 2, 10, "edges"), recording.histograms(5, 2, 10, "edges"))
    np.testing.assert_array_equal(copy.labels[5], recording.labels[5])


def rewrite_mask(recording, image):
    first = min(extract(recording).iterdir())
    first.write_bytes(png(image))


def cut(path, size):
    content = path.read_bytes()
    path.write_bytes(content[:size])


def cut_events(recording):
    count = (recording / "events.dat.t").stat().st_size // 16
    cut(recording / "events.dat.t", 8 * count)
    cut(recording / "events.dat.xyp", 6 * count)


def describe(root, **changes):
    path = root / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def shift_index(recording):
    path = recording / "index" / "index_50ms.npy"
    index = np.load(path)
    index[:, 0] += 10**12
    np.save(path, index)


def repeat_images(recording):
    path = recording / "index" / "index_50ms.npy"
    index = np.load(path)
    index[20] = index[19]
    np.save(path, index)


def rename_mask(recording, name):
    folder = extract(recording)
    min(folder.iterdir()).rename(folder / name)


BROKEN = {
    "root missing": (shutil.rmtree, "ddd17: no such folder"),
    "recording missing": (lambda root: shutil.rmtree(root / "dir2"), "dir2: recording of the test split is missing"),
    "split without recordings": (lambda root: describe(root, splits={"train": ["dir2"]}), "named for split test"),
    "other classes": (lambda root: describe(root, classes=["road", "car"]), "its classes are road, car, not flat"),
    "description torn": (lambda root: cut(root / "dataset.json", 60), "dataset.json: not a description"),
    "description of another kind": (lambda root: (root / "dataset.json").write_text("[]"), "json: not a description"),
    "more label rows than the sensor has": (lambda root: describe(root, label_rows=81), "has 80 rows, of which 81"),
    "no masks": (lambda root: (root / "dir2" / "segmentation_masks.zip").unlink(), "has neither segmentation_masks"),
    "zip torn": (lambda root: cut(root / "dir2" / "segmentation_masks.zip", 999), "not a readable zip archive"),
    "no mask in the folder": (
        lambda root: [path.unlink() for path in extract(root / "dir2").iterdir()],
        "segmentation_masks: holds no masks",
    ),
    "mask without image": (lambda root: rename_mask(root / "dir2", "a_00000999.png"), "mask 999 has no image among 66"),
    "mask number 0": (lambda root: rename_mask(root / "dir2", "a_00000000.png"), "mask 0 has no image"),
    "two masks of one number": (
        lambda root: rename_mask(root / "dir2", "a_00000009.png"),
        r"a_00000009.png and mask_00000009.png are both mask 9",
    ),
    "events empty": (lambda root: cut(root / "dir2" / "events.dat.t", 0), "events.dat.t: the file is empty"),
    "event torn": (lambda root: cut(root / "dir2" / "events.dat.xyp", 601), "events.dat.xyp: has 601 bytes"),
    "events truncated": (lambda root: cut_events(root / "dir2"), r"events.dat.xyp: truncated: \d+ events, the masks"),
    "no events": (lambda root: (root / "dir2" / "events.dat.xyp").unlink(), "events.dat.xyp: no such file"),
    "no index": (lambda root: shutil.rmtree(root / "dir2" / "index"), "index: holds none of"),
    "another clock": (lambda root: shift_index(root / "dir2"), "no mask lies within the recording's events"),
    "images repeat": (lambda root: repeat_images(root / "dir2"), "step back or repeat"),
    "speeds of other images": (
        lambda root: np.save(root / "dir2" / "ego_speed.npy", np.zeros(3, np.float32)),
        r"ego_speed.npy: holds float32 of shape \(3,\) for 66 images",
    ),
    "speeds torn": (lambda root: cut(root / "dir2" / "ego_speed.npy", 20), "ego_speed.npy: not a readable .npy file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_archive_is_refused_in_one_line(archive, kind):
    spoil, message = BROKEN[kind]
    spoil(archive)
    with pytest.raises(UserError, match=message) as caught:
        open_test(archive)
    assert "\n" not in str(caught.value)


BROKEN_MASKS = {
    "wrong size": (np.zeros((64, 95), np.uint8), "has 95x64 px instead of 96x64"),
    "unknown class": (np.full((64, 96), 6, np.uint8), "holds class 6 of 6"),
    "colours": (np.zeros((64, 96, 3), np.uint8), "is an image of mode "),
    "two bytes": (np.zeros((64, 96), np.uint16), "is an image of mode "),
}


@pytest.mark.parametrize("kind", BROKEN_MASKS)
def test_a_broken_mask_is_refused_when_it_is_read(archive, kind):
    image, message = BROKEN_MASKS[kind]
    rewrite_mask(archive / "dir2", image)
    with pytest.raises(UserError, match=r"mask_\d{8}.png: .*" + message):
        open_test(archive).labels[0]
