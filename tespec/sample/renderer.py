"""The nearest surface along every pixel's ray, by a z-buffer of ray and box intersections."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from tespec.sample.scene import BONNET_HIT, WORLD, Array, Camera, Image, View, World

NEAR, FAR = 0.15, 95.0
SMALLEST = 0.6  # px: smaller boxes are left out
Hit = npt.NDArray[np.int32]


def raster(boxes: Array, camera: Camera, view: View) -> tuple[Image, Hit]:
    """Depth and what is hit at every pixel, of a box table (N, 13) in world coordinates.

    Returns:
        Depth (H, W) float32, metres along the optical axis, infinite for the sky; and the row of the box hit (H, W)
        int32, or `SKY_HIT`, `GROUND_HIT`, `BONNET_HIT` (the ego car itself, depth 1 m).
    """
    depth = np.empty((camera.height, camera.width), np.float32)
    hit = np.empty((camera.height, camera.width), np.int32)
    depth[camera.bonnet_row :], hit[camera.bonnet_row :] = 1.0, BONNET_HIT
    free = slice(0, camera.bonnet_row)
    _ground(WORLD, depth[free], hit[free], camera, view)
    _boxes(WORLD, depth[free], hit[free], boxes, camera, view)
    return depth, hit


@njit(cache=True)
def _ground(world: World, depth: Image, hit: Hit, camera: Camera, view: View) -> None:
    eye, axes = view
    height, width = depth.shape
    for y in range(height):
        v = (y + 0.5 - camera.row) / camera.focal
        for x in range(width):
            u = (x + 0.5 - camera.column) / camera.focal
            fall = axes[0, 2] - u * axes[1, 2] - v * axes[2, 2]
            distance = -eye[2] / fall if fall < -1e-4 else np.inf
            if distance < FAR:
                depth[y, x] = distance
                hit[y, x] = world.GROUND_HIT
            else:
                depth[y, x] = np.inf
                hit[y, x] = world.SKY_HIT


@njit(cache=True)
def _slab(offset: float, direction: float, half: float) -> tuple[float, float]:
    if abs(direction) < 1e-9:
        direction = 1e-9
    a, b = (-half - offset) / direction, (half - offset) / direction
    return min(a, b), max(a, b)


@njit(cache=True)
def _boxes(world: World, depth: Image, hit: Hit, boxes: Array, camera: Camera, view: View) -> None:
    eye, axes = view
    focal, column, row = camera.focal, camera.column, camera.row
    height, width = depth.shape
    for index in range(boxes.shape[0]):
        box = boxes[index]
        dx, dy, dz = box[world.CX] - eye[0], box[world.CY] - eye[1], box[world.CZ] - eye[2]
        hx, hy, hz, cos, sin = box[world.HX], box[world.HY], box[world.HZ], box[world.COS], box[world.SIN]
        radius = math.sqrt(hx * hx + hy * hy + hz * hz)
        ahead = axes[0, 0] * dx + axes[0, 1] * dy + axes[0, 2] * dz
        if ahead < -radius or ahead - radius > FAR or 2 * focal * radius < SMALLEST * max(ahead, 0.3):
            continue
        # The sphere around the box against the left and right border of the image.
        aside = abs(axes[1, 0] * dx + axes[1, 1] * dy + axes[1, 2] * dz)
        if aside * focal - ahead * column > radius * math.sqrt(focal * focal + column * column):
            continue
        left, right, top, bottom = np.inf, -np.inf, np.inf, -np.inf
        behind = 0
        for corner in range(8):
            px = hx if corner & 1 else -hx
            py = hy if corner & 2 else -hy
            wx, wy, wz = dx + cos * px - sin * py, dy + sin * px + cos * py, dz + (hz if corner & 4 else -hz)
            z = axes[0, 0] * wx + axes[0, 1] * wy + axes[0, 2] * wz
            if z < NEAR:
                behind += 1
                continue
            x = column - focal * (axes[1, 0] * wx + axes[1, 1] * wy + axes[1, 2] * wz) / z
            y = row - focal * (axes[2, 0] * wx + axes[2, 1] * wy + axes[2, 2] * wz) / z
            left, right, top, bottom = min(left, x), max(right, x), min(top, y), max(bottom, y)
        if behind == 8:
            continue
        if behind > 0:
            left, right, top, bottom = 0.0, float(width), 0.0, float(height)
        x0, x1 = int(max(left, 0.0)), int(min(right + 1.0, float(width)))
        y0, y1 = int(max(top, 0.0)), int(min(bottom + 1.0, float(height)))
        nearest = ahead - radius
        # The ray forward - u * left - v * up in the box's own frame.
        ox, oy = -(cos * dx + sin * dy), sin * dx - cos * dy
        fx, fy, fz = cos * axes[0, 0] + sin * axes[0, 1], cos * axes[0, 1] - sin * axes[0, 0], axes[0, 2]
        lx, ly, lz = cos * axes[1, 0] + sin * axes[1, 1], cos * axes[1, 1] - sin * axes[1, 0], axes[1, 2]
        ux, uy, uz = cos * axes[2, 0] + sin * axes[2, 1], cos * axes[2, 1] - sin * axes[2, 0], axes[2, 2]
        for y in range(y0, y1):
            v = (y + 0.5 - row) / focal
            for x in range(x0, x1):
                if depth[y, x] <= nearest:
                    continue
                u = (x + 0.5 - column) / focal
                enter_x, leave_x = _slab(ox, fx - u * lx - v * ux, hx)
                enter_y, leave_y = _slab(oy, fy - u * ly - v * uy, hy)
                enter_z, leave_z = _slab(-dz, fz - u * lz - v * uz, hz)
                enter = max(enter_x, enter_y, enter_z)
                if NEAR < enter < min(leave_x, leave_y, leave_z) and enter < depth[y, x]:
                    depth[y, x] = enter
                    hit[y, x] = index
