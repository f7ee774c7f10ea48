"""The part of a street world that does not move: blocks of houses or parks with what stands on their kerbs."""

from __future__ import annotations

import math

import numpy as np

from tespec.sample import scene
from tespec.sample.scene import BLOCK, PARKED, PARKING, ROAD_HALF, SIDEWALK_WIDTH, Array, BoxList, Variation, place
from tespec.sample.traffic import TRUCK_SHARE, car, person, truck

INSET = ROAD_HALF + SIDEWALK_WIDTH
SIDE = BLOCK - 2 * INSET


def city(seed: int, varied: Variation, x: Array, y: Array, reach: float) -> Array:
    """Box table (M, 13) of all blocks whose centre is within `reach` metres of a path x, y (N,); parked cars included.

    A block depends on the seed and its place in the grid alone: a longer path never changes what an earlier part
    of it sees.
    """
    low_i, high_i = math.floor((x.min() - reach) / BLOCK), math.ceil((x.max() + reach) / BLOCK)
    low_j, high_j = math.floor((y.min() - reach) / BLOCK), math.ceil((y.max() + reach) / BLOCK)
    boxes = BoxList()
    parked = PARKED
    for i in range(low_i, high_i):
        for j in range(low_j, high_j):
            centre_x, centre_y = (i + 0.5) * BLOCK, (j + 0.5) * BLOCK
            if np.min((x - centre_x) ** 2 + (y - centre_y) ** 2) < reach**2:
                rng = np.random.default_rng([seed, i + 2**20, j + 2**20])
                parked = _block(boxes, rng, varied, i, j, parked)
    return boxes.table()


def _block(boxes: BoxList, rng: np.random.Generator, varied: Variation, i: int, j: int, parked: int) -> int:
    west, south = i * BLOCK + INSET, j * BLOCK + INSET
    if rng.random() < varied.green:
        _park(boxes, rng, west, south)
    else:
        for side in range(4):
            _house_row(boxes, rng, west, south, side)
    for side in range(4):
        parked = _kerb(boxes, rng, varied, west, south, side, parked)
    return parked


def _along(west: float, south: float, side: int, along: float, inwards: float) -> tuple[float, float]:
    """Point `along` one of the block's four sides (south, north, west, east) and `inwards` from it."""
    if side == 0:
        return west + along, south + inwards
    if side == 1:
        return west + along, south + SIDE - inwards
    if side == 2:
        return west + inwards, south + along
    return west + SIDE - inwards, south + along


def _on_side(side: int, along: float, across: float) -> tuple[float, float]:
    return (along, across) if side < 2 else (across, along)


def _house_row(boxes: BoxList, rng: np.random.Generator, west: float, south: float, side: int) -> None:
    at = 0.0
    while at < SIDE - 3:
        width = min(rng.uniform(6, 13), SIDE - at)
        seed, albedo = rng.uniform(0, 1000), rng.uniform(0.18, 0.8)
        middle = at + width / 2
        if rng.random() < 0.2:
            half_height = rng.uniform(0.6, 1.2)
            label, texture = (scene.FENCE, scene.PLANKS) if rng.random() < 0.6 else (scene.WALL, scene.BRICKS)
            centre, half = _along(west, south, side, middle, 0.3), _on_side(side, width / 2, 0.15)
        else:
            half_height = rng.uniform(2, 8)
            label, texture = scene.BUILDING, scene.FACADE
            depth, setback = rng.uniform(4, 8), rng.uniform(0, 1.5)
            centre = _along(west, south, side, middle, setback + depth / 2)
            half = _on_side(side, width / 2, depth / 2)
        boxes.add((*centre, half_height), (*half, half_height), label, albedo, texture, seed)
        at += width


def _park(boxes: BoxList, rng: np.random.Generator, west: float, south: float) -> None:
    for _ in range(24):
        _tree(boxes, rng, west + rng.uniform(2, SIDE - 2), south + rng.uniform(2, SIDE - 2))
    hedge = rng.random() < 0.5
    half_height = rng.uniform(0.5, 0.9)
    albedo, seed = rng.uniform(0.2, 0.5), rng.uniform(0, 1000)
    for side in range(4):
        centre, half = _along(west, south, side, SIDE / 2, 0.3), _on_side(side, SIDE / 2, 0.2)
        label, texture = (scene.VEGETATION, scene.LEAVES) if hedge else (scene.FENCE, scene.PLANKS)
        boxes.add((*centre, half_height), (*half, half_height), label, albedo, texture, seed + side)


def _kerb(
    boxes: BoxList, rng: np.random.Generator, varied: Variation, west: float, south: float, side: int, parked: int
) -> int:
    """Lamp posts, signs, trees and people on the sidewalk, vehicles parked at the road's edge."""
    yaw = 0.0 if side < 2 else math.pi / 2
    shares = np.array([0.25, 0.8, 0.2 + 1.8 * varied.green, 0.9 * varied.crowd, 1.5 * varied.crowd, 0.4])
    ends = np.cumsum(shares / shares.sum())
    at = 1.0
    while at < SIDE:
        kind = int(np.searchsorted(ends, rng.random()))
        x, y = _along(west, south, side, at, -SIDEWALK_WIDTH + 0.5)
        heading = yaw + (math.pi if rng.random() < 0.5 else 0.0)
        looks = rng.uniform(0.08, 0.8), rng.uniform(0, 1000)
        if kind == 0:
            _lamp_post(boxes, rng, x, y, yaw)
        elif kind == 1:
            _sign(boxes, rng, x, y, yaw)
        elif kind == 2:
            _tree(boxes, rng, x, y)
        elif kind == 3:
            boxes.extend(place(person(*looks, parked).boxes, x, y, heading))
        elif kind == 4:
            x, y = _along(west, south, side, at, -INSET + PARKING)
            build = truck if rng.random() < TRUCK_SHARE else car
            boxes.extend(place(build(*looks, parked).boxes, x, y, heading))
        parked += 1
        at += rng.uniform(2.0, 4.5)
    return parked


def _lamp_post(boxes: BoxList, rng: np.random.Generator, x: float, y: float, yaw: float) -> None:
    albedo = rng.uniform(0.1, 0.5)
    boxes.add((x, y, 2.6), (0.2, 0.2, 2.6), scene.POLE, albedo)
    boxes.add((x, y, 5.2), (0.5, 0.16, 0.14), scene.POLE, 0.6, scene.LAMP, yaw=yaw)


def _sign(boxes: BoxList, rng: np.random.Generator, x: float, y: float, yaw: float) -> None:
    half, albedo, seed = rng.uniform(0.5, 1.0), rng.uniform(0.3, 0.9), rng.uniform(0, 1000)
    boxes.add((x, y, 0.75), (0.12, 0.12, 0.75), scene.POLE, 0.4)
    boxes.add((x, y, 1.5 + half), (half, half, half), scene.SIGN, albedo, scene.PANEL, seed, yaw)


def _tree(boxes: BoxList, rng: np.random.Generator, x: float, y: float) -> None:
    trunk, radius, albedo = rng.uniform(1.4, 2.6), rng.uniform(0.8, 2.2), rng.uniform(0.12, 0.35)
    seed = rng.uniform(0, 1000)
    boxes.add((x, y, trunk / 2 + 0.2), (0.16, 0.16, trunk / 2 + 0.2), scene.VEGETATION, 0.15, scene.LEAVES, seed)
    for height, size in ((0.9, 1.0), (1.7, 0.65)):
        half = (radius * size, radius * size, 0.9 * radius * size)
        centre = (x, y, trunk + radius * height)
        boxes.add(centre, half, scene.VEGETATION, albedo, scene.LEAVES, seed + height, rng.uniform(0, 1.5))
