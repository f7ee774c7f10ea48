"""Light on painted surfaces, by day and by night, and the blur of the lens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from tespec.world.camera import Camera, View
from tespec.world.scene import WORLD, Array, World
from tespec.world.texture import Surface


@dataclass(frozen=True)
class Light:
    """Light from above, direction of the sun (radians), strength of the ego car's lamps and of the street lamps."""

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
    _light(
        WORLD,
        surface.albedo,
        surface.glow,
        surface.face,
        depth,
        hit,
        boxes,
        view.position,
        view.axes,
        camera.focal,
        camera.column,
        camera.row,
        (light.strength, light.azimuth, light.headlights, light.street_lamps, light.sky),
        bright,
    )
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
    albedo: npt.NDArray[np.float32],
    glow: npt.NDArray[np.float32],
    face: npt.NDArray[np.uint8],
    depth: npt.NDArray[np.float32],
    hit: npt.NDArray[np.int32],
    boxes: Array,
    eye: Array,
    axes: Array,
    focal: float,
    column: float,
    row: float,
    light: tuple[float, float, float, float, float],
    bright: npt.NDArray[np.float32],
) -> None:
    strength, azimuth, headlights, street_lamps, sky = light
    sun_x, sun_y = 0.6 * math.cos(azimuth), 0.6 * math.sin(azimuth)
    height, width = depth.shape
    for y in range(height):
        v = (y + 0.5 - row) / focal
        for x in range(width):
            looks, index = face[y, x], hit[y, x]
            if looks == world.FACE_NONE:
                bright[y, x] = strength * sky * albedo[y, x]
                continue
            cos, sin = (boxes[index, world.COS], boxes[index, world.SIN]) if index >= 0 else (1.0, 0.0)
            falling = strength * _facing(world, looks, cos, sin, sun_x, sun_y)
            if headlights > 0.0:
                t = depth[y, x]
                u = (x + 0.5 - column) / focal
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
