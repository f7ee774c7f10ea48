"""Objects of a street, built from boxes: vehicles, people, houses, parks and kerbs."""

from collections.abc import Iterator
from itertools import count

import numpy as np

from tespec.sample import render
from tespec.sample.render import (
    COS,
    CX,
    CY,
    FAR,
    PLAIN,
    SIDEWALK_WIDTH,
    SIN,
    SPACING,
    STANDING,
    SWING,
    Array,
)

LANE, PARKING = 1.7, 4.1  # m from the centre line
TRUCK_FRACTION = 0.2
Point = tuple[float, float, float]
Row = tuple[float, ...]


class Variation:
    """Random properties of a street, so that a pixel's position reveals little about its class."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 5])
        # 1: traffic keeps to the right, -1: to the left
        self.side = 1 if rng.random() < 0.5 else -1
        self.focal = rng.uniform(0.7, 1.4)  # focal length relative to the image width
        self.height = rng.uniform(1.2, 3.0)  # height of the camera above the ground, m
        # row of the horizon as a fraction of the rows above the bonnet
        self.horizon = rng.uniform(0.12, 0.88)
        self.yaw = rng.uniform(-0.5, 0.5)  # of the camera relative to the road, rad
        self.roll = rng.uniform(-0.08, 0.08)  # rad
        self.road = rng.uniform(3.0, 4.6)  # half width of the road, m
        # fraction of blocks that are parks, and density of trees; above 0.4, sidewalks are of grass
        self.green = rng.uniform(0.2, 1.0)
        self.crowd = rng.uniform(0.3, 1.1)  # relative density of people and vehicles
        self.light = rng.uniform(0.4, 1.4)  # relative strength of the daylight


def box(
    centre: Point,
    half: Point,
    label: int,
    albedo: float,
    texture: int = PLAIN,
    seed: float = 0.0,
    swing: float = 0.0,
) -> Row:
    """Build a row of a box table, with instance 0.

    Args:
        centre: position in m.
        half: half extents in m.
        label: class of the surface, one of `render`.
        albedo: mean reflectance.
        texture: texture of `render`.
        seed: seed of the texture.
        swing: amplitude in m of the motion along x while walking.
    """
    # cosine and sine of yaw 0 before the label, instance 0 after it
    return (*centre, *half, 1.0, 0.0, label, 0, albedo, texture, seed, swing)


def table(rows: list[Row], instance: int = 0) -> Array:
    """Stack rows to a box table.

    Args:
        rows: of `box`.
        instance: id of the road user; rows of other classes, such as its shadow, keep 0.

    Returns:
        (N, 14) float64.
    """
    boxes = np.array(rows, np.float64).reshape(-1, SWING + 1)
    is_road_user = boxes[:, render.CLASS] >= render.PERSON
    boxes[is_road_user, render.INSTANCE] = instance
    return boxes


def transform(boxes: Array, x: Array | float, y: Array | float, yaw: Array | float) -> Array:
    """Move boxes from the body frame, where x points forward, to a pose.

    Args:
        boxes: box table (N, 14).
        x: position in m, (N,) or a scalar.
        y: position in m, (N,) or a scalar.
        yaw: heading in rad, (N,) or a scalar.

    Returns:
        Box table (N, 14).
    """
    cos, sin = np.cos(yaw), np.sin(yaw)
    moved = boxes.copy()
    moved[:, CX] = x + cos * boxes[:, CX] - sin * boxes[:, CY]
    moved[:, CY] = y + sin * boxes[:, CX] + cos * boxes[:, CY]
    moved[:, COS] = cos * boxes[:, COS] - sin * boxes[:, SIN]
    moved[:, SIN] = sin * boxes[:, COS] + cos * boxes[:, SIN]
    return moved


def vehicle(rng: np.random.Generator, instance: int) -> Array:
    """Build a passenger car (4.2 m) or a delivery truck with a cab (6.4 m), and its shadow.

    Args:
        rng: generator of its properties.
        instance: id of the vehicle.

    Returns:
        Box table (N, 14) in the body frame.
    """
    paint = rng.choice((rng.uniform(0.05, 0.2), rng.uniform(0.5, 0.9)))  # dark or bright
    seed = rng.uniform(0, 1000)
    if rng.random() < TRUCK_FRACTION:
        label = render.TRUCK
        rear, front = -2.0, 2.3  # x of the axles
        track = 1.0  # y of the wheels
        body = box((-0.8, 0.0, 1.75), (2.4, 1.1, 1.25), label, paint, render.BODYWORK, seed)
        cabin = box((2.4, 0.0, 1.3), (0.75, 1.05, 0.85), label, paint, render.CABIN, seed)
    else:
        label = render.CAR
        rear, front = -1.3, 1.3
        track = 0.82
        body = box((0.0, 0.0, 0.64), (2.1, 0.88, 0.36), label, paint, render.BODYWORK, seed)
        cabin = box((-0.25, 0.0, 1.25), (1.2, 0.76, 0.27), label, paint, render.CABIN, seed)
    # a flat dark box, labelled as road
    shadow = box((0.0, 0.0, 0.004), (front + 0.95, track + 0.16, 0.004), render.ROAD, 0.05)
    wheels = [
        box((x, y, 0.33), (0.33, 0.11, 0.33), label, 0.05)
        for x in (rear, front)
        for y in (-track, track)
    ]
    return table([shadow, body, cabin, *wheels], instance)


# Centre, half extents, brightness relative to the clothes, swing along x while walking (m),
# texture.
LIMBS = (
    ((0.0, 0.0, 1.14), (0.17, 0.26, 0.33), 1.0, 0.0, render.CLOTH),
    ((0.0, 0.0, 1.61), (0.13, 0.12, 0.14), 0.5, 0.0, PLAIN),
    ((0.0, 0.11, 0.41), (0.11, 0.1, 0.41), 0.6, 0.2, PLAIN),
    ((0.0, -0.11, 0.41), (0.11, 0.1, 0.41), 0.6, -0.2, PLAIN),
    ((0.0, 0.32, 1.08), (0.08, 0.07, 0.3), 0.8, -0.14, render.CLOTH),
    ((0.0, -0.32, 1.08), (0.08, 0.07, 0.3), 0.8, 0.14, render.CLOTH),
)


def person(rng: np.random.Generator, instance: int) -> Array:
    """Build a pedestrian, 1.75 m tall.

    Args:
        rng: generator of its properties.
        instance: id of the person.
    """
    clothes = rng.uniform(0.08, 0.85)
    seed = rng.uniform(0, 1000)
    rows = [
        box(centre, half, render.PERSON, brightness * clothes, texture, seed, swing)
        for centre, half, brightness, swing, texture in LIMBS
    ]
    return table(rows, instance)


BICYCLE = (  # centre and half extents
    ((-0.52, 0, 0.34), (0.34, 0.05, 0.34)),
    ((0.52, 0, 0.34), (0.34, 0.05, 0.34)),
    ((0, 0, 0.66), (0.58, 0.07, 0.14)),
    ((0.48, 0, 1.0), (0.06, 0.3, 0.05)),
)
CYCLIST = (
    ((-0.1, 0, 1.22), (0.2, 0.24, 0.36)),
    ((0.02, 0, 1.72), (0.14, 0.13, 0.15)),
    ((0, -0.14, 0.7), (0.12, 0.09, 0.32)),
    ((0, 0.14, 0.7), (0.12, 0.09, 0.32)),
)


def cyclist(rng: np.random.Generator, instance: int) -> Array:
    """Build a two-wheeler and its rider.

    Args:
        rng: generator of their properties.
        instance: id of both.
    """
    clothes = rng.uniform(0.08, 0.85)
    seed = rng.uniform(0, 1000)
    rows = [box(centre, half, render.TWO_WHEELER, 0.1) for centre, half in BICYCLE]
    rows += [
        box(centre, half, render.RIDER, clothes, render.CLOTH, seed) for centre, half in CYCLIST
    ]
    return table(rows, instance)


def city(seed: int, variation: Variation, first: float, last: float) -> Array:
    """Build all blocks visible on a drive along y = 0.

    A longer drive does not change the first blocks.

    Args:
        seed: seed of the street.
        variation: its random properties.
        first: x in m at the start of the drive.
        last: x in m at its end.

    Returns:
        Box table (M, 14) in world coordinates.
    """
    tables = []
    instances = count(STANDING)
    reach = FAR + SPACING / 2
    half = SPACING / 2 - variation.road - SIDEWALK_WIDTH  # half side of the houses' square
    for i in range(int((first - reach) // SPACING), int((last + reach) // SPACING) + 1):
        for j in range(-2, 2):
            rng = np.random.default_rng([seed, i + 2**20, j + 2**20])  # may not be negative
            is_park = rng.random() < variation.green
            for quarter in range(4):
                rows = _park(rng, half) if is_park else _houses(rng, half)
                boxes = np.concatenate([table(rows), *_kerb(rng, variation, half, instances)])
                yaw = quarter * np.pi / 2
                tables.append(transform(boxes, (i + 0.5) * SPACING, (j + 0.5) * SPACING, yaw))
    return np.concatenate(tables)


def _houses(rng: np.random.Generator, half: float) -> list[Row]:
    """Build houses, fences and walls along one side of a block, whose road is at y < -half."""
    rows = []
    x = -half
    while x < half - 3:
        width = min(rng.uniform(6, 13), half - x)
        seed = rng.uniform(0, 1000)
        albedo = rng.uniform(0.18, 0.8)
        middle = x + width / 2
        if rng.random() < 0.2:
            height = rng.uniform(0.6, 1.2)
            centre = (middle, 0.3 - half, height)
            extents = (width / 2, 0.15, height)
            is_fence = rng.random() < 0.6
            label = render.FENCE if is_fence else render.WALL
            texture = render.PLANKS if is_fence else render.PLAIN
        else:
            height = rng.uniform(2, 8)
            depth = rng.uniform(4, 8)
            centre = (middle, rng.uniform(0, 1.5) + depth / 2 - half, height)
            extents = (width / 2, depth / 2, height)
            label = render.BUILDING
            texture = render.FACADE
        rows.append(box(centre, extents, label, albedo, texture, seed))
        x += width
    return rows


def _park(rng: np.random.Generator, half: float) -> list[Row]:
    rows = []
    for _ in range(8):
        rows += _tree(rng, rng.uniform(2 - half, half - 2), rng.uniform(2 - half, 10 - half))
    height = rng.uniform(0.5, 0.9)
    albedo = rng.uniform(0.2, 0.5)
    seed = rng.uniform(0, 1000)
    centre = (0, 0.3 - half, height)
    hedge = (half, 0.2, height)
    rows.append(box(centre, hedge, render.VEGETATION, albedo, render.LEAVES, seed))
    return rows


def _kerb(
    rng: np.random.Generator, variation: Variation, half: float, instances: Iterator[int]
) -> Iterator[Array]:
    """Yield lamp posts, signs, trees and people on the sidewalk, and parked vehicles."""
    green, crowd = variation.green, variation.crowd
    # of lamp post, sign, tree, person, vehicle, nothing
    weights = np.array([0.25, 1.3, 0.2 + 1.8 * green, 1.5 * crowd, 1.5 * crowd, 0.4])
    ends = np.cumsum(weights / weights.sum())
    x, y = 1.0 - half, 0.5 - half - SIDEWALK_WIDTH
    while x < half:
        kind = int(np.searchsorted(ends, rng.random()))
        heading = np.pi * rng.integers(2)
        if kind == 0:
            pole = box((x, y, 2.6), (0.2, 0.2, 2.6), render.POLE, 0.3, render.BANDS)
            yield table([pole, box((x, y, 5.2), (0.5, 0.16, 0.14), render.POLE, 0.6, render.LAMP)])
        elif kind == 1:
            size = rng.uniform(0.4, 0.8)
            albedo = rng.uniform(0.3, 0.9)
            pole = box((x, y, 0.75), (0.12, 0.12, 0.75), render.POLE, 0.4)
            centre = (x, y, 1.5 + size)
            sign = box(centre, (0.1, size, size), render.SIGN, albedo, render.BANDS)
            yield table([pole, sign])
        elif kind == 2:
            yield table(_tree(rng, x, y + 1.5))
        elif kind == 3:
            yield transform(person(rng, next(instances)), x, y, heading)
        elif kind == 4:
            yield transform(vehicle(rng, next(instances)), x + 1.5, PARKING - SPACING / 2, heading)
            x += 3.5  # its length
        x += rng.uniform(2.0, 4.5)


def _tree(rng: np.random.Generator, x: float, y: float) -> list[Row]:
    trunk = rng.uniform(1.4, 2.6)  # height, m
    radius = rng.uniform(1.0, 3.2)
    albedo = rng.uniform(0.12, 0.35)
    seed = rng.uniform(0, 1000)
    z = trunk / 2 + 0.2
    rows = [box((x, y, z), (0.16, 0.16, z), render.VEGETATION, 0.15, render.LEAVES, seed)]
    for height, size in ((0.9, 1.0), (1.7, 0.65)):
        half = (radius * size, radius * size, 0.9 * radius * size)
        centre = (x, y, trunk + radius * height)
        rows.append(box(centre, half, render.VEGETATION, albedo, render.LEAVES, seed))
    return rows
