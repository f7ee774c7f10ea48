import json
import shutil
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from prophesee_files import boxes, frames_at, opened, write_recording
from twins.layouts import of_type_0, rvt_files, without_size

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.datasets.recording import fingerprint
from tespec.events import load_events
from tespec.events.packing import pack
from tespec.tasks.detection import DetectionTask

HOUR = 3_600_000_000
SKIPPED = "17-04-06_09-57-37_6344500000_6404500000"
TIMES = list(range(0, 1_250_001, 250_000))


@pytest.fixture
def root(tmp_path):
    """Two recordings to train on and one to test on, in the official sizes."""
    for number, (split, name) in enumerate([("train", "b"), ("train", "a"), ("test", "c")]):
        write_recording(tmp_path / split, name, frames_at(TIMES), seed=number)
    return tmp_path


def same(one, other):
    assert one.name == other.name
    np.testing.assert_array_equal(one.windows, other.windows)
    np.testing.assert_array_equal(one.labelled, other.labelled)
    assert one.labels.checksums() == other.labels.checksums()
    np.testing.assert_array_equal(one.histograms(0, 9, 10, "edges"), other.histograms(0, 9, 10, "edges"))


def test_every_recording_of_a_split_but_the_faulty_ones_is_there_in_order(root):
    for name in "train/b", "test/c":
        for path in root.glob(f"{name}_*"):
            shutil.copy(path, path.with_name(path.name.replace(path.name[0], SKIPPED, 1)))
    (root / "test" / f"{SKIPPED}_td.dat").unlink()
    found = opened(root)
    assert [recording.name for recording in found.recordings("train")] == ["a", "b"]
    assert [recording.name for recording in found.recordings("test")] == ["c"]
    assert "4 recordings with faulty labels" in found.describe()["left out"]


def test_five_windows_of_50_ms_lead_from_label_to_label(root):
    (recording,) = opened(root).recordings("test")
    assert recording.label_times.tolist() == TIMES[1:]
    assert recording.labelled.tolist() == [4, 9, 14, 19, 24]
    np.testing.assert_array_equal(recording.windows[:, 0], np.arange(0, 1_250_000, 50_000))
    np.testing.assert_array_equal(np.diff(recording.windows, axis=1), 50_000)
    assert recording.left_out == 1
    assert recording.histograms(0, 25, 10, "edges").shape == (25, 20, 240, 304)


def test_a_clock_that_starts_late_changes_nothing_but_the_times(root, tmp_path_factory):
    """A recording starts with its first event: no window lies before it, and of its first 0.5 s no frame counts."""
    (before,) = opened(root).recordings("test")
    late = tmp_path_factory.mktemp("late")
    for split, name in (("train", "a"), ("test", "c")):
        write_recording(late / split, name, frames_at([HOUR + time for time in TIMES]), start=HOUR, seed=2)
    (recording,) = opened(late).recordings("test")
    np.testing.assert_array_equal(recording.windows, before.windows + HOUR)
    np.testing.assert_array_equal(recording.labelled, before.labelled)
    task = DetectionTask(finetuning_settings("gen1", "recurrent", "paper"), late)
    seen = []
    scorer = SimpleNamespace(update=lambda outcome, truth, name, time_us, groups: seen.append(time_us))
    for label in range(len(recording.labelled)):
        task.score(scorer, recording.labels[label], recording.labels[label], recording, label)
    assert seen == TIMES[1:]


def test_feed_forward_models_get_the_50_ms_before_a_label(root):
    (recording,) = opened(root, "gen1", arch="feedforward").recordings("test")
    np.testing.assert_array_equal(recording.windows[:, 1], TIMES[1:])
    np.testing.assert_array_equal(np.diff(recording.windows, axis=1), 50_000)


def test_boxes_as_wide_as_the_sensor_are_left_out_of_training_alone(root):
    for path in root.glob("*/*_bbox.npy"):
        np.save(path, np.concatenate([frames_at(TIMES[:3]), frames_at(TIMES[3:], size=(280, 50))]))
    found = opened(root)
    assert found.recordings("test")[0].label_times.tolist() == TIMES[1:]
    assert [recording.label_times.tolist() for recording in found.recordings("train")] == [TIMES[1:3]] * 2


def test_every_frame_counts_if_asked_for(root):
    found = opened(root, "gen1", "protocol.frames=all", "protocol.boxes=all")
    (recording,) = found.recordings("test")
    assert recording.label_times.tolist() == TIMES
    assert recording.left_out == 0
    assert recording.windows[0].tolist() == [-50_000, 0]
    assert recording.histograms(0, 1, 10, "edges").sum() == 0
    assert found.describe()["labels"] == "every frame with boxes; boxes cropped to the sensor, of any size"


def test_the_protocol_is_said_in_words(root):
    described = opened(root).describe()
    assert described["layout"] == "Prophesee .dat"
    assert described["labels"] == (
        "one frame each 250 ms; boxes cropped to the sensor, diagonal from 30 px, sides from 10 px, "
        "in training not wider than 90% of the sensor"
    )


@pytest.mark.parametrize("ending", ["_td.h5", "_td.dat.h5"])
def test_intermediate_files_hold_the_same_recordings(root, ending):
    before = opened(root).recordings("train")
    kept = {recording.name: recording.histograms(0, 9, 10, "edges") for recording in before}
    rvt_files(root, ending)
    after = opened(root)
    assert after.layout == "RVT's intermediate .h5"
    for one, other in zip(before, after.recordings("train"), strict=True):
        np.testing.assert_array_equal(one.windows, other.windows)
        assert one.labels.checksums() == other.labels.checksums()
        np.testing.assert_array_equal(kept[other.name], other.histograms(0, 9, 10, "edges"))


@pytest.mark.parametrize("change", [without_size, of_type_0])
def test_older_headers_are_read(root, tmp_path_factory, change):
    older = tmp_path_factory.mktemp("older")
    shutil.copytree(root, older, dirs_exist_ok=True)
    change(older)
    (one,), (other,) = (opened(folder).recordings("test") for folder in (root, older))
    assert (other.region.height, other.region.width) == (240, 304)
    same(one, other)


def test_a_description_names_the_size_where_headers_do_not(root):
    without_size(root)
    (root / "dataset.json").write_text(json.dumps({"sensor": {"height": 260, "width": 346}}))
    (recording,) = opened(root).recordings("test")
    assert (recording.region.height, recording.region.width) == (260, 346)


def test_the_size_in_the_header_wins(root):
    (root / "dataset.json").write_text(json.dumps({"sensor": {"height": 260, "width": 346}}))
    (recording,) = opened(root).recordings("test")
    assert (recording.region.height, recording.region.width) == (240, 304)


def test_packed_stores_stand_for_the_events(root, tmp_path_factory):
    packed = tmp_path_factory.mktemp("packed")
    shutil.copytree(root, packed, dirs_exist_ok=True)
    (path,) = packed.glob("test/*.dat")
    pack(load_events(path), path.with_name(path.name + ".store"), path)
    path.unlink()
    before, after = (opened(folder).recordings("test") for folder in (root, packed))
    same(before[0], after[0])
    assert fingerprint(before) == fingerprint(after)


def test_folders_around_the_splits_are_looked_into(root, tmp_path_factory):
    above = tmp_path_factory.mktemp("above")
    shutil.copytree(root, above / "detection_dataset_duration_60s_ratio_1.0")
    (one,), (other,) = (opened(folder).recordings("test") for folder in (root, above))
    same(one, other)


def two_layouts(root):
    other = root.parent / "other"
    shutil.copytree(root / "test", other / "test")
    rvt_files(other, "_td.h5")
    shutil.copy(other / "test" / "c_td.h5", root / "train" / "d_td.h5")
    shutil.rmtree(other)


BROKEN = {
    "events without boxes": (lambda root: (root / "test" / "c_bbox.npy").unlink(),
                             r"c_bbox\.npy: no such file, but there are events"),
    "boxes without events": (lambda root: (root / "test" / "c_td.dat").rename(root / "test" / "d_td.dat"),
                             r"c_bbox\.npy: has no events beside it; copy the recording's events beside its boxes"),
    "no split": (lambda root: shutil.rmtree(root / "test"), "test: holds no recordings; copy the split's files"),
    "two layouts": (two_layouts, r"two layouts are mixed: Prophesee \.dat \(a_td\.dat\) and RVT's intermediate "
                                 r"\.h5 \(d_td\.h5\); keep one of them"),
    "no boxes": (lambda root: np.save(root / "test" / "c_bbox.npy", boxes()), r"c_bbox\.npy: holds no boxes"),
    "boxes of another recording": (lambda root: np.save(root / "test" / "c_bbox.npy", frames_at([2_000_000])),
                                   r"its boxes lie at 2\.000 to 2\.000 s, the events at 0\.000 to 1\.300 s"),
    "boxes by another clock": (lambda root: write_recording(root / "test", "c", frames_at(TIMES), start=HOUR),
                               r"its boxes lie at 0\.000 to 1\.250 s, the events at 3600\.000 to 3601\.300 s"),
    "only small boxes": (lambda root: np.save(root / "test" / "c_bbox.npy", frames_at(TIMES, size=(9, 90))),
                         r"no label frame left after the filters; leave the recording out \(protocol\.skip\)"),
    "a class that Gen1 has not": (lambda root: np.save(root / "test" / "c_bbox.npy", frames_at(TIMES, label=2)),
                                  "a class other than 0 to 1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_is_said(root, kind):
    change, message = BROKEN[kind]
    change(root)
    with pytest.raises(UserError, match=message):
        opened(root).recordings("test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("protocol.boxes=none", "protocol.boxes: unknown value 'none'; choose from rvt, all"),
        ("protocol.frames=each", "protocol.frames: unknown value 'each'; choose from rvt, all"),
        ("protocol.period_ms=0.0001", "protocol.period_ms: 0.0001 ms is less than 1 us; give a longer period"),
    ],
)
def test_unknown_protocols_are_refused(root, change, message):
    with pytest.raises(UserError, match=message):
        opened(root, "gen1", change)


def test_recordings_named_in_the_settings_alone_are_used(root):
    changes = ("splits.train=[b]", "splits.test=[a]")
    with pytest.raises(UserError, match=r"a_td\.dat: recording of the test split is missing"):
        opened(root, "gen1", *changes).recordings("test")
    assert [recording.name for recording in opened(root, "gen1", *changes).recordings("train")] == ["b"]


def test_intermediate_files_without_a_size_have_the_official_one(root):
    rvt_files(root, "_td.dat.h5")
    for path in root.glob("*/*.h5"):
        with h5py.File(path, "a") as file:
            del file["events/height"], file["events/width"]
    (recording,) = opened(root).recordings("test")
    assert (recording.region.height, recording.region.width) == (240, 304)
