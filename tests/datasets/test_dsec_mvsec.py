"""Reading specific to DSEC and MVSEC; `tests/twins` checks that all layouts read alike."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from event_files import write_h5
from twins import opened

from tespec.datasets.sources import read_rectification, recording_exists
from tespec.events import open_events


def of_test(root, *changes, arch="recurrent"):
    return opened(root, root.name, *changes, arch=arch).recordings("test")[0]


def test_rectified_events_are_those_of_the_map(tmp_path):
    places = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0)), axis=-1).astype(np.float32)
    places[0, 0], places[1, 2], places[2, 3] = (2.4, 0.6), (-0.4, 2.49), (-0.6, 0)
    path = write_h5(tmp_path / "rectify_map.h5", {"rectify_map": places})
    nearest = read_rectification(path, 3, 4)
    assert nearest[[0, 1, 1], [0, 2, 1]].tolist() == [[2, 1], [0, 2], [1, 1]]
    assert nearest[2, 3].min() < 0


def test_events_of_a_sequence_are_rectified_where_the_protocol_says_so(tiny_world):
    moved, raw = (
        of_test(tiny_world / "dsec"),
        of_test(tiny_world / "dsec", "protocol.rectify=false"),
    )
    (x, y, t, _), found = (each.stream.slice(*raw.windows[5]) for each in (raw, moved))
    places = read_rectification(moved.source.rectify_map, raw.stream.height, raw.stream.width)[y, x]
    inside = (places >= 0).all(axis=1)
    assert inside.sum() > 100
    np.testing.assert_array_equal(np.column_stack(found[:3]), np.column_stack([places, t])[inside])


def test_the_number_of_classes_decides_which_masks_are_read(tiny_world):
    many = of_test(tiny_world / "dsec", f"classes={list('abcdefghijklmnopqrs')}")
    few = of_test(tiny_world / "dsec")
    assert set(np.unique(few.labels[3])) <= {*range(11), 255}
    assert (many.labels[3] != few.labels[3]).mean() > 0.5


def test_a_label_has_the_events_since_the_one_before_or_of_a_window_of_its_own(tiny_world):
    """uzh-rpg/ess drops the first six labels and then every second one of 20 Hz, so each window has
    100 ms.
    """
    every, some = of_test(tiny_world / "dsec"), of_test(tiny_world / "dsec", "protocol.labels=ess")
    alone = of_test(tiny_world / "dsec", arch="feedforward")
    for recording, length in ((every, 50_000), (some, 100_000), (alone, 100_000)):
        assert (np.diff(recording.windows, axis=1) == length).all()
    np.testing.assert_array_equal(every.windows[1:, 0], every.windows[:-1, 1])
    np.testing.assert_array_equal(some.label_times, every.label_times[6::2])
    np.testing.assert_array_equal(alone.label_times, every.label_times)
    assert every.left_out == 0
    assert some.left_out == len(every.labels) - len(some.labels) > 0


def test_a_folder_without_permission_holds_no_recording(monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert not recording_exists(Path("lost+found/outdoor_day1_data.hdf5"))


def test_depth_has_its_own_clock(tiny_world):
    recording = of_test(tiny_world / "mvsec")
    with h5py.File(tiny_world / "mvsec" / "outdoor_day1_gt.hdf5") as file:
        seconds, maps = (
            file["davis/left/depth_image_raw_ts"][:],
            file["davis/left/depth_image_raw"][:],
        )
    stamps = np.rint(seconds * 1e6).astype(np.int64)
    first = np.flatnonzero(stamps == recording.label_times[0])[0]
    assert recording.left_out == first == 3
    assert recording.label_times.tolist() == stamps[first:].tolist()
    for index in (0, 4, len(recording.label_indices) - 1):
        np.testing.assert_array_equal(recording.labels[index], maps[first + index])
    assert any(np.isnan(recording.labels[index]).all() for index in range(10))


@pytest.mark.parametrize(("later", "kept"), [(0, True), (1, False)])
def test_one_rule_says_which_depths_have_events(tiny_world, tmp_path, later, kept):
    """A label is kept if its period, which begins at the previous label, begins within the
    recording's events.
    """
    root = shutil.copytree(tiny_world / "mvsec", tmp_path / "mvsec")
    stream = open_events(root / "outdoor_day1_data.hdf5")
    with h5py.File(root / "outdoor_day1_gt.hdf5", "r+") as file:
        stamps = file["davis/left/depth_image_raw_ts"]
        spacing = int(np.median(np.diff(np.rint(stamps[:] * 1e6).astype(np.int64))))
        stamps[-1] = (stream.t_last + spacing + later) / 1e6
        stamps[2] = (stream.t_first + spacing - later) / 1e6
    after = of_test(root)
    assert (stream.t_last + spacing in after.label_times.tolist()) == kept
    assert (stream.t_first + spacing in after.label_times.tolist()) == kept
    assert after.left_out == (2 if kept else 4)
    assert (after.windows[after.label_indices, 0] >= stream.t_first).all()
    assert (after.windows[after.label_indices, 0] <= stream.t_last).all()
