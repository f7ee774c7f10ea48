"""Streets: reproducible on every processor, without collisions, rendered as an independent ray tracer does."""

import os
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from tespec.sample import city, paths, scene, traffic
from tespec.sample import street as streets
from tespec.sample.paths import EGO, STEP, around_block, centre_line, drive, from_points, stop_and_go
from tespec.sample.renderer import raster
from tespec.sample.scene import (
    BONNET_HIT,
    COS,
    CX,
    CZ,
    GROUND_HIT,
    HX,
    HZ,
    INSTANCE,
    SIN,
    SKY_HIT,
    BoxList,
    make_camera,
    make_view,
    variation,
)
from tespec.sample.street import Street

CAMERA = make_camera(96, 128)


@pytest.fixture(scope="module")
def street():
    return Street(11, 3.0)


def test_ego_car_stands_about_45_percent_of_the_time_and_from_the_first_frame_on():
    speeds = [drive(seed, 2.0).speed for seed in range(200)]
    assert 0.38 < np.mean([np.mean(speed == 0.0) for speed in speeds]) < 0.52
    assert 60 < np.count_nonzero([speed[0] for speed in speeds]) < 140


def test_speed_is_the_derivative_of_the_distance_and_respects_bends():
    rng = np.random.default_rng(3)
    path = from_points(centre_line(rng, 400.0))
    distance, speed = stop_and_go(rng, EGO, path, 30.0, 2001)
    assert distance[0] == 30.0
    assert np.allclose(np.diff(distance), speed[:-1] / 100)
    assert speed.max() <= EGO.top_speed
    in_sharp_bend = path.speed_limit[(distance / STEP).astype(int)] < 4
    assert speed[in_sharp_bend].max(initial=0.0) < 6


def test_paths_are_sampled_at_equal_distances_without_jumps():
    way = centre_line(np.random.default_rng(4), 300.0)
    for path in (from_points(way, 1.7), from_points(way[::-1], 2.8), from_points(around_block(0, 0, 6.0))):
        gaps = np.hypot(np.diff(path.x), np.diff(path.y))
        assert 0.9 * STEP < gaps.min() <= gaps.max() < 1.001 * STEP
        assert np.abs(np.diff(path.heading)).max() < 0.5


def test_city_seen_early_does_not_depend_on_how_far_the_car_drives():
    x, y = np.linspace(0, 100, 50), np.zeros(50)
    short, long = (city.city(1, variation(1), x[:seen], y[:seen], 60.0) for seen in (20, 50))
    rows = {tuple(np.delete(row, INSTANCE)) for row in long}
    assert all(tuple(np.delete(row, INSTANCE)) in rows for row in short)
    assert len(long) > len(short)


def test_nobody_drives_through_the_ego_car(street):
    for agent in street.agents:
        assert np.hypot(agent.poses[:, 0] - street.x, agent.poses[:, 1] - street.y).min() > 1.5


def test_labels_instances_and_depth_agree(street):
    frame = street.render(CAMERA, 100)
    numbered = np.isin(frame.label, [scene.CAR, scene.TRUCK, scene.PERSON, scene.RIDER, scene.TWO_WHEELER])
    assert numbered.any()
    assert np.array_equal(frame.instance > 0, numbered)
    assert np.array_equal(np.isinf(frame.depth), frame.label == scene.SKY)
    assert np.isin(frame.label[frame.hit == GROUND_HIT], [scene.ROAD, scene.SIDEWALK, scene.TERRAIN]).all()
    assert frame.grey.std() > 10


def test_a_standing_car_sees_an_unchanged_background():
    street = next(s for s in (Street(seed, 3.0) for seed in range(30)) if not s.ego_speed[100:111].any())
    before, after = (street.render(CAMERA, frame) for frame in (100, 110))
    still = (before.instance == 0) & (after.instance == 0)
    assert np.mean(before.image[still] == after.image[still]) > 0.9


def test_night_is_darker_than_day():
    day, night = (Street(1, 0.1, night).render(CAMERA, 0) for night in (False, True))
    assert night.image.mean() < 0.3 * day.image.mean()
    assert np.array_equal(day.label, night.label)


def test_cameras_traffic_and_surroundings_differ_from_street_to_street():
    varied = [variation(seed) for seed in range(3000, 3200)]
    assert {each.side for each in varied} == {-1, 1}
    for name in ("focal", "height", "pitch", "yaw", "green", "crowd", "light"):
        values = [getattr(each, name) for each in varied]
        assert np.std(values) > 0.2 * (max(values) - min(values)) > 0
    street = next(Street(seed, 0.1) for seed in range(99) if variation(seed).side == -1)
    along = np.array([np.cos(street.heading[0]), np.sin(street.heading[0])])
    left = along[0] * street.y[0] - along[1] * street.x[0]
    assert np.isclose((left + scene.BLOCK / 2) % scene.BLOCK - scene.BLOCK / 2, scene.LANE, atol=0.1)


def embree_depth(boxes, camera, view):
    trimesh = pytest.importorskip("trimesh")
    pytest.importorskip("embreex")
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    quads = np.array([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])
    triangles = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    x, y, z = np.moveaxis(corners * boxes[:, None, HX : HZ + 1], -1, 0)
    cos, sin = boxes[:, None, COS], boxes[:, None, SIN]
    turned = np.stack([cos * x - sin * y, sin * x + cos * y, z], axis=-1)
    vertices = (turned + boxes[:, None, CX : CZ + 1]).reshape(-1, 3)
    faces = (triangles + 8 * np.arange(len(boxes))[:, None, None]).reshape(-1, 3)
    ground = np.array([[-1e4, -1e4, 0], [1e4, -1e4, 0], [1e4, 1e4, 0], [-1e4, 1e4, 0]], float)
    faces = np.concatenate([faces, len(vertices) + np.array([[0, 1, 2], [0, 2, 3]])])
    mesh = trimesh.Trimesh(np.concatenate([vertices, ground]), faces, process=False)
    rows, columns = np.mgrid[: camera.height, : camera.width] + 0.5
    u, v = (columns - camera.column) / camera.focal, (rows - camera.row) / camera.focal
    rays = (view.axes[0] - u[..., None] * view.axes[1] - v[..., None] * view.axes[2]).reshape(-1, 3)
    origins = np.broadcast_to(view.position, rays.shape)
    hits, ray, _ = mesh.ray.intersects_location(origins, rays, multiple_hits=False)
    depth = np.full(len(rays), np.inf)
    depth[ray] = (hits - view.position) @ view.axes[0]
    return depth.reshape(camera.height, camera.width)


@pytest.mark.parametrize("frame", [0, 100, 200])
def test_static_scene_has_the_depth_that_embree_finds(street, frame):
    view = street.view(frame)
    depth, _ = raster(street.static, CAMERA, view)
    expected = embree_depth(street.static, CAMERA, view)
    near = expected < 90
    assert near.mean() > 0.3
    assert np.mean(np.abs(depth[near] - expected[near]) < 0.05) >= 0.999


def test_a_box_has_the_depth_of_its_front_and_an_empty_street_is_ground_and_sky():
    boxes = BoxList()
    boxes.add((11.0, 0.0, 1.4), (1.0, 1.0, 1.0), scene.BUILDING, 0.5)
    depth, hit = raster(boxes.table(), CAMERA, make_view(0.0, 0.0, 1.4, 0.0))
    assert np.allclose(depth[hit == 0], 10.0)
    assert (hit == 0).sum() == pytest.approx((2 * CAMERA.focal / 10.0) ** 2, rel=0.1)
    depth, hit = raster(BoxList().table(), CAMERA, make_view(0.0, 0.0, 1.4, 0.0))
    horizon = round(CAMERA.row)
    assert (hit[: horizon - 1] == SKY_HIT).all()
    assert (hit[horizon + 2 :] == GROUND_HIT).all()
    assert np.allclose(depth[-1], 1.4 * CAMERA.focal / (CAMERA.height - 0.5 - CAMERA.row))


def test_rows_below_the_free_ones_show_the_bonnet(street):
    frame = street.render(make_camera(96, 128, 72), 0)
    assert np.array_equal(frame.hit == BONNET_HIT, np.arange(96)[:, None].repeat(128, 1) >= 72)


# Functions whose last digits differ between processors, or may.
ROUNDED = ("sin", "cos", "arctan2", "sqrt", "hypot", "interp", "gradient", "cumsum", "linspace", "unwrap", "mod")


class Noisy(ModuleType):
    """A module whose functions' results are off by up to one unit in the last place."""

    def __init__(self, module, rng, noisy):
        super().__init__(module.__name__)
        self._module, self._rng, self._noisy = module, rng, noisy

    def __getattr__(self, name):
        found = getattr(self._module, name)
        if name not in self._noisy:
            return found

        def rounded(*given, **options):
            exact = np.asarray(found(*given, **options), np.float64)
            off = exact + self._rng.integers(-1, 2, exact.shape) * np.spacing(exact)
            return off if off.ndim else off[()]

        return rounded


def test_rounding_decides_nothing_on_a_street(monkeypatch):
    exact = [Street(seed, 1.0) for seed in range(3000, 3024)]
    noisy = Noisy(np, np.random.default_rng(0), ROUNDED)
    noisy.linalg = Noisy(np.linalg, noisy._rng, ("norm",))
    for module in (city, scene, streets, traffic, paths):
        monkeypatch.setattr(module, "np", noisy)
    for street in exact:
        other = Street(street.seed, 1.0)
        np.testing.assert_allclose(other._moving, street._moving, rtol=0, atol=1e-6)
        np.testing.assert_allclose(other.static, street.static, rtol=0, atol=1e-6)
        assert other._poses.shape == street._poses.shape
        x, y, heading, phase = np.moveaxis(other._poses - street._poses, -1, 0)
        turned = np.angle(np.exp(1j * heading))  # half a turn to the left is one to the right
        assert max(np.abs(change).max() for change in (x, y, turned, phase)) < 1e-6


DIGEST = """
import hashlib
from tespec.sample.street import Street
digest = hashlib.sha256()
for seed in range(3000, 3012):
    street = Street(seed, 1.0)
    for table in (street._poses, street.static, street.x, street.y, street.heading):
        digest.update(table.tobytes())
print(digest.hexdigest())
"""


def test_no_byte_depends_on_the_blas_kernels_that_a_processor_gets():
    def digest(kernels):
        command = [sys.executable, "-c", DIGEST]
        return subprocess.run(command, env=os.environ | kernels, capture_output=True, text=True, check=True).stdout

    assert len({digest(kernels) for kernels in ({}, {"OPENBLAS_CORETYPE": "Nehalem"})}) == 1
