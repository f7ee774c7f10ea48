"""Ways through the street grid: smooth curves sampled at equal distances."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tespec.world.scene import BLOCK, Array

STEP = 0.25
CORNER = 57  # samples over which a corner is smoothed: a radius of 5 m, so that all lanes fit inside
LATERAL_ACCELERATION = 2.2  # m/s^2 that drivers accept in a bend
LOOK_AHEAD = 24  # samples over which a driver sees the next bend: 6 m


@dataclass(frozen=True)
class Path:
    """A curve sampled every `STEP` metres: `x`, `y`, `heading` and `speed_limit` (N,); m, rad, m/s."""

    x: Array
    y: Array
    heading: Array
    speed_limit: Array

    @property
    def length(self) -> float:
        """Length in metres."""
        return STEP * (len(self.x) - 1)

    def at(self, distance: Array) -> tuple[Array, Array, Array]:
        """Position x, y (m) and heading (rad) after `distance` metres (F,); the ends hold beyond the path."""
        sample = distance / STEP
        index = np.arange(len(self.x))
        x, y, heading = (np.interp(sample, index, values) for values in (self.x, self.y, self.heading))
        return x, y, heading


def from_points(points: Array, offset: float = 0.0) -> Path:
    """A path along dense points (N, 2), moved `offset` metres to the right of its direction."""
    tangent = np.gradient(points, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    points = points + offset * np.stack([tangent[:, 1], -tangent[:, 0]], axis=1)
    gaps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    distance = np.concatenate([[0.0], np.cumsum(gaps)])
    even = np.arange(0.0, distance[-1], STEP)
    x, y = (np.interp(even, distance, points[:, axis]) for axis in (0, 1))
    heading = np.unwrap(np.arctan2(np.gradient(y), np.gradient(x)))
    bend = np.abs(np.gradient(heading)) / STEP
    padded = np.concatenate([bend, np.full(LOOK_AHEAD, bend[-1])])
    ahead = np.lib.stride_tricks.sliding_window_view(padded, LOOK_AHEAD + 1).max(axis=1)
    return Path(x, y, heading, np.sqrt(LATERAL_ACCELERATION / np.maximum(ahead, 1e-3)))


def centre_line(rng: np.random.Generator, length: float, start: tuple[int, int] = (0, 0)) -> Array:
    """A random way along the streets' centre lines, straight on or turning at each crossing.

    Args:
        rng: source of the turns.
        length: at least this many metres.
        start: crossing (column, row) of the grid to start from.

    Returns:
        Dense points (N, 2) with rounded corners.
    """
    headings = ((1, 0), (0, 1), (-1, 0), (0, -1))
    heading = int(rng.integers(4))
    crossings = [start]
    for _ in range(int(np.ceil(length / BLOCK)) + 1):
        column, row = crossings[-1]
        crossings.append((column + headings[heading][0], row + headings[heading][1]))
        heading = (heading + int(rng.integers(-1, 2))) % 4
    return _rounded(BLOCK * np.array(crossings, np.float64))


def around_block(column: int, row: int, inset: float) -> Array:
    """Five rounds about a block at `inset` metres inside the surrounding centre lines: dense points (N, 2)."""
    low, high = inset, BLOCK - inset
    corners = np.array([(low, low), (high, low), (high, high), (low, high)]) + BLOCK * np.array([column, row])
    return _rounded(np.concatenate([np.tile(corners, (5, 1)), corners[:1]]), corner=9)


def _rounded(corners: Array, corner: int = CORNER) -> Array:
    legs = []
    for begin, end in pairwise(corners):
        share = np.arange(0.0, 1.0, STEP / np.linalg.norm(end - begin))[:, None]
        legs.append(begin + share * (end - begin))
    points = np.concatenate(legs)
    window = np.full(corner, 1.0 / corner)
    padded = np.pad(points, ((corner // 2, corner // 2), (0, 0)), "edge")
    smooth = np.stack([np.convolve(padded[:, axis], window, "valid") for axis in (0, 1)], axis=1)
    # The padded ends are sampled more densely than the rest, which would bend the tangents there.
    return smooth[corner // 2 : len(smooth) - corner // 2]
