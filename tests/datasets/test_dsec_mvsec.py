"""What is particular to DSEC and MVSEC; that every layout reads alike is held by the tests of the twins."""

import shutil

import h5py
import numpy as np
import pytest

from tespec.core.errors import UserError
from tespec.datasets.dsec import Dsec
from tespec.datasets.mvsec import Mvsec
from tespec.datasets.sources import read_rectification
from tespec.datasets.windows import WindowRule
from tespec.events import ArrayStream, load_events
from tespec.events.packing import pack
from tespec.events.store import open_store

SPLITS = {"train": ("zurich_city_00_a",), "test": ("zurich_city_13_a",)}
CLASSES = tuple("abcdefghijk")


def dsec(root, classes=CLASSES, rule=None, **protocol):
    chosen = {"rows": 56, "labels": "all", "rectify": True} | protocol
    return Dsec(root, SPLITS, classes, rule, protocol=chosen)


def mvsec(root, rule=None, **protocol):
    splits = {"train": ("outdoor_day2",), "test": ("outdoor_day1",)}
    return Mvsec(root, splits, (), rule, protocol={"depth": "raw"} | protocol)


def edges_under(recordings):
    """How many events at the image's border, where the lens bends, lie on an edge, over what chance would give."""
    hits, chance = 0, 0.0
    for recording in recordings:
        for label in range(5, len(recording.labelled)):
            mask = recording.labels[label].astype(int)
            edge = np.zeros(mask.shape, bool)
            edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
            edge[1:] |= mask[1:] != mask[:-1]
            events = recording.histograms(label, 1, 1, "edges")[0].sum(axis=0)
            for side in (slice(2, 16), slice(-16, None)):
                hits += int(events[:, side][edge[:, side]].sum())
                chance += float(edge[:, side].mean() * events[:, side].sum())
    return hits / chance


def test_only_rectified_events_lie_on_the_labels(tiny_world):
    splits = {"train": ("zurich_city_00_a", "zurich_city_01_a", "zurich_city_13_a")}
    right, raw = (
        Dsec(tiny_world / "dsec", splits, CLASSES, protocol={"rows": 56, "labels": "all", "rectify": rectify})
        for rectify in (True, False)
    )
    assert edges_under(right.recordings("train")) > 1.15 * edges_under(raw.recordings("train"))
    assert raw.describe()["coordinates"].startswith("raw pixels, which the labels do not fit")


def test_rectified_events_are_those_of_the_map(tmp_path):
    places = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0)), axis=-1).astype(np.float32)
    places[0, 0], places[1, 2], places[2, 3] = (2.4, 0.6), (-0.4, 2.49), (-0.6, 0)
    with h5py.File(tmp_path / "rectify_map.h5", "w") as file:
        file["rectify_map"] = places
    nearest = read_rectification(tmp_path / "rectify_map.h5", 3, 4)
    x, y = np.array([0, 2, 3, 1]), np.array([0, 1, 2, 1])
    raw = open_store(pack(ArrayStream(x, y, np.arange(4), np.ones(4, int), 3, 4), tmp_path / "store"))
    stream = raw.rectified(nearest)
    found = stream.slice(0, 10)
    assert list(zip(found.x.tolist(), found.y.tolist(), found.t.tolist(), strict=True)) == [
        (2, 1, 0),
        (0, 2, 1),
        (1, 1, 3),
    ]


def test_the_number_of_classes_decides_which_masks_are_read(tiny_world):
    many = dsec(tiny_world / "dsec", classes=tuple("abcdefghijklmnopqrs")).recordings("test")[0]
    few = dsec(tiny_world / "dsec").recordings("test")[0]
    assert set(np.unique(few.labels[3])) <= {*range(11), 255}
    assert (many.labels[3] != few.labels[3]).mean() > 0.5


def test_events_of_a_label_are_those_since_the_one_before(tiny_world):
    (recording,) = dsec(tiny_world / "dsec").recordings("test")
    assert (np.diff(recording.windows, axis=1) == 50_000).all()
    np.testing.assert_array_equal(recording.windows[1:, 0], recording.windows[:-1, 1])
    (alone,) = dsec(tiny_world / "dsec", rule=WindowRule(False, 100)).recordings("test")
    assert (np.diff(alone.windows, axis=1) == 100_000).all()
    np.testing.assert_array_equal(alone.label_times, recording.label_times)


def test_every_second_label_has_the_events_of_two_periods(tiny_world):
    """uzh-rpg/ess leaves out the first six labels and then every second of 20 Hz: each window has 100 ms."""
    (every,), (some,) = (dsec(tiny_world / "dsec", labels=labels).recordings("test") for labels in ("all", "ess"))
    np.testing.assert_array_equal(some.label_times, every.label_times[6::2])
    assert (np.diff(some.windows, axis=1) == 100_000).all()


def test_depth_has_its_own_clock(tiny_world):
    (recording,) = mvsec(tiny_world / "mvsec").recordings("test")
    with h5py.File(tiny_world / "mvsec" / "outdoor_day1_gt.hdf5") as file:
        seconds, maps = file["davis/left/depth_image_raw_ts"][:], file["davis/left/depth_image_raw"][:]
    stamps = np.rint(seconds * 1e6).astype(np.int64)
    first = np.flatnonzero(stamps == recording.label_times[0])[0]
    assert recording.left_out == first == 3
    assert recording.label_times.tolist() == stamps[first:].tolist()
    for index in (0, 4, len(recording.labelled) - 1):
        np.testing.assert_array_equal(recording.labels[index], maps[first + index])
    assert np.isnan(recording.labels[6]).all() or any(np.isnan(recording.labels[index]).all() for index in range(10))


def test_a_sequence_may_lie_in_any_folder(tiny_world, tmp_path):
    root = tmp_path / "dsec"
    shutil.copytree(tiny_world / "dsec", root)
    shutil.move(root / "test" / "zurich_city_13_a", root / "zurich_city_13_a")
    assert dsec(root).recordings("test")[0].path.parts[-4] == "zurich_city_13_a"


@pytest.mark.parametrize(("later", "kept"), [(0, True), (1, False)])
def test_one_rule_says_which_depths_have_events(tiny_world, tmp_path, later, kept):
    """A label is kept where its period, since the label before, begins neither before nor after the events."""
    root = shutil.copytree(tiny_world / "mvsec", tmp_path / "mvsec")
    stream = load_events(root / "outdoor_day1_data.hdf5")
    with h5py.File(root / "outdoor_day1_gt.hdf5", "r+") as file:
        stamps = file["davis/left/depth_image_raw_ts"]
        spacing = int(np.median(np.diff(np.rint(stamps[:] * 1e6).astype(np.int64))))
        stamps[-1] = (stream.t_last + spacing + later) / 1e6
        stamps[2] = (stream.t_first + spacing - later) / 1e6
    (after,) = mvsec(root).recordings("test")
    assert (stream.t_last + spacing in after.label_times.tolist()) == kept
    assert (stream.t_first + spacing in after.label_times.tolist()) == kept
    assert after.left_out == (2 if kept else 4)
    assert (after.windows[after.labelled, 0] >= stream.t_first).all()
    assert (after.windows[after.labelled, 0] <= stream.t_last).all()


def test_depth_at_rectified_pixels_is_refused(tiny_world):
    """Events of MVSEC lie at raw pixels (hamarh/HMNet_pth, hmnet/dataset/mvsec.py)."""
    with pytest.raises(UserError, match=r"protocol.depth: 'rect' is not allowed; it should be 'raw'"):
        mvsec(tiny_world / "mvsec", depth="rect")


def rewritten(path, change):
    with h5py.File(path, "r+") as file:
        change(file)


def without_last(name):
    def change(file):
        kept = file[name][:-1]
        del file[name]
        file[name] = kept

    return change


DSEC, STAMPS = "test/zurich_city_13_a", "test/zurich_city_13_a/semantic/timestamps.txt"
DEPTH = "davis/left/depth_image_raw"
BROKEN = [
    (dsec, lambda root: shutil.rmtree(root / DSEC), "recording of the test split is missing; copy it to one of"),
    (dsec, lambda root: shutil.rmtree(root / DSEC / "semantic" / "left"), "holds no masks of 11 classes in any"),
    (dsec, lambda root: (root / STAMPS).unlink(), r"timestamps\.txt: the file with the times of the masks is missing"),
    (dsec, lambda root: (root / STAMPS).write_text("1\n2\n"), r"timestamps\.txt: holds 2 times for \d+ masks in"),
    (dsec, lambda root: (root / DSEC / "events" / "left" / "events.h5").unlink(), r"events\.h5: no such file"),
    (dsec, lambda root: shutil.copytree(root / DSEC / "semantic" / "left" / "11classes",
                                        root / "train" / "zurich_city_00_a" / "semantic" / "11classes" / "data") and
     shutil.rmtree(root / "train" / "zurich_city_00_a" / "semantic" / "left"), "two layouts are mixed"),
    (mvsec, lambda root: (root / "outdoor_day1_data.hdf5").unlink(), "recording of the test split is missing"),
    (mvsec, lambda root: (root / "outdoor_day1_gt.hdf5").unlink(), r"outdoor_day1_gt\.hdf5: no such file"),
    (mvsec, lambda root: shutil.copytree(root, root / "again"), r"holds outdoor_day1_data\.hdf5 more than once"),
    (mvsec, lambda root: rewritten(root / "outdoor_day1_gt.hdf5", without_last(f"{DEPTH}_ts")), "maps for .* times"),
    (mvsec, lambda root: (root / "dataset.json").write_text('{"sensor": {"height": 65, "width": 96}}'),
     r"depth_image_raw has maps of \d+x\d+ px instead of 96x65; copy it again, or check the sensor's size"),
]  # fmt: skip


@pytest.mark.parametrize(("opened", "spoil", "message"), BROKEN, ids=[message for *_, message in BROKEN])
def test_what_is_wrong_is_said(tiny_world, tmp_path, opened, spoil, message):
    root = shutil.copytree(tiny_world / opened.__name__, tmp_path / opened.__name__)
    spoil(root)
    with pytest.raises(UserError, match=message):
        opened(root).recordings("test")
