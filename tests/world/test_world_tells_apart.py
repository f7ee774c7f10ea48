"""What the world needs so that a comparison on it can tell methods apart."""

from __future__ import annotations

import numpy as np
import pytest

from tespec.core.config import names
from tespec.core.registry import register_methods
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.tasks.base import groups_of
from tespec.world.contents import CONTENTS, DATASETS, takes
from tespec.world.layouts.ddd17 import CLASSES, mask
from tespec.world.layouts.prophesee import ONE_MPX, frame_boxes
from tespec.world.scene import make_camera
from tespec.world.street import Street, drive, render

COMPARED = [size for size in CONTENTS if size != "tiny"]
TASKS = ("dsec", "ddd17", "gen1", "1mpx", "mvsec")


@pytest.mark.parametrize("size", COMPARED)
def test_no_two_recordings_of_a_world_show_the_same_street(size):
    streets = [take.seed for dataset in DATASETS for take in takes(size, 0, dataset)]
    assert len(set(streets)) == len(streets)
    others = {take.seed for dataset in DATASETS for take in takes(size, 1, dataset)}
    assert others.isdisjoint(streets)


@pytest.mark.parametrize("dataset", TASKS)
@pytest.mark.parametrize("size", COMPARED)
def test_the_camera_stands_in_a_third_to_two_thirds_of_the_test_frames(size, dataset):
    tested = [take for take in takes(size, 0, dataset) if take.split == "test"]
    standing = np.mean([np.mean(drive(take.seed, take.seconds).speed < 0.1) for take in tested])
    assert 1 / 3 < standing < 2 / 3


@pytest.mark.parametrize("dataset", TASKS)
@pytest.mark.parametrize("size", COMPARED)
def test_there_are_days_and_nights_to_test_on(size, dataset):
    tested = [take.night for take in takes(size, 0, dataset) if take.split == "test"]
    assert 0 < sum(tested) < len(tested)


@pytest.mark.parametrize("task", TASKS)
def test_moving_and_standing_frames_are_told_apart_in_every_layout(tiny_world, task):
    assert task in names("tasks")
    register_methods()
    data = Data(tiny_world / task, "sample")
    built = build_task(settings_of(data, task, "recurrent"), data.root)
    for recording in built.scored:
        groups = {groups_of(recording, label) for label in range(len(recording.labelled))}
        assert groups <= {("moving",), ("standing",)}


def test_what_stops_stays_labelled_without_an_event_of_its_own():
    """Before a standing camera, a standing car is the same box at the same place for as long as it stands."""
    take = takes("small", 0, "1mpx")[0]
    street = Street(take.seed, take.seconds)
    camera = make_camera(take.sensor.height, take.sensor.width)
    still = np.flatnonzero(street.ego_speed < 1e-9)
    first = still[0]
    later = first + 50
    assert later in still
    before, after = (frame_boxes(render(street, camera, frame), ONE_MPX) for frame in (first, later))
    places = {int(box["track_id"]): tuple(box[["x", "y", "w", "h"]].tolist()) for box in before}
    unmoved = [box for box in after if places.get(int(box["track_id"])) == tuple(box[["x", "y", "w", "h"]].tolist())]
    assert unmoved


def test_every_class_of_ddd17_covers_enough_to_be_learned():
    counts = np.zeros(len(CLASSES))
    for take in [take for take in takes("small", 0, "ddd17") if take.split == "test"]:
        street = Street(take.seed, take.seconds, take.night)
        camera = make_camera(take.sensor.height, take.sensor.width, take.sensor.label_rows)
        for frame in range(0, street.frames, 250):
            shown = mask(render(street, camera, frame).label, take.sensor.label_rows)
            counts += np.bincount(shown.ravel(), minlength=len(CLASSES))
    assert (counts / counts.sum()).min() > 0.015
