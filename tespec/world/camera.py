"""The pinhole camera behind the ego car's windscreen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tespec.world.scene import Array

HEIGHT_ABOVE_GROUND = 1.4
AHEAD_OF_CENTRE = 0.6
HORIZON = 0.46  # row of the horizon as a share of the rows above the bonnet
FOCAL = 0.8  # focal length as a share of the width


@dataclass(frozen=True)
class Camera:
    """Sensor size in pixels, focal length and principal point in pixels; rows from `bonnet_row` on show the bonnet."""

    height: int
    width: int
    focal: float
    column: float
    row: float
    bonnet_row: int


@dataclass(frozen=True)
class View:
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
