"""The scene: oriented boxes on a flat street grid, and the camera. Units: metres, radians, pixels."""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Image = npt.NDArray[np.float32]

# Classes of surfaces, which writers map to those of their data set.
ROAD, SIDEWALK, TERRAIN, SKY, BUILDING, WALL, FENCE, POLE, SIGN, VEGETATION = range(10)
PERSON, RIDER, CAR, TRUCK, TWO_WHEELER = range(10, 15)
CLASSES = 15
# Textures of boxes.
PLAIN, FACADE, PLANKS, BRICKS, LEAVES, BODYWORK, CABIN, CLOTH, PANEL, LAMP = range(10)
# Columns of a box table (N, 13): centre, half extents, cosine and sine of the yaw, ...
CX, CY, CZ, HX, HY, HZ, COS, SIN, CLASS, INSTANCE, ALBEDO, TEXTURE, SEED = range(13)
COLUMNS = 13
# The street grid: centre lines every BLOCK metres in both directions, then road, then sidewalk, then the block.
BLOCK, ROAD_HALF, SIDEWALK_WIDTH = 48.0, 5.0, 3.0
LANE, PARKING = 1.7, 4.1  # from the centre line
PARKED = 1000  # first instance of the parked cars, whose lamps are off
# What a pixel shows other than a row of the box table.
SKY_HIT, GROUND_HIT, BONNET_HIT = -1, -2, -3

# Kernels take constants of this file as an argument: numba's cache notices changes of a kernel's own file alone.
World = namedtuple(
    "World",
    "CX CY CZ HX HY HZ COS SIN CLASS INSTANCE ALBEDO TEXTURE SEED "
    "FACADE PLANKS BRICKS LEAVES BODYWORK CABIN CLOTH PANEL LAMP ROAD SIDEWALK TERRAIN SKY CAR "
    "BLOCK ROAD_HALF SIDEWALK_WIDTH PARKED SKY_HIT GROUND_HIT BONNET_HIT",
)
WORLD = World(**{name: globals()[name] for name in World._fields})


class BoxList:
    """Grows a box table row by row."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []

    def add(
        self,
        centre: tuple[float, float, float],
        half: tuple[float, float, float],
        label: int,
        albedo: float,
        texture: int = PLAIN,
        seed: float = 0.0,
        yaw: float = 0.0,
        instance: int = 0,
    ) -> None:
        """Append a box by its centre, half extents and yaw about the vertical."""
        cos, sin = float(np.cos(yaw)), float(np.sin(yaw))
        self.rows.append((*centre, *half, cos, sin, label, instance, albedo, texture, seed))

    def extend(self, table: Array) -> None:
        """Append all rows of a box table (N, 13)."""
        self.rows.extend(map(tuple, table.tolist()))

    def table(self) -> Array:
        """Box table (N, 13) float64."""
        return np.array(self.rows, np.float64).reshape(-1, COLUMNS)


def place(table: Array, x: Array | float, y: Array | float, yaw: Array | float) -> Array:
    """Boxes (N, 13) given relative to their body, x forward, moved to the body's x, y and yaw (N,) or scalar."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    placed = table.copy()
    placed[:, CX] = x + cos * table[:, CX] - sin * table[:, CY]
    placed[:, CY] = y + sin * table[:, CX] + cos * table[:, CY]
    placed[:, COS] = cos * table[:, COS] - sin * table[:, SIN]
    placed[:, SIN] = sin * table[:, COS] + cos * table[:, SIN]
    return placed


class Variation(NamedTuple):
    """What differs from street to street, so that places in the image tell little of what they show.

    Attributes:
        side: 1 where traffic keeps to the right, -1 where it keeps to the left.
        focal: focal length as a share of the width.
        height: of the camera above the ground; `pitch` and `yaw` of its optical axis against the road's.
        green: how much of a street are parks, trees and grass, 0 to 1.
        crowd: density of people and vehicles, about 1.
        light: strength of the daylight, about 1.
    """

    side: int
    focal: float
    height: float
    pitch: float
    yaw: float
    green: float
    crowd: float
    light: float


def variation(seed: int) -> Variation:
    """Of the street with this seed."""
    rng = np.random.default_rng([seed, 5])
    return Variation(
        side=1 if rng.random() < 0.5 else -1,
        focal=rng.uniform(0.6, 1.0),
        height=rng.uniform(1.1, 2.6),
        pitch=rng.uniform(-0.45, 0.35),
        yaw=rng.uniform(-1.3, 1.3),
        green=min(max(rng.uniform(-0.2, 1.6), 0.0), 1.0),
        crowd=rng.uniform(0.5, 2.0),
        light=rng.uniform(0.4, 1.4),
    )


class Camera(NamedTuple):
    """Size, focal length and principal point in pixels; rows from `bonnet_row` on show the ego car's bonnet."""

    height: int
    width: int
    focal: float
    column: float
    row: float
    bonnet_row: int


class View(NamedTuple):
    """Where the camera is: position (3,) and the directions forward, left, up as rows of (3, 3)."""

    position: Array
    axes: Array


def make_camera(height: int, width: int, free_rows: int | None = None, focal: float = 0.8) -> Camera:
    """A camera whose lower `height - free_rows` rows show the ego car's bonnet; None: no bonnet in view."""
    free_rows = height if free_rows is None else free_rows
    return Camera(height, width, focal * width, width / 2, free_rows / 2, free_rows)


def make_view(x: float, y: float, height: float, heading: float, pitch: float = 0.0) -> View:
    """The view from x, y and a height above the ground into a direction."""
    cos, sin = np.cos(heading), np.sin(heading)
    forward = np.array([cos * np.cos(pitch), sin * np.cos(pitch), np.sin(pitch)])
    left = np.array([-sin, cos, 0.0])
    return View(np.array([x, y, height]), np.stack([forward, left, np.cross(forward, left)]))
