"""The one shape of the sample world, the oriented box, and what is painted on it. Units: metres, radians."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# What a surface is. Writers map these to the classes of their dataset.
ROAD, SIDEWALK, TERRAIN, SKY, BUILDING, WALL, FENCE, POLE, SIGN, VEGETATION = range(10)
PERSON, RIDER, CAR, TRUCK, TWO_WHEELER = range(10, 15)
CLASSES = 15

# What is painted on a box.
PLAIN, FACADE, PLANKS, BRICKS, LEAVES, BODYWORK, CABIN, CLOTH, PANEL, LAMP = range(10)

# Columns of a box table (N, 13).
CX, CY, CZ, HX, HY, HZ, COS, SIN, CLASS, INSTANCE, ALBEDO, TEXTURE, SEED = range(13)
COLUMNS = 13

# The street grid: centre lines every BLOCK metres in both directions, then road, then sidewalk, then the block.
BLOCK = 48.0
ROAD_HALF = 5.0
SIDEWALK_WIDTH = 3.0
LANE = 1.7
PARKING = 4.1

PARKED = 1000  # first instance of the parked cars, whose lamps are off

# What a pixel's ray hits besides the rows of a box table.
SKY_HIT, GROUND_HIT, BONNET_HIT = -1, -2, -3
# Direction a surface faces: box faces in the box's frame, then up for the ground; the sky has none.
FACE_FRONT, FACE_BACK, FACE_LEFT, FACE_RIGHT, FACE_UP, FACE_DOWN, FACE_NONE = range(7)


# Of the numbers above those that kernels read. They take them as an argument, since numba's cache notices changes of a
# kernel's own file alone.
World = namedtuple(
    "World",
    "CX CY CZ HX HY HZ COS SIN CLASS INSTANCE ALBEDO TEXTURE SEED "
    "FACADE PLANKS BRICKS LEAVES BODYWORK CABIN CLOTH PANEL LAMP ROAD SIDEWALK TERRAIN SKY CAR "
    "BLOCK ROAD_HALF SIDEWALK_WIDTH PARKED SKY_HIT GROUND_HIT BONNET_HIT "
    "FACE_FRONT FACE_BACK FACE_LEFT FACE_RIGHT FACE_UP FACE_DOWN FACE_NONE",
)
WORLD = World(**{name: globals()[name] for name in World._fields})


@dataclass
class BoxList:
    """Grows a box table row by row."""

    rows: list[tuple[float, ...]] = field(default_factory=list)

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
        """Append one box: centre and half extents in metres, yaw in radians about the vertical."""
        cos, sin = float(np.cos(yaw)), float(np.sin(yaw))
        self.rows.append((*centre, *half, cos, sin, label, instance, albedo, texture, seed))

    def extend(self, table: Array) -> None:
        """Append all rows of a box table (N, 13)."""
        self.rows.extend(map(tuple, table.tolist()))

    def table(self) -> Array:
        """The boxes as a float64 table (N, 13)."""
        return np.array(self.rows, np.float64).reshape(-1, COLUMNS)


def place(table: Array, x: Array | float, y: Array | float, yaw: Array | float) -> Array:
    """Move boxes given in body frames into the world.

    Args:
        table: boxes (N, 13) relative to their body, x forward.
        x: position of each box's body (N,) or scalar, metres; `y` likewise.
        y: see `x`.
        yaw: heading of each box's body (N,) or scalar, radians.

    Returns:
        Box table (N, 13) in world coordinates.
    """
    cos, sin = np.cos(yaw), np.sin(yaw)
    placed = table.copy()
    placed[:, CX] = x + cos * table[:, CX] - sin * table[:, CY]
    placed[:, CY] = y + sin * table[:, CX] + cos * table[:, CY]
    placed[:, COS] = cos * table[:, COS] - sin * table[:, SIN]
    placed[:, SIN] = sin * table[:, COS] + cos * table[:, SIN]
    return placed


HEIGHT_ABOVE_GROUND = 1.4
AHEAD_OF_CENTRE = 0.6
HORIZON = 0.46  # row of the horizon as a share of the rows above the bonnet
FOCAL = 0.8  # focal length as a share of the width


class Camera(NamedTuple):
    """Sensor size in pixels, focal length and principal point in pixels; rows from `bonnet_row` on show the bonnet."""

    height: int
    width: int
    focal: float
    column: float
    row: float
    bonnet_row: int


class View(NamedTuple):
    """Where the camera is: position (3,) in metres and the world directions forward, left, up as rows of (3, 3)."""

    position: Array
    axes: Array


def make_camera(height: int, width: int, free_rows: int | None = None) -> Camera:
    """A camera whose lower `height - free_rows` rows show the ego car's bonnet; None: no bonnet in view."""
    free_rows = height if free_rows is None else free_rows
    return Camera(height, width, FOCAL * width, width / 2, HORIZON * free_rows, free_rows)


def make_view(x: float, y: float, heading: float, pitch: float = 0.0, lift: float = 0.0) -> View:
    """The view from an ego car at (x, y) metres with a heading and pitch in radians, lifted by `lift` metres."""
    cos, sin = np.cos(heading), np.sin(heading)
    position = np.array([x + AHEAD_OF_CENTRE * cos, y + AHEAD_OF_CENTRE * sin, HEIGHT_ABOVE_GROUND + lift])
    forward = np.array([cos * np.cos(pitch), sin * np.cos(pitch), np.sin(pitch)])
    left = np.array([-sin, cos, 0.0])
    return View(position, np.stack([forward, left, np.cross(forward, left)]))
