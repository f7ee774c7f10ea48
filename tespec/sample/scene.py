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


HEIGHT_ABOVE_GROUND = 1.4
AHEAD_OF_CENTRE = 0.6
HORIZON = 0.46  # row of the horizon as a share of the rows above the bonnet
FOCAL = 0.8  # focal length as a share of the width


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


def make_camera(height: int, width: int, free_rows: int | None = None) -> Camera:
    """A camera whose lower `height - free_rows` rows show the ego car's bonnet; None: no bonnet in view."""
    free_rows = height if free_rows is None else free_rows
    return Camera(height, width, FOCAL * width, width / 2, HORIZON * free_rows, free_rows)


def make_view(x: float, y: float, heading: float, pitch: float = 0.0, lift: float = 0.0) -> View:
    """The view from an ego car at (x, y), with its heading and pitch, lifted by `lift` metres."""
    cos, sin = np.cos(heading), np.sin(heading)
    position = np.array([x + AHEAD_OF_CENTRE * cos, y + AHEAD_OF_CENTRE * sin, HEIGHT_ABOVE_GROUND + lift])
    forward = np.array([cos * np.cos(pitch), sin * np.cos(pitch), np.sin(pitch)])
    left = np.array([-sin, cos, 0.0])
    return View(position, np.stack([forward, left, np.cross(forward, left)]))
