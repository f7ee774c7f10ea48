"""Streets: standing and moving agents, and correct labels, instances and depth."""

import numpy as np
import pytest

from tespec.sample import recordings_of, render
from tespec.sample.layouts import DDD17_CLASSES, DDD17_LABEL_IDS, frame_boxes
from tespec.sample.render import COS, CX, CZ, HX, HZ, SIN
from tespec.sample.street import EGO, Street, stop_and_go


@pytest.fixture(scope="module")
def street():
    return Street(11, 3.0)


def test_ego_car_stands_about_40_percent_of_the_time_and_speed_is_the_derivative_of_the_distance():
    rides = [stop_and_go(np.random.default_rng(seed), EGO, 201) for seed in range(300)]
    assert 0.34 < np.mean([speed == 0.0 for _, speed in rides]) < 0.46
    assert all(np.allclose(np.diff(distance), speed[:-1] / 100) for distance, speed in rides)
    assert 4 < max(speed.max() for _, speed in rides) <= EGO.top_speed


def test_nobody_drives_through_the_ego_car(street):
    assert len(street.agents) > 15
    for _, poses in street.agents:
        assert np.hypot(poses[:, 0] - street.x, poses[:, 1] - street.y).min() > 1.5


def first_hit(boxes, origin, rays):
    """Distances (R,) along rays (R, 3) to the nearest box or to the ground (slab method)."""
    cos, sin = boxes[:, COS], boxes[:, SIN]
    to = origin - boxes[:, CX : CZ + 1]
    start = np.stack(
        [cos * to[:, 0] + sin * to[:, 1], cos * to[:, 1] - sin * to[:, 0], to[:, 2]], 1
    )
    along = np.stack(
        [rays[:, :1] * cos + rays[:, 1:2] * sin, rays[:, 1:2] * cos - rays[:, :1] * sin], -1
    )
    along = np.concatenate([along, np.broadcast_to(rays[:, None, 2:], (*along.shape[:2], 1))], -1)
    ends = np.stack([(side * boxes[:, HX : HZ + 1] - start) / along for side in (-1, 1)])
    enter, leave = ends.min(axis=0).max(axis=-1), ends.max(axis=0).min(axis=-1)
    ground = np.where(rays[:, 2] < 0, -origin[2] / rays[:, 2], np.inf)
    return np.minimum(np.where((enter < leave) & (enter > 0), enter, np.inf).min(axis=1), ground)


@pytest.mark.parametrize("frame", [0, 150, 300])
def test_depth_is_that_of_the_nearest_surface_along_each_ray(street, frame):
    camera, pose = street.camera(96, 128, 96), street.camera_pose(frame)
    depth = street.render(camera, frame).depth[::5, ::5]
    rows, columns = np.mgrid[:96:5, :128:5] + 0.5
    u, v = (columns - camera.column) / camera.focal, (rows - camera.row) / camera.focal
    rays = pose.axes[0] - u[..., None] * pose.axes[1] - v[..., None] * pose.axes[2]
    expected = first_hit(street.boxes(frame), pose.position, rays.reshape(-1, 3)).reshape(
        depth.shape
    )
    near = expected < 90
    assert near.mean() > 0.3
    assert np.mean(np.abs(depth[near] - expected[near]) < 0.05) >= 0.995


def test_labels_instances_depth_and_bonnet_agree(street):
    frame = street.render(street.camera(96, 128, 72), 100)
    users = [render.CAR, render.TRUCK, render.PERSON, render.RIDER, render.TWO_WHEELER]
    numbered = np.isin(frame.label[:72], users)
    assert numbered.any()
    assert np.array_equal(frame.instance[:72] > 0, numbered)
    assert np.array_equal(np.isinf(frame.depth), frame.label == render.SKY)
    assert (frame.label[72:] == render.CAR).all()
    assert (frame.depth[72:] == 1).all()
    assert frame.grey.std() > 10


def test_what_stops_stays_labelled_without_an_event_of_its_own():
    """For a standing camera, a standing car keeps the same box."""
    street = next(
        s for s in (Street(seed, 1.0) for seed in range(3000, 3100)) if not s.ego_speed[:51].any()
    )
    camera = street.camera(96, 160, 96)
    before, after = (street.render(camera, frame) for frame in (0, 50))
    still = (before.instance == 0) & (after.instance == 0) & (before.label != render.VEGETATION)
    assert np.mean(before.image[still] == after.image[still]) > 0.8
    old, new = (
        {
            tuple(box[["track_id", "x", "y", "w", "h"]].tolist())
            for box in frame_boxes(frame, "1mpx")
        }
        for frame in (before, after)
    )
    assert old & new


def test_every_class_of_ddd17_covers_enough_to_be_learned():
    counts = np.zeros(len(DDD17_CLASSES))
    for recording in recordings_of("small", 0, "ddd17")[::3]:
        street = Street(recording.seed, 0.1, recording.night)
        label = street.render(street.camera(*recording.sensor), 5).label
        counts += np.bincount(
            DDD17_LABEL_IDS[label[: recording.sensor.label_rows]].ravel(),
            minlength=len(DDD17_CLASSES),
        )
    assert (counts / counts.sum()).min() > 0.015
