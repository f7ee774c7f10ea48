"""Streets: reproducible, without collisions, with the promised share of standing."""

from __future__ import annotations

import numpy as np
import pytest

from tespec.world.city import city
from tespec.world.scene import (
    CAR,
    GROUND_HIT,
    INSTANCE,
    PERSON,
    RIDER,
    ROAD,
    SIDEWALK,
    SKY,
    TERRAIN,
    TRUCK,
    TWO_WHEELER,
    make_camera,
)
from tespec.world.street import Street, drive, record, render
from tespec.world.traffic import EGO, STEP, around_block, centre_line, from_points, stop_and_go

CAMERA = make_camera(48, 64)


@pytest.fixture(scope="module")
def street():
    return Street(11, 3.0)


@pytest.mark.parametrize("seconds", [2.0, 8.0, 10.0])
def test_ego_car_stands_about_45_percent_of_the_time(seconds):
    shares = [np.mean(drive(seed, seconds).speed == 0.0) for seed in range(200)]
    assert 0.38 < np.mean(shares) < 0.52


def test_recordings_start_both_driving_and_standing():
    first = [drive(seed, 1.0).speed[0] for seed in range(50)]
    assert 10 < np.count_nonzero(first) < 40


def test_speed_is_the_derivative_of_the_distance_and_respects_bends():
    rng = np.random.default_rng(3)
    path = from_points(centre_line(rng, 400.0))
    distance, speed = stop_and_go(rng, EGO, path, 30.0, 20.0, 100)
    assert distance[0] == 30.0
    assert np.allclose(np.diff(distance), speed[:-1] / 100)
    assert speed.max() <= EGO.top_speed
    in_sharp_bend = path.speed_limit[(distance / STEP).astype(int)] < 4
    assert speed[in_sharp_bend].max(initial=0.0) < 6


def test_paths_are_sampled_at_equal_distances_without_jumps():
    rng = np.random.default_rng(4)
    way = centre_line(rng, 300.0)
    for path in (from_points(way, 1.7), from_points(way[::-1], 2.8), from_points(around_block(0, 0, 6.0))):
        gaps = np.hypot(np.diff(path.x), np.diff(path.y))
        assert 0.9 * STEP < gaps.min() <= gaps.max() < 1.001 * STEP
        assert np.abs(np.diff(path.heading)).max() < 0.5


def test_city_seen_early_does_not_depend_on_how_far_the_car_drives():
    x = np.linspace(0, 100, 50)
    y = np.zeros(50)
    short, long = city(1, x[:20], y[:20], 60.0), city(1, x, y, 60.0)
    rows = {tuple(np.delete(row, INSTANCE)) for row in long}
    assert all(tuple(np.delete(row, INSTANCE)) in rows for row in short)
    assert len(long) > len(short)


def test_same_arguments_give_the_same_film_and_other_seeds_another():
    def film(seed):
        return [(frame.image, events.t) for frame, events in record(Street(seed, 0.1), CAMERA)]

    for (image, t), (image_again, t_again) in zip(film(1), film(1), strict=True):
        assert np.array_equal(image, image_again)
        assert np.array_equal(t, t_again)
    assert not np.array_equal(film(1)[0][0], film(2)[0][0])


def test_nobody_drives_through_the_ego_car(street):
    for agent in street.agents:
        distance = np.hypot(agent.poses[:, 0] - street.x, agent.poses[:, 1] - street.y)
        assert distance.min() > 1.5


def test_labels_instances_and_depth_agree(street):
    frame = render(street, CAMERA, 100)
    numbered = np.isin(frame.label, [CAR, TRUCK, PERSON, RIDER, TWO_WHEELER])
    assert numbered.any()
    assert np.array_equal(frame.instance > 0, numbered)
    assert np.array_equal(np.isinf(frame.depth), frame.label == SKY)
    assert np.isin(frame.label[frame.hit == GROUND_HIT], [ROAD, SIDEWALK, TERRAIN]).all()
    assert frame.grey.dtype == np.uint8
    assert frame.grey.std() > 10


def test_a_standing_car_sees_an_unchanged_background():
    street = next(s for s in (Street(seed, 3.0) for seed in range(30)) if not s.ego_speed[100:111].any())
    before, after = render(street, CAMERA, 100), render(street, CAMERA, 110)
    still = (before.instance == 0) & (after.instance == 0)
    assert np.mean(before.image[still] == after.image[still]) > 0.9


def test_events_lie_between_their_frames(street):
    for frame, events in record(street, CAMERA):
        assert (events.t < frame.time_us).all()
        assert (events.t >= frame.time_us - 10_000).all()
        if frame.index == 20:
            break


def test_night_is_darker_than_day():
    day, night = (render(Street(1, 0.1, night), CAMERA, 0) for night in (False, True))
    assert night.image.mean() < 0.3 * day.image.mean()
    assert np.array_equal(day.label, night.label)
