"""Bodies of things that move or park: a few boxes each, in a frame with x forward and the ground at z = 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tespec.world.scene import (
    BODYWORK,
    CABIN,
    CAR,
    CLOTH,
    PERSON,
    PLAIN,
    RIDER,
    ROAD,
    TRUCK,
    TWO_WHEELER,
    Array,
    BoxList,
)


@dataclass(frozen=True)
class Body:
    """Boxes (N, 13) in the body frame; `swing` (N,) metres each box swings along x with the walk; radius in m."""

    boxes: Array
    swing: Array
    radius: float


def _rigid(boxes: BoxList, radius: float) -> Body:
    table = boxes.table()
    return Body(table, np.zeros(len(table)), radius)


def _wheels(boxes: BoxList, axles: tuple[float, float], track: float, label: int, instance: int) -> None:
    for x in axles:
        for y in (-track, track):
            boxes.add((x, y, 0.33), (0.33, 0.11, 0.33), label, 0.05, PLAIN, instance=instance)


def car(albedo: float, seed: float, instance: int) -> Body:
    """A passenger car of 4.2 m."""
    boxes = BoxList()
    boxes.add((0.0, 0.0, 0.004), (2.25, 1.0, 0.004), ROAD, 0.05)
    boxes.add((0.0, 0.0, 0.64), (2.1, 0.88, 0.36), CAR, albedo, BODYWORK, seed, instance=instance)
    boxes.add((-0.25, 0.0, 1.25), (1.2, 0.76, 0.27), CAR, albedo, CABIN, seed, instance=instance)
    _wheels(boxes, (-1.3, 1.3), 0.82, CAR, instance)
    return _rigid(boxes, 2.4)


def truck(albedo: float, seed: float, instance: int) -> Body:
    """A delivery truck of 6.4 m with a separate cab."""
    boxes = BoxList()
    boxes.add((0.0, 0.0, 0.004), (3.3, 1.15, 0.004), ROAD, 0.05)
    boxes.add((-0.8, 0.0, 1.75), (2.4, 1.1, 1.25), TRUCK, albedo, BODYWORK, seed, instance=instance)
    boxes.add((2.4, 0.0, 1.3), (0.75, 1.05, 0.85), TRUCK, albedo * 0.6, CABIN, seed, instance=instance)
    _wheels(boxes, (-2.0, 2.3), 1.0, TRUCK, instance)
    return _rigid(boxes, 3.4)


def person(albedo: float, seed: float, instance: int) -> Body:
    """A pedestrian of 1.75 m whose legs and arms swing."""
    boxes = BoxList()
    parts = (
        ((0.0, 0.0, 1.14), (0.17, 0.26, 0.33), albedo, 0.0),
        ((0.0, 0.0, 1.61), (0.13, 0.12, 0.14), 0.45, 0.0),
        ((0.0, 0.11, 0.41), (0.11, 0.1, 0.41), 0.6 * albedo, 0.2),
        ((0.0, -0.11, 0.41), (0.11, 0.1, 0.41), 0.6 * albedo, -0.2),
        ((0.0, 0.32, 1.08), (0.08, 0.07, 0.3), 0.8 * albedo, -0.14),
        ((0.0, -0.32, 1.08), (0.08, 0.07, 0.3), 0.8 * albedo, 0.14),
    )
    for part, (centre, half, brightness, _) in enumerate(parts):
        boxes.add(centre, half, PERSON, brightness, CLOTH, seed + part, instance=instance)
    return Body(boxes.table(), np.array([swing for *_, swing in parts]), 0.35)


def rider(albedo: float, seed: float, instance: int) -> Body:
    """A cyclist: the bicycle is a two-wheeler, who sits on it a rider of the same instance."""
    boxes = BoxList()
    for x in (-0.52, 0.52):
        boxes.add((x, 0.0, 0.34), (0.34, 0.05, 0.34), TWO_WHEELER, 0.07, instance=instance)
    boxes.add((0.0, 0.0, 0.66), (0.58, 0.07, 0.14), TWO_WHEELER, 0.6 * albedo, instance=instance)
    boxes.add((0.48, 0.0, 1.0), (0.06, 0.3, 0.05), TWO_WHEELER, 0.1, instance=instance)
    boxes.add((-0.1, 0.0, 1.22), (0.2, 0.24, 0.36), RIDER, albedo, CLOTH, seed, instance=instance)
    boxes.add((0.02, 0.0, 1.72), (0.14, 0.13, 0.15), RIDER, 0.35, CLOTH, seed + 1, instance=instance)
    for y in (-0.14, 0.14):
        boxes.add((0.0, y, 0.7), (0.12, 0.09, 0.32), RIDER, 0.5 * albedo, CLOTH, seed + 2, instance=instance)
    return _rigid(boxes, 0.8)
