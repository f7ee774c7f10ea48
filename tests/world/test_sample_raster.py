"""The rasteriser against Embree, an independent ray tracer."""

from __future__ import annotations

import numpy as np
import pytest

from tespec.world.renderer import raster
from tespec.world.scene import (
    BONNET_HIT,
    BUILDING,
    COLUMNS,
    COS,
    CX,
    CZ,
    GROUND_HIT,
    HX,
    HZ,
    SIN,
    SKY_HIT,
    BoxList,
    make_camera,
    make_view,
)
from tespec.world.street import Street

CAMERA = make_camera(96, 128)


@pytest.fixture(scope="module")
def street():
    return Street(5, 2.0)


def embree_depth(boxes, camera, view):
    trimesh = pytest.importorskip("trimesh")
    pytest.importorskip("embreex")
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    quads = np.array([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])
    triangles = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    local = corners * boxes[:, None, HX : HZ + 1]
    cos, sin = boxes[:, None, COS], boxes[:, None, SIN]
    turned = np.stack(
        [cos * local[..., 0] - sin * local[..., 1], sin * local[..., 0] + cos * local[..., 1], local[..., 2]], axis=-1
    )
    vertices = (turned + boxes[:, None, CX : CZ + 1]).reshape(-1, 3)
    faces = (triangles + 8 * np.arange(len(boxes))[:, None, None]).reshape(-1, 3)
    ground = np.array([[-1e4, -1e4, 0], [1e4, -1e4, 0], [1e4, 1e4, 0], [-1e4, 1e4, 0]], float)
    faces = np.concatenate([faces, len(vertices) + np.array([[0, 1, 2], [0, 2, 3]])])
    mesh = trimesh.Trimesh(np.concatenate([vertices, ground]), faces, process=False)
    y, x = np.mgrid[: camera.height, : camera.width] + 0.5
    u, v = (x - camera.column) / camera.focal, (y - camera.row) / camera.focal
    rays = view.axes[0] - u[..., None] * view.axes[1] - v[..., None] * view.axes[2]
    rays = rays.reshape(-1, 3)
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


def test_box_straight_ahead_has_the_depth_of_its_front_and_the_size_of_its_projection():
    boxes = BoxList()
    boxes.add((11.0 + 0.6, 0.0, 1.4), (1.0, 1.0, 1.0), BUILDING, 0.5)
    depth, hit = raster(boxes.table(), CAMERA, make_view(0.0, 0.0, 0.0))
    assert np.allclose(depth[hit == 0], 10.0)
    side = 2 * CAMERA.focal / 10.0
    assert (hit == 0).sum() == pytest.approx(side**2, rel=0.1)


def test_empty_street_is_ground_below_the_horizon_and_sky_above():
    depth, hit = raster(np.empty((0, COLUMNS)), CAMERA, make_view(0.0, 0.0, 0.0))
    horizon = round(CAMERA.row)
    assert (hit[: horizon - 1] == SKY_HIT).all()
    assert np.isinf(depth[: horizon - 1]).all()
    assert (hit[horizon + 2 :] == GROUND_HIT).all()
    expected = 1.4 * CAMERA.focal / (CAMERA.height - 0.5 - CAMERA.row)
    assert np.allclose(depth[-1], expected)


def test_rows_below_the_free_ones_show_the_bonnet(street):
    camera = make_camera(96, 128, 72)
    _, hit = raster(street.boxes(0), camera, street.view(0))
    assert (hit[72:] == BONNET_HIT).all()
    assert not (hit[:72] == BONNET_HIT).any()
