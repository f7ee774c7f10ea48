"""Ray-cast and shade oriented boxes on a flat street grid. Units: metres, radians, pixels.

Constants used by a kernel are defined in this file, because numba's cache only detects changes in
the kernel's file.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit
from scipy.ndimage import correlate1d

Array = npt.NDArray[np.float64]
Image = npt.NDArray[np.float32]
Hit = npt.NDArray[np.int32]
Label = npt.NDArray[np.uint8]

# Surface classes, which `layouts` maps to the classes of each data set.
ROAD, SIDEWALK, TERRAIN, SKY, BUILDING, WALL, FENCE, POLE, SIGN, VEGETATION = range(10)
PERSON, RIDER, CAR, TRUCK, TWO_WHEELER = range(10, 15)
# Columns of a box table (N, 14): centre, half extents, cosine and sine of the yaw, ...; SWING:
# metres, while walking.
CX, CY, CZ, HX, HY, HZ, COS, SIN, CLASS, INSTANCE, ALBEDO, TEXTURE, SEED, SWING = range(14)
# Textures: frequency (1/m) and contrast of the noise, period (m) and contrast of the stripes.
PLAIN, FACADE, PLANKS, LEAVES, BODYWORK, CABIN, CLOTH, BANDS, LAMP = range(9)
TEXTURES = (
    (3.0, 0.2, 1.0, 0.0),
    (2.5, 0.2, 1.1, 0.3),
    (2.0, 0.3, 0.5, 1.0),
    (2.5, 2.0, 1.0, 0.0),
    (1.0, 0.12, 0.5, 0.6),
    (1.0, 0.12, 0.5, 0.6),
    (4.0, 0.4, 0.3, 0.6),
    (3.0, 0.2, 0.5, 1.2),
    (1.0, 0.0, 1.0, 0.0),
)
# Street grid: centre lines every SPACING m in both directions, then road, sidewalk and block.
SPACING, SIDEWALK_WIDTH = 48.0, 3.0
STANDING = 1000  # first instance of parked cars (lamps off) and of people at the kerb
NOTHING = -1  # instead of a row of the box table: ground, sky or bonnet
FRONT, BACK, LEFT, RIGHT, UP, DOWN = range(6)  # faces of a box in its own frame
NEAR, FAR = 0.15, 95.0
SMALLEST = 0.6  # px: smaller boxes are skipped
DARK_ALBEDO = 0.02
LENS = np.array([0.25, 0.5, 0.25])  # blur kernel along both axes


class Camera(NamedTuple):
    """Size, focal length and principal point of a camera in px."""

    height: int
    width: int
    focal: float
    column: float
    row: float
    bonnet_row: int  # first row that shows the ego car's bonnet


class CameraPose(NamedTuple):
    """Position (3,) in m, and the directions forward, left and up as rows of (3, 3)."""

    position: Array
    axes: Array


class SceneContext(NamedTuple):
    """Lighting, ground and wind of a street."""

    light: float  # strength of the light from above
    azimuth: float  # of the sun, rad
    headlights: float  # strength; 0 by day
    street_lamps: float
    sky: float
    road: float  # half width of the road, m
    grass: bool  # instead of sidewalks
    wind: float  # displacement of leaves and grass, m


def render(
    boxes: Array, camera: Camera, pose: CameraPose, scene: SceneContext
) -> tuple[Image, Image, Hit, Label]:
    """Render boxes on the street grid.

    Args:
        boxes: box table (N, 14) in world coordinates.
        camera: size and intrinsics.
        pose: position and orientation of the camera.
        scene: lighting, ground and wind.

    Returns:
        Images (H, W): linear intensity behind the lens, about 1 for a white wall on a medium day;
        depth along the optical axis, infinite for the sky, 1 for the bonnet; row of the visible
        box, or -1; classes.
    """
    shape = (camera.height, camera.width)
    free = slice(0, camera.bonnet_row)
    bright = np.full(shape, 0.1 * scene.light, np.float32)
    depth = np.full(shape, 1.0, np.float32)
    hit = np.full(shape, NOTHING, np.int32)
    label = np.full(shape, CAR, np.uint8)
    depth[free] = np.inf
    _hit(depth[free], hit[free], boxes, camera, pose)
    _shade(depth[free], hit[free], boxes, camera, pose, scene, bright[free], label[free])
    for axis in (0, 1):
        bright = correlate1d(bright, LENS, axis, mode="nearest")
    return bright, depth, hit, label


@njit(cache=True)
def _slab(offset: float, direction: float, half: float) -> tuple[float, float]:
    if abs(direction) < 1e-9:
        direction = 1e-9
    a, b = (-half - offset) / direction, (half - offset) / direction
    return min(a, b), max(a, b)


@njit(cache=True)
def _turned(vector: Array, cos: float, sin: float) -> tuple[float, float, float]:
    return cos * vector[0] + sin * vector[1], cos * vector[1] - sin * vector[0], vector[2]


@njit(cache=True)
def _hit(depth: Image, hit: Hit, boxes: Array, camera: Camera, pose: CameraPose) -> None:
    eye, axes = pose
    focal, column, row = camera.focal, camera.column, camera.row
    height, width = depth.shape
    for index in range(boxes.shape[0]):
        box = boxes[index]
        dx, dy, dz = box[CX] - eye[0], box[CY] - eye[1], box[CZ] - eye[2]
        hx, hy, hz = box[HX], box[HY], box[HZ]
        cos, sin = box[COS], box[SIN]
        radius = math.sqrt(hx * hx + hy * hy + hz * hz)
        ahead = axes[0, 0] * dx + axes[0, 1] * dy + axes[0, 2] * dz
        if ahead < -radius or ahead - radius > FAR:
            continue
        if 2 * focal * radius < SMALLEST * max(ahead, 0.3):
            continue
        # Skip a box whose bounding sphere is left or right of the image.
        aside = abs(axes[1, 0] * dx + axes[1, 1] * dy + axes[1, 2] * dz)
        if aside * focal - ahead * column > radius * math.sqrt(focal * focal + column * column):
            continue
        left, right, top, bottom = np.inf, -np.inf, np.inf, -np.inf
        behind = 0
        for corner in range(8):
            px = hx if corner & 1 else -hx
            py = hy if corner & 2 else -hy
            wx = dx + cos * px - sin * py
            wy = dy + sin * px + cos * py
            wz = dz + (hz if corner & 4 else -hz)
            z = axes[0, 0] * wx + axes[0, 1] * wy + axes[0, 2] * wz
            if z < NEAR:
                behind += 1
                continue
            x = column - focal * (axes[1, 0] * wx + axes[1, 1] * wy + axes[1, 2] * wz) / z
            y = row - focal * (axes[2, 0] * wx + axes[2, 1] * wy + axes[2, 2] * wz) / z
            left, right = min(left, x), max(right, x)
            top, bottom = min(top, y), max(bottom, y)
        if behind == 8:
            continue
        if behind > 0:
            left, right, top, bottom = 0.0, float(width), 0.0, float(height)
        x0, x1 = int(max(left, 0.0)), int(min(right + 1.0, float(width)))
        y0, y1 = int(max(top, 0.0)), int(min(bottom + 1.0, float(height)))
        nearest = ahead - radius
        # The ray forward - u * left - v * up in the frame of the box.
        ox, oy = -(cos * dx + sin * dy), sin * dx - cos * dy
        fx, fy, fz = _turned(axes[0], cos, sin)
        lx, ly, lz = _turned(axes[1], cos, sin)
        ux, uy, uz = _turned(axes[2], cos, sin)
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
    """Weight of a pattern, given a pixel's footprint in m.

    1 up to 0.3 of the sampling frequency, 0 from 0.8 on.
    """
    return min(max(1.6 - 2.0 * frequency * footprint, 0.0), 1.0)


@njit(cache=True)
def _texture(u: float, v: float, seed: int, footprint: float, frequency: float) -> float:
    """Noise of two octaves; octaves that are too fine for a pixel fade out."""
    value = 0.0
    for octave in range(2):
        weight = (1.0 - 0.3 * octave) * _fade(frequency, footprint)
        if weight > 0.0:
            value += weight * _noise(u * frequency, v * frequency, seed + octave)
        frequency *= 3.1
    return value


@njit(cache=True)
def _stripes(u: float, period: float, footprint: float) -> float:
    """Stripes of mean 0 and peak-to-peak height 1."""
    stripe = 0.5 if u / period - math.floor(u / period) < 0.5 else -0.5
    return stripe * _fade(1.0 / period, footprint)


@njit(cache=True)
def _line(distance: float, half: float, footprint: float) -> float:
    """Fraction of a pixel covered by a line of width 2 * half."""
    covered = (half + 0.5 * footprint - abs(distance)) / footprint
    return min(max(covered, 0.0), min(1.0, 2.0 * half / footprint))


@njit(cache=True)
def _ground(x: float, y: float, footprint: float, scene: SceneContext) -> tuple[float, int]:
    """Albedo and class of the ground at (x, y), for a pixel footprint in m."""
    # distances from the nearest centre lines
    dx = x - SPACING * math.floor(x / SPACING + 0.5)
    dy = y - SPACING * math.floor(y / SPACING + 0.5)
    ax, ay = abs(dx), abs(dy)
    if min(ax, ay) < scene.road:
        tar = 0.17 * (1 + _texture(x, y, 3, footprint, 3.0))
        paint = 0.0
        across, along, beyond = (dx, y, ay - scene.road) if ay > ax else (dy, x, ax - scene.road)
        if beyond > 3.4:  # dashes in the middle, lines at the edges
            paint = (0.5 + _stripes(along, 4.0, footprint)) * _line(across, 0.1, footprint)
            paint = max(paint, _line(abs(across) - scene.road + 0.3, 0.09, footprint))
        elif beyond > 0.4:
            paint = 0.5 + _stripes(across, 1.1, footprint)
        return tar + (0.75 - tar) * paint, ROAD
    if min(ax, ay) < scene.road + SIDEWALK_WIDTH and not scene.grass:
        stone = 0.42 * (1 + 0.4 * _texture(x, y, 5, footprint, 0.9))
        joint = max(
            _line(x - math.floor(x + 0.5), 0.04, footprint),
            _line(y - math.floor(y + 0.5), 0.04, footprint),
        )
        return stone * (1 - 0.45 * joint), SIDEWALK
    return 0.3 * (1 + 1.6 * _texture(x + scene.wind, y, 7, footprint, 2.5)), TERRAIN


@njit(cache=True)
def _surface(
    box: Array, face: int, u: float, v: float, height: float, footprint: float, wind: float
) -> tuple[float, float]:
    """Albedo and emitted light of the point (u, v) on a face, `height` metres above the ground."""
    texture = int(box[TEXTURE])
    albedo = box[ALBEDO]
    glow = 0.0
    seed = int(box[SEED] * 7.3) + face
    frequency, contrast, period, stripes = TEXTURES[texture]
    upright = face < UP
    if texture == FACADE and upright:  # windows, some of them lit
        period = 2.2 + 1.6 * _hash(seed, 1, 2)
        column, storey = math.floor(u / period), math.floor(height / 3.0)
        across = u / period - column
        if across < 0.35 + 0.25 * _hash(seed, 3, 4) and 0.3 < height / 3.0 - storey < 0.75:
            weight = _fade(1.0 / period, footprint)
            albedo += (0.08 + 0.2 * _hash(column, storey, seed) - albedo) * weight
            glow = 0.5 * weight if _hash(column, storey, seed + 31) > 0.72 else 0.0
    elif texture == CABIN and upright:  # a pane of glass on each side
        half = box[HY] if face < LEFT else box[HX]
        if abs(u) < 0.87 * half and abs(v) < 0.75 * box[HZ]:
            return 0.06 + 0.1 * (0.5 + _noise(2 * u, 2 * v, seed)), 0.0
    elif texture == BODYWORK and face <= BACK:
        if 0.6 < height < 0.85 and abs(u) > 0.6 * box[HY]:  # lamps
            lit = 1.0 if box[INSTANCE] < STANDING else 0.0
            return (0.95, 2.5 * lit) if face == FRONT else (0.5, 0.2 * lit)
    elif texture == LAMP:
        glow = 4.0 if face == DOWN else 1.5
    elif texture == LEAVES:
        u, v = u + wind, v + 0.5 * wind
    pattern = contrast * _texture(u, v, seed, footprint, frequency)
    if stripes > 0.0:
        pattern += stripes * _stripes(v if texture >= CLOTH else u, period, footprint)
    return max(albedo * (1 + pattern), DARK_ALBEDO), glow


@njit(cache=True)
def _shade(
    depth: Image,
    hit: Hit,
    boxes: Array,
    camera: Camera,
    pose: CameraPose,
    scene: SceneContext,
    bright: Image,
    label: Label,
) -> None:
    eye, axes = pose
    night = 1.0 if scene.headlights > 0.0 else 0.0
    sun_x, sun_y = math.cos(scene.azimuth), math.sin(scene.azimuth)
    for y in range(depth.shape[0]):
        v = (y + 0.5 - camera.row) / camera.focal
        for x in range(depth.shape[1]):
            u = (x + 0.5 - camera.column) / camera.focal
            index = hit[y, x]
            t = depth[y, x]
            d0 = axes[0, 0] - u * axes[1, 0] - v * axes[2, 0]
            d1 = axes[0, 1] - u * axes[1, 1] - v * axes[2, 1]
            d2 = axes[0, 2] - u * axes[1, 2] - v * axes[2, 2]
            ground = index == NOTHING and d2 < -1e-4 and -eye[2] / d2 < FAR
            if ground:
                depth[y, x] = t = -eye[2] / d2
            elif index == NOTHING:
                bright[y, x] = scene.light * scene.sky * (1.15 + 0.25 * max(d2, 0.0))
                label[y, x] = SKY
                continue
            footprint = t / camera.focal
            wx, wy, wz = eye[0] + t * d0, eye[1] + t * d1, eye[2] + t * d2
            towards = 0.5  # facing up
            glow = 0.0
            if ground:
                level = math.sqrt(d0 * d0 + d1 * d1) + 1e-6
                footprint *= math.sqrt(min(level / -d2, 12.0))
                albedo, label[y, x] = _ground(wx, wy, footprint, scene)
            else:
                box = boxes[index]
                label[y, x] = int(box[CLASS])
                cos, sin = box[COS], box[SIN]
                ox, oy, oz = wx - box[CX], wy - box[CY], wz - box[CZ]
                px, py = cos * ox + sin * oy, cos * oy - sin * ox
                side_x, side_y, side_z = abs(px) / box[HX], abs(py) / box[HY], abs(oz) / box[HZ]
                if side_x >= side_y and side_x >= side_z:
                    face = FRONT if px > 0 else BACK
                    a, b = py, oz
                    towards = (cos * sun_x + sin * sun_y) * (0.4 if px > 0 else -0.4)
                elif side_y >= side_z:
                    face = LEFT if py > 0 else RIGHT
                    a, b = px, oz
                    towards = (cos * sun_y - sin * sun_x) * (0.4 if py > 0 else -0.4)
                else:
                    face = UP if oz > 0 else DOWN
                    a, b = px, py
                    towards = 0.5 if oz > 0 else -0.5
                albedo, glow = _surface(box, face, a, b, wz, footprint, scene.wind)
            falling = scene.light * (0.6 + 0.6 * towards)
            if night > 0.0:
                pool = (math.cos(math.pi * wx / 24.0) * math.cos(math.pi * wy / 24.0)) ** 2
                falling *= 1.0 + scene.street_lamps * pool
                beam = scene.headlights * math.exp(-4.0 * u * u - 6.0 * max(-v, 0.0))
                falling += beam / (1.0 + (t / 7.0) ** 2)
            bright[y, x] = falling * albedo + glow * night
