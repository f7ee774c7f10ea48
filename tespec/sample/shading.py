"""Patterns of surfaces, which fade out where a pixel is too coarse for them, the light on them, and the lens' blur.

Everything a kernel calls is in its own file, because numba's cache only notices changes of that file.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from tespec.sample.scene import WORLD, Array, Camera, Image, View, World

DARK_ALBEDO = 0.02
# Direction a surface faces: box faces in the box's frame, then up for the ground.
FRONT, BACK, LEFT, RIGHT, UP, DOWN = range(6)
Label = npt.NDArray[np.uint8]


class Light(NamedTuple):
    """Strength from above, direction of the sun in radians, strength of head lights, street lamps and sky."""

    strength: float
    azimuth: float
    headlights: float
    street_lamps: float
    sky: float


def daylight(rng: np.random.Generator, strength: float) -> Light:
    """A day, duller or brighter."""
    return Light(strength, rng.uniform(0, 2 * np.pi), 0.0, 0.0, 1.0)


def lamplight(rng: np.random.Generator) -> Light:
    """A night: a faint sky, street lamps, lit windows and the ego car's head lights."""
    return Light(rng.uniform(0.05, 0.08), rng.uniform(0, 2 * np.pi), 0.5, rng.uniform(2.0, 4.0), 0.15)


def shade(
    depth: Image, hit: npt.NDArray[np.int32], boxes: Array, camera: Camera, view: View, light: Light, grass: bool
) -> tuple[Image, Label]:
    """The image of what `raster` found of a box table (N, 13); `grass`: in the place of sidewalks.

    Returns:
        Linear intensity (H, W) float32 behind the lens, about 1 for a white wall on a medium day; classes (H, W) uint8.
    """
    bright, blurred = np.empty(depth.shape, np.float32), np.empty(depth.shape, np.float32)
    label = np.empty(depth.shape, np.uint8)
    _shade(WORLD, depth, hit, boxes, camera, view, light, grass, bright, label)
    _lens(bright, blurred)
    return blurred, label


@njit(cache=True)
def _hash(i: int, j: int, seed: int) -> float:
    h = (i * 374761393 + j * 668265263 + seed * 2147483647) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 1274126177) & 0xFFFFFFFF
    return ((h ^ (h >> 16)) & 0xFFFF) / 65535.0


@njit(cache=True)
def _noise(u: float, v: float, seed: int) -> float:
    """Value noise between -0.5 and 0.5."""
    i, j = math.floor(u), math.floor(v)
    a, b = u - i, v - j
    a, b = a * a * (3 - 2 * a), b * b * (3 - 2 * b)
    low = _hash(i, j, seed) * (1 - a) + _hash(i + 1, j, seed) * a
    high = _hash(i, j + 1, seed) * (1 - a) + _hash(i + 1, j + 1, seed) * a
    return low * (1 - b) + high * b - 0.5


@njit(cache=True)
def _fade(frequency: float, footprint: float) -> float:
    """1 for patterns a pixel resolves, 0 beyond 0.8 of its sampling limit."""
    return min(max(1.6 - 2.0 * frequency * footprint, 0.0), 1.0)


@njit(cache=True)
def _octaves(u: float, v: float, seed: int, footprint: float, frequency: float) -> float:
    value, weight = 0.0, 1.0
    for octave in range(3):
        seen = _fade(frequency, footprint)
        if seen <= 0.0:
            break
        value += weight * seen * _noise(u * frequency, v * frequency, seed + octave)
        frequency *= 3.1
        weight *= 0.62
    return value


@njit(cache=True)
def _stripes(u: float, period: float, duty: float, footprint: float) -> float:
    """Stripes of mean 0 and height 1."""
    phase = u / period - math.floor(u / period)
    return ((1.0 if phase < duty else 0.0) - duty) * _fade(1.0 / period, footprint)


@njit(cache=True)
def _line(distance: float, half: float, footprint: float) -> float:
    """Share of a pixel that a line of width 2 * half covers."""
    covered = (half + 0.5 * footprint - abs(distance)) / max(footprint, 1e-6)
    return min(max(covered, 0.0), min(1.0, 2.0 * half / max(footprint, 1e-6)))


@njit(cache=True)
def _markings(world: World, across: float, along: float, from_crossing: float, wide: float, long: float) -> float:
    """White paint on a road: `across` metres from its centre line, `along` it; footprints across and along."""
    if from_crossing > world.ROAD_HALF + 4.0:
        dash = 0.5 + _stripes(along, 4.0, 0.5, long)
        edge = _line(abs(across) - world.ROAD_HALF + 0.3, 0.09, wide)
        return max(dash * _line(across, 0.1, wide), edge)
    if from_crossing > world.ROAD_HALF + 3.4:
        return 1.0 if across * along < 0.0 else 0.0
    if from_crossing > world.ROAD_HALF + 0.4:
        return 0.5 + _stripes(across, 1.1, 0.5, wide)
    return 0.0


@njit(cache=True)
def _ground(world: World, x: float, y: float, wide_x: float, wide_y: float, grass: bool) -> tuple[float, int]:
    """Albedo and class of the ground; footprints in x and y in metres."""
    dx, dy = x - world.BLOCK * math.floor(x / world.BLOCK + 0.5), y - world.BLOCK * math.floor(y / world.BLOCK + 0.5)
    ax, ay = abs(dx), abs(dy)
    footprint = math.sqrt(wide_x * wide_y)
    if ax < world.ROAD_HALF or ay < world.ROAD_HALF:
        tar = 0.17 * (1 + 0.5 * _octaves(x, y, 3, footprint, 0.7) + 0.25 * _octaves(x, y, 13, footprint, 7.0))
        paint = 0.0
        if ay >= world.ROAD_HALF:
            paint = _markings(world, dx, dy, ay, wide_x, wide_y)
        elif ax >= world.ROAD_HALF:
            paint = _markings(world, dy, -dx, ax, wide_y, wide_x)
        return tar + (0.75 - tar) * paint, world.ROAD
    edge = min(ax, ay)
    if edge < world.ROAD_HALF + world.SIDEWALK_WIDTH and not grass:
        stone = 0.42 * (1 + 0.4 * _octaves(x, y, 5, footprint, 0.9) + 0.2 * _octaves(x, y, 15, footprint, 8.0))
        joint = max(_line(x - math.floor(x + 0.5), 0.04, wide_x), _line(y - math.floor(y + 0.5), 0.04, wide_y))
        kerb = _line(edge - world.ROAD_HALF, 0.16, wide_x if ax < ay else wide_y)
        stone *= 1 - 0.45 * joint
        return stone + (0.62 - stone) * kerb, world.SIDEWALK
    return 0.3 * (1 + 0.8 * _octaves(x, y, 7, footprint, 1.2)), world.TERRAIN


@njit(cache=True)
def _facade(
    albedo: float, u: float, v: float, height: float, wall: int, seed: int, footprint: float
) -> tuple[float, float]:
    """Albedo of a house front with windows, and the light from the lit ones."""
    glow = 0.0
    if wall < UP:
        period = 2.2 + 1.6 * _hash(seed, 1, 2)
        opening = 0.35 + 0.25 * _hash(seed, 3, 4)
        seen = _fade(1.0 / period, footprint)
        column, storey = math.floor(u / period), math.floor(height / 3.0)
        across, up = u / period - column, height / 3.0 - storey
        if across < opening and 0.3 < up < 0.75:
            glass = 0.08 + 0.35 * _hash(column, storey, seed)
            albedo += (glass - albedo) * seen
            if _hash(column, storey, seed + 31) > 0.72:
                glow = 0.5 * seen
    pattern = 0.45 * _octaves(u, v, seed, footprint, 0.5) + 0.25 * _octaves(u, v, seed + 9, footprint, 5.0)
    return albedo * (1 + pattern), glow


@njit(cache=True)
def _bodywork(
    world: World, albedo: float, box: Array, u: float, v: float, face: int, seed: int, footprint: float
) -> tuple[float, float]:
    """Paint, lamps and number plate of a vehicle, and the light from the lamps."""
    albedo *= 1 + 0.12 * _octaves(u, v, seed, footprint, 1.0)
    if face != FRONT and face != BACK:
        return albedo, 0.0
    level = box[world.CZ] + v
    if 0.6 < level < 0.85 and abs(u) > 0.6 * box[world.HY]:
        lit = 1.0 if box[world.INSTANCE] < world.PARKED else 0.0
        return (0.95, 2.5 * lit) if face == FRONT else (0.5, 0.2 * lit)
    if 0.35 < level < 0.5 and abs(u) < 0.28:
        return 0.9, 0.0
    return albedo, 0.0


@njit(cache=True)
def _cabin(
    world: World, albedo: float, box: Array, u: float, v: float, face: int, seed: int, footprint: float
) -> float:
    """Paint with a pane of glass on each side."""
    if face < UP:
        half = box[world.HY] if face < LEFT else box[world.HX]
        if abs(u) < 0.87 * half and abs(v + 0.05 * box[world.HZ]) < 0.72 * box[world.HZ]:
            return 0.06 + 0.1 * (0.5 + _noise(2 * u, 2 * v, seed))
    return albedo * (1 + 0.12 * _octaves(u, v, seed, footprint, 1.0))


@njit(cache=True)
def _pattern(
    world: World, box: Array, face: int, u: float, v: float, height: float, footprint: float
) -> tuple[float, float]:
    """Albedo and glow of a point (u, v) on a box's face, `height` metres above the ground."""
    texture, albedo = int(box[world.TEXTURE]), box[world.ALBEDO]
    seed = int(box[world.SEED] * 7.3) + face
    glow = 0.0
    if texture == world.FACADE:
        albedo, glow = _facade(albedo, u, v, height, face, seed, footprint)
    elif texture == world.PLANKS:
        albedo *= 1 + _stripes(u, 0.5, 0.5, footprint) + 0.3 * _octaves(u, v, seed, footprint, 2.0)
    elif texture == world.BRICKS:
        albedo *= 1 + 0.6 * _stripes(height, 0.3, 0.2, footprint) + 0.6 * _octaves(u, v, seed, footprint, 1.5)
    elif texture == world.LEAVES:
        albedo *= 1 + 1.5 * _octaves(u, v, seed, footprint, 2.2)
    elif texture == world.BODYWORK:
        albedo, glow = _bodywork(world, albedo, box, u, v, face, seed, footprint)
    elif texture == world.CABIN:
        albedo = _cabin(world, albedo, box, u, v, face, seed, footprint)
    elif texture == world.CLOTH:
        albedo *= 1 + 0.7 * _octaves(u, v, seed, footprint, 4.0)
    elif texture == world.PANEL:
        albedo *= 1 + (1.2 if abs(u) < 0.7 * box[world.HX] else 0.2) * _stripes(v, 0.25, 0.4, footprint)
    elif texture == world.LAMP:
        glow = 4.0 if face == DOWN else 1.5
    else:
        albedo *= 1 + 0.3 * _octaves(u, v, seed, footprint, 3.0)
    return max(albedo, DARK_ALBEDO), glow


@njit(cache=True)
def _facing(face: int, cos: float, sin: float, sun_x: float, sun_y: float) -> float:
    """Light that a surface gets by the way it faces, at least 0.25."""
    if face == UP:
        towards = 0.8
    elif face == DOWN:
        towards = -0.8
    elif face == FRONT:
        towards = cos * sun_x + sin * sun_y
    elif face == BACK:
        towards = -cos * sun_x - sin * sun_y
    elif face == LEFT:
        towards = cos * sun_y - sin * sun_x
    else:
        towards = sin * sun_x - cos * sun_y
    return max(0.62 + 0.38 * towards, 0.25)


@njit(cache=True)
def _shade(
    world: World,
    depth: Image,
    hit: npt.NDArray[np.int32],
    boxes: Array,
    camera: Camera,
    view: View,
    light: Light,
    grass: bool,
    bright: Image,
    label: Label,
) -> None:
    eye, axes = view
    strength, azimuth, headlights, street_lamps, sky = light
    night = 1.0 if headlights > 0.0 else 0.0
    sun_x, sun_y = 0.6 * math.cos(azimuth), 0.6 * math.sin(azimuth)
    height, width = depth.shape
    for y in range(height):
        v = (y + 0.5 - camera.row) / camera.focal
        for x in range(width):
            u = (x + 0.5 - camera.column) / camera.focal
            index, t = hit[y, x], depth[y, x]
            d0 = axes[0, 0] - u * axes[1, 0] - v * axes[2, 0]
            d1 = axes[0, 1] - u * axes[1, 1] - v * axes[2, 1]
            d2 = axes[0, 2] - u * axes[1, 2] - v * axes[2, 2]
            if index == world.SKY_HIT:
                albedo = 1.15 + 0.25 * max(d2, 0.0) + 0.15 * _noise(3 * math.atan2(d1, d0), 6 * d2, 99)
                bright[y, x], label[y, x] = strength * sky * np.float32(albedo), world.SKY
                continue
            footprint = t / camera.focal
            wx, wy, wz = eye[0] + t * d0, eye[1] + t * d1, eye[2] + t * d2
            cos, sin, face, glow = 1.0, 0.0, UP, 0.0
            if index == world.BONNET_HIT:
                albedo, label[y, x] = 0.12 + 0.1 * (height - y) / height, world.CAR
            elif index == world.GROUND_HIT:
                level = math.sqrt(d0 * d0 + d1 * d1)
                slant = min(level / -d2, 12.0)
                wide_x = footprint * (abs(d1) + slant * abs(d0)) / level
                wide_y = footprint * (abs(d0) + slant * abs(d1)) / level
                albedo, label[y, x] = _ground(world, wx, wy, wide_x, wide_y, grass)
            else:
                box = boxes[index]
                cos, sin, label[y, x] = box[world.COS], box[world.SIN], int(box[world.CLASS])
                ox, oy, oz = wx - box[world.CX], wy - box[world.CY], wz - box[world.CZ]
                px, py = cos * ox + sin * oy, cos * oy - sin * ox
                side_x, side_y, side_z = abs(px) / box[world.HX], abs(py) / box[world.HY], abs(oz) / box[world.HZ]
                if side_x >= side_y and side_x >= side_z:
                    face, a, b = (FRONT if px > 0 else BACK), py, oz
                elif side_y >= side_z:
                    face, a, b = (LEFT if py > 0 else RIGHT), px, oz
                else:
                    face, a, b = (UP if oz > 0 else DOWN), px, py
                albedo, glow = _pattern(world, box, face, a, b, oz + box[world.CZ], footprint)
            falling = strength * _facing(face, cos, sin, sun_x, sun_y)
            if headlights > 0.0:
                pool = (math.cos(math.pi * wx / 24.0) * math.cos(math.pi * wy / 24.0)) ** 2
                falling *= 1.0 + street_lamps * pool
                beam = math.exp(-4.0 * u * u - 6.0 * max(-v, 0.0)) / (1.0 + (t / 7.0) ** 2)
                falling += headlights * beam if index != world.BONNET_HIT else 0.0
            bright[y, x] = falling * np.float32(albedo) + np.float32(glow * night)


@njit(cache=True)
def _lens(image: Image, blurred: Image) -> None:
    """Weights 1 2 1 in both directions; the border repeats."""
    height, width = image.shape
    for y in range(height):
        above, below = max(y - 1, 0), min(y + 1, height - 1)
        for x in range(width):
            left, right = max(x - 1, 0), min(x + 1, width - 1)
            total = 4.0 * image[y, x] + image[above, left] + image[above, right] + image[below, left]
            total += image[below, right] + 2.0 * (image[above, x] + image[below, x] + image[y, left] + image[y, right])
            blurred[y, x] = total / 16.0
