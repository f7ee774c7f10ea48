"""Objects of a street, built from boxes: vehicles, people, houses, parks and everything at the kerb."""

from collections.abc import Iterator
from itertools import count

import numpy as np

from tespec.sample import render
from tespec.sample.render import (
    BLOCK,
    COS,
    CX,
    CY,
    FAR,
    PARKED,
    PLAIN,
    SIDEWALK_WIDTH,
    SIN,
    SWING,
    Array,
)

LANE, PARKING = 1.7, 4.1  # m from the centre line
TRUCK_SHARE = 0.2
Point = tuple[float, float, float]
Row = tuple[float, ...]


class Variation:
    """Random properties of a street, varied so that a pixel's position reveals little about its class."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 5])
        # 1: traffic keeps to the right, -1: to the left
        self.side = 1 if rng.random() < 0.5 else -1
        self.focal = rng.uniform(0.7, 1.4)  # focal length as a share of the image width
        self.height = rng.uniform(1.2, 3.0)  # height of the camera above the ground, m
        # row of the horizon, as a share of the labelled rows
        self.horizon = rng.uniform(0.12, 0.88)
        self.yaw = rng.uniform(-0.5, 0.5)  # of the camera relative to the road, rad
        self.roll = rng.uniform(-0.08, 0.08)  # rad
        self.road = rng.uniform(3.0, 4.6)  # half width of the road, m
        # share of parks among blocks; adds trees, and above 0.4 grass at kerbs
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
    """Row of a box table, with instance 0."""
    return (*centre, *half, 1.0, 0.0, label, 0, albedo, texture, seed, swing)


def table(rows: list[Row], instance: int = 0) -> Array:
    """Stack rows to a box table (N, 14) float64, and set `instance` on the rows of road users."""
    boxes = np.array(rows, np.float64).reshape(-1, SWING + 1)
    boxes[boxes[:, render.CLASS] >= render.PERSON, render.INSTANCE] = instance
    return boxes


def place(boxes: Array, x: Array | float, y: Array | float, yaw: Array | float) -> Array:
    """Move boxes (N, 14) from the body frame (x forward) to a pose; x, y and yaw are (N,) or scalars."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    placed = boxes.copy()
    placed[:, CX] = x + cos * boxes[:, CX] - sin * boxes[:, CY]
    placed[:, CY] = y + sin * boxes[:, CX] + cos * boxes[:, CY]
    placed[:, COS] = cos * boxes[:, COS] - sin * boxes[:, SIN]
    placed[:, SIN] = sin * boxes[:, COS] + cos * boxes[:, SIN]
    return placed


def vehicle(rng: np.random.Generator, instance: int) -> Array:
    """Boxes of a passenger car (4.2 m) or a delivery truck with a separate cab (6.4 m), and of its shadow."""
    paint, seed = rng.choice((rng.uniform(0.05, 0.2), rng.uniform(0.5, 0.9))), rng.uniform(0, 1000)
    label, axles, track, body, cabin = (
        render.CAR,
        (-1.3, 1.3),
        0.82,
        (2.1, 0.88, 0.36),
        (1.2, 0.76, 0.27),
    )
    body_at, cabin_at = (0.0, 0.0, 0.64), (-0.25, 0.0, 1.25)
    if rng.random() < TRUCK_SHARE:
        label, axles, track, body, cabin = (
            render.TRUCK,
            (-2.0, 2.3),
            1.0,
            (2.4, 1.1, 1.25),
            (0.75, 1.05, 0.85),
        )
        body_at, cabin_at = (-0.8, 0.0, 1.75), (2.4, 0.0, 1.3)
    rows = [
        box((0.0, 0.0, 0.004), (axles[1] + 0.95, track + 0.16, 0.004), render.ROAD, 0.05),
        box(body_at, body, label, paint, render.BODYWORK, seed),
        box(cabin_at, cabin, label, paint, render.CABIN, seed),
    ]
    rows += [
        box((x, y, 0.33), (0.33, 0.11, 0.33), label, 0.05) for x in axles for y in (-track, track)
    ]
    return table(rows, instance)


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
    """Boxes of a pedestrian, 1.75 m tall."""
    cloth, seed = rng.uniform(0.08, 0.85), rng.uniform(0, 1000)
    rows = [
        box(at, half, render.PERSON, lit * cloth, look, seed, swing)
        for at, half, lit, swing, look in LIMBS
    ]
    return table(rows, instance)


def cyclist(rng: np.random.Generator, instance: int) -> Array:
    """Boxes of a cyclist: a two-wheeler and its rider, which share an instance."""
    paint, seed = rng.uniform(0.08, 0.85), rng.uniform(0, 1000)
    bicycle = (
        ((-0.52, 0, 0.34), (0.34, 0.05, 0.34)),
        ((0.52, 0, 0.34), (0.34, 0.05, 0.34)),
        ((0, 0, 0.66), (0.58, 0.07, 0.14)),
        ((0.48, 0, 1.0), (0.06, 0.3, 0.05)),
    )
    rider = (
        ((-0.1, 0, 1.22), (0.2, 0.24, 0.36)),
        ((0.02, 0, 1.72), (0.14, 0.13, 0.15)),
        ((0, -0.14, 0.7), (0.12, 0.09, 0.32)),
        ((0, 0.14, 0.7), (0.12, 0.09, 0.32)),
    )
    rows = [box(at, half, render.TWO_WHEELER, 0.1) for at, half in bicycle]
    return table(
        rows + [box(at, half, render.RIDER, paint, render.CLOTH, seed) for at, half in rider],
        instance,
    )


def city(seed: int, varied: Variation, first: float, last: float) -> Array:
    """Build a box table (M, 14) of all blocks visible on a drive along y = 0 from x = `first` to `last`.

    A longer drive does not change the first blocks.
    """
    tables, instances = [], count(PARKED)
    reach, half = FAR + BLOCK / 2, BLOCK / 2 - varied.road - SIDEWALK_WIDTH
    for i in range(int((first - reach) // BLOCK), int((last + reach) // BLOCK) + 1):
        for j in range(-2, 2):
            rng = np.random.default_rng([seed, i + 2**20, j + 2**20])
            park = rng.random() < varied.green
            for quarter in range(4):
                side = _park(rng, half) if park else _houses(rng, half)
                boxes = np.concatenate([table(side), *_kerb(rng, varied, half, instances)])
                tables.append(
                    place(boxes, (i + 0.5) * BLOCK, (j + 0.5) * BLOCK, quarter * np.pi / 2)
                )
    return np.concatenate(tables)


def _houses(rng: np.random.Generator, half: float) -> list[Row]:
    """One side of a block, from x = -half to half with the road below y = -half: houses, fences and walls."""
    rows, at = [], -half
    while at < half - 3:
        width = min(rng.uniform(6, 13), half - at)
        seed, albedo, middle = rng.uniform(0, 1000), rng.uniform(0.18, 0.8), at + width / 2
        if rng.random() < 0.2:
            height = rng.uniform(0.6, 1.2)
            label, texture = (
                (render.FENCE, render.PLANKS) if rng.random() < 0.6 else (render.WALL, render.PLAIN)
            )
            rows.append(
                box(
                    (middle, 0.3 - half, height),
                    (width / 2, 0.15, height),
                    label,
                    albedo,
                    texture,
                    seed,
                )
            )
        else:
            height, depth, setback = rng.uniform(2, 8), rng.uniform(4, 8), rng.uniform(0, 1.5)
            centre = (middle, setback + depth / 2 - half, height)
            rows.append(
                box(
                    centre,
                    (width / 2, depth / 2, height),
                    render.BUILDING,
                    albedo,
                    render.FACADE,
                    seed,
                )
            )
        at += width
    return rows


def _park(rng: np.random.Generator, half: float) -> list[Row]:
    rows = []
    for _ in range(8):
        rows += _tree(rng, rng.uniform(2 - half, half - 2), rng.uniform(2 - half, 10 - half))
    height, albedo, seed = rng.uniform(0.5, 0.9), rng.uniform(0.2, 0.5), rng.uniform(0, 1000)
    rows.append(
        box(
            (0, 0.3 - half, height),
            (half, 0.2, height),
            render.VEGETATION,
            albedo,
            render.LEAVES,
            seed,
        )
    )
    return rows


def _kerb(
    rng: np.random.Generator, varied: Variation, half: float, instances: Iterator[int]
) -> Iterator[Array]:
    """Yield lamp posts, signs, trees and people on the sidewalk, and vehicles parked at the road's edge."""
    shares = np.array(
        [0.25, 1.3, 0.2 + 1.8 * varied.green, 1.5 * varied.crowd, 1.5 * varied.crowd, 0.4]
    )
    ends = np.cumsum(shares / shares.sum())
    at, y = 1.0 - half, 0.5 - half - SIDEWALK_WIDTH
    while at < half:
        kind = int(np.searchsorted(ends, rng.random()))
        heading = np.pi * rng.integers(2)
        if kind == 0:
            lamp = box((at, y, 5.2), (0.5, 0.16, 0.14), render.POLE, 0.6, render.LAMP)
            yield table([box((at, y, 2.6), (0.2, 0.2, 2.6), render.POLE, 0.3, render.BANDS), lamp])
        elif kind == 1:
            size = rng.uniform(0.4, 0.8)
            pole = box((at, y, 0.75), (0.12, 0.12, 0.75), render.POLE, 0.4)
            sign = (
                (at, y, 1.5 + size),
                (0.1, size, size),
                render.SIGN,
                rng.uniform(0.3, 0.9),
                render.BANDS,
            )
            yield table([pole, box(*sign)])
        elif kind == 2:
            yield table(_tree(rng, at, y + 1.5))
        elif kind == 3:
            yield place(person(rng, next(instances)), at, y, heading)
        elif kind == 4:
            yield place(vehicle(rng, next(instances)), at + 1.5, PARKING - BLOCK / 2, heading)
            at += 3.5
        at += rng.uniform(2.0, 4.5)


def _tree(rng: np.random.Generator, x: float, y: float) -> list[Row]:
    trunk, radius, albedo = rng.uniform(1.4, 2.6), rng.uniform(1.0, 3.2), rng.uniform(0.12, 0.35)
    seed, label, leaves = rng.uniform(0, 1000), render.VEGETATION, render.LEAVES
    rows = [box((x, y, trunk / 2 + 0.2), (0.16, 0.16, trunk / 2 + 0.2), label, 0.15, leaves, seed)]
    for height, size in ((0.9, 1.0), (1.7, 0.65)):
        half = (radius * size, radius * size, 0.9 * radius * size)
        rows.append(box((x, y, trunk + radius * height), half, label, albedo, leaves, seed))
    return rows
