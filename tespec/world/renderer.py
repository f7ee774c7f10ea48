"""What the camera sees: the nearest box for every pixel, light on painted surfaces, and the blur of the lens."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from tespec.world.scene import BONNET_HIT, WORLD, Array, Camera, View, World
from tespec.world.texture import Surface

NEAR, FAR = 0.15, 95.0
SMALLEST = 0.6  # px: smaller boxes are left out


def raster(boxes: Array, camera: Camera, view: View) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Nearest surface along every pixel's ray, of a box table (N, 13) in world coordinates.

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
def _ground(
    world: World,
    depth: npt.NDArray[np.float32],
    hit: npt.NDArray[np.int32],
    camera: Camera,
    view: View,
) -> None:
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
def _boxes(
    world: World,
    depth: npt.NDArray[np.float32],
    hit: npt.NDArray[np.int32],
    boxes: Array,
    camera: Camera,
    view: View,
) -> None:
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


class Light(NamedTuple):
    """Strength from above, direction of the sun in radians, strength of head lights, street lamps and sky."""

    strength: float
    azimuth: float
    headlights: float
    street_lamps: float
    sky: float


def daylight(rng: np.random.Generator) -> Light:
    """A day, duller or brighter."""
    return Light(rng.uniform(0.7, 1.3), rng.uniform(0, 2 * np.pi), 0.0, 0.0, 1.0)


def lamplight(rng: np.random.Generator) -> Light:
    """A night: a faint sky, street lamps and the ego car's head lights."""
    return Light(rng.uniform(0.05, 0.08), rng.uniform(0, 2 * np.pi), 0.5, rng.uniform(2.0, 4.0), 0.15)


def shade(
    surface: Surface,
    depth: npt.NDArray[np.float32],
    hit: npt.NDArray[np.int32],
    boxes: Array,
    camera: Camera,
    view: View,
    light: Light,
) -> npt.NDArray[np.float32]:
    """Linear image intensity (H, W) float32 behind the lens; a white wall on a medium day has about 1."""
    bright = np.empty(depth.shape, np.float32)
    blurred = np.empty(depth.shape, np.float32)
    _light(WORLD, surface, depth, hit, boxes, camera, view, light, bright)
    _lens(bright, blurred)
    return blurred


@njit(cache=True)
def _facing(world: World, face: int, cos: float, sin: float, sun_x: float, sun_y: float) -> float:
    """Light that a surface gets by the way it faces, at least 0.25."""
    if face == world.FACE_UP:
        towards = 0.8
    elif face == world.FACE_DOWN:
        towards = -0.8
    elif face == world.FACE_FRONT:
        towards = cos * sun_x + sin * sun_y
    elif face == world.FACE_BACK:
        towards = -cos * sun_x - sin * sun_y
    elif face == world.FACE_LEFT:
        towards = cos * sun_y - sin * sun_x
    else:
        towards = sin * sun_x - cos * sun_y
    return max(0.62 + 0.38 * towards, 0.25)


@njit(cache=True)
def _light(
    world: World,
    surface: Surface,
    depth: npt.NDArray[np.float32],
    hit: npt.NDArray[np.int32],
    boxes: Array,
    camera: Camera,
    view: View,
    light: Light,
    bright: npt.NDArray[np.float32],
) -> None:
    albedo, glow, face, _ = surface
    eye, axes = view
    strength, azimuth, headlights, street_lamps, sky = light
    sun_x, sun_y = 0.6 * math.cos(azimuth), 0.6 * math.sin(azimuth)
    height, width = depth.shape
    for y in range(height):
        v = (y + 0.5 - camera.row) / camera.focal
        for x in range(width):
            looks, index = face[y, x], hit[y, x]
            if looks == world.FACE_NONE:
                bright[y, x] = strength * sky * albedo[y, x]
                continue
            cos, sin = (boxes[index, world.COS], boxes[index, world.SIN]) if index >= 0 else (1.0, 0.0)
            falling = strength * _facing(world, looks, cos, sin, sun_x, sun_y)
            if headlights > 0.0:
                t = depth[y, x]
                u = (x + 0.5 - camera.column) / camera.focal
                wx = eye[0] + t * (axes[0, 0] - u * axes[1, 0] - v * axes[2, 0])
                wy = eye[1] + t * (axes[0, 1] - u * axes[1, 1] - v * axes[2, 1])
                pool = (math.cos(math.pi * wx / 24.0) * math.cos(math.pi * wy / 24.0)) ** 2
                falling *= 1.0 + street_lamps * pool
                beam = math.exp(-4.0 * u * u - 6.0 * max(-v, 0.0)) / (1.0 + (t / 7.0) ** 2)
                falling += headlights * beam if index != world.BONNET_HIT else 0.0
            bright[y, x] = falling * albedo[y, x] + glow[y, x]


@njit(cache=True)
def _lens(image: npt.NDArray[np.float32], blurred: npt.NDArray[np.float32]) -> None:
    """Weights 1 2 1 in both directions; the border repeats."""
    height, width = image.shape
    for y in range(height):
        above, below = max(y - 1, 0), min(y + 1, height - 1)
        for x in range(width):
            left, right = max(x - 1, 0), min(x + 1, width - 1)
            total = 4.0 * image[y, x] + image[above, left] + image[above, right] + image[below, left]
            total += image[below, right] + 2.0 * (image[above, x] + image[below, x] + image[y, left] + image[y, right])
            blurred[y, x] = total / 16.0
