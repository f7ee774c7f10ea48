"""Ways along the street grid, and motion along them that goes, stops and brakes for bends. Units: metres, seconds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit

from tespec.sample.scene import BLOCK, LANE, Array, variation

FRAME_RATE = 100  # rendered frames per second
STEP = 0.25
TIE = 1e-6  # share of a step by which a way may be longer than a whole number of steps and still count as that
CORNER = 57  # samples over which a corner is smoothed: a radius of 5 m, so that all lanes fit inside
LATERAL_ACCELERATION = 2.2  # m/s^2 that drivers accept in a bend
LOOK_AHEAD = 24  # samples over which a driver sees the next bend: 6 m


class Path(NamedTuple):
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
    even = _steps(distance[-1])
    x, y = (np.interp(even, distance, points[:, axis]) for axis in (0, 1))
    # The last digits of an arc tangent depend on the processor's instructions.
    heading = np.round(np.unwrap(np.arctan2(np.gradient(y), np.gradient(x))), 9)
    bend = np.abs(np.gradient(heading)) / STEP
    padded = np.concatenate([bend, np.full(LOOK_AHEAD, bend[-1])])
    ahead = np.lib.stride_tricks.sliding_window_view(padded, LOOK_AHEAD + 1).max(axis=1)
    return Path(x, y, heading, np.sqrt(LATERAL_ACCELERATION / np.maximum(ahead, 1e-3)))


def _steps(length: float) -> Array:
    """Places every `STEP` metres along a way of `length` metres, without its end; rounding decides nothing."""
    return STEP * np.arange(math.ceil(length / STEP - TIE), dtype=np.float64)


def centre_line(rng: np.random.Generator, length: float, start: tuple[int, int] = (0, 0)) -> Array:
    """A random way along the streets' centre lines, straight on or turning at each crossing.

    Dense points (N, 2) with rounded corners, at least `length` metres from crossing `start` (column, row) of the grid.
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
        length = float(np.hypot(*(end - begin)))
        legs.append(begin + _steps(length)[:, None] / length * (end - begin))
    points = np.concatenate(legs)
    padded = np.pad(points, ((corner // 2, corner // 2), (0, 0)), "edge")
    # Not np.convolve: BLAS adds up in an order that depends on the processor.
    smooth = np.zeros_like(points)
    for first in range(corner):
        smooth += padded[first : first + len(points)]
    smooth /= corner
    # The padded ends are sampled more densely than the rest, which would bend the tangents there.
    return smooth[corner // 2 : len(smooth) - corner // 2]


class Habit(NamedTuple):
    """How something moves: top speed (m/s), ranges (s) of going and of standing, acceleration (m/s^2)."""

    top_speed: float
    go: tuple[float, float]
    stop: tuple[float, float]
    acceleration: float = 3.0


# The ego car needs a while to brake, so these ranges make it stand about 45 % of the time.
EGO = Habit(10.0, (1.5, 3.0), (2.5, 5.0), 4.0)
DRIVER = Habit(9.0, (2.0, 5.0), (1.0, 4.0))
CYCLIST = Habit(5.0, (2.0, 5.0), (1.0, 3.0), 1.5)
WALKER = Habit(1.6, (2.0, 6.0), (1.0, 4.0))
WARM_UP = (10.0, 20.0)


def stop_and_go(rng: np.random.Generator, habit: Habit, path: Path, start: float, frames: int) -> tuple[Array, Array]:
    """Distance along the path (frames,) in metres, `start` at the first frame, and speed (frames,) in m/s.

    The motion is followed for a random time before the first frame, so a recording starts at any moment of a go or a
    stop and the share of standing does not depend on its length. The path's speed limit is kept.
    """
    before = round(rng.uniform(*WARM_UP) * FRAME_RATE)
    switches = int(np.ceil((before + frames) / FRAME_RATE / (habit.go[0] + habit.stop[0]))) + 2
    go, stop = rng.uniform(*habit.go, switches), rng.uniform(*habit.stop, switches)
    target = habit.top_speed * rng.uniform(0.5, 1.0, switches)
    travelled, speed = _follow(
        path.speed_limit, STEP, start, before, before + frames, 1.0 / FRAME_RATE, go, stop, target, habit.acceleration
    )
    return travelled[before:], speed[before:]


@njit(cache=True)
def _follow(
    limit: Array,
    step: float,
    start: float,
    before: int,
    frames: int,
    dt: float,
    go: Array,
    stop: Array,
    target: Array,
    acceleration: float,
) -> tuple[Array, Array]:
    travelled = np.empty(frames)
    speeds = np.empty(frames)
    speed = 0.0
    at = start
    phase, until, driving = 0, go[0], True
    for frame in range(frames):
        if frame * dt >= until:
            until += stop[phase] if driving else go[phase + 1]
            phase += 0 if driving else 1
            driving = not driving
        wanted = target[phase] if driving else 0.0
        sample = min(max(int(at / step), 0), limit.size - 1)
        wanted = min(wanted, limit[sample])
        speed += min(max(wanted - speed, -1.5 * acceleration * dt), acceleration * dt)
        travelled[frame] = at
        speeds[frame] = speed
        # During the warm-up only the speed is wanted: the first frame lies at the start.
        if frame >= before:
            at += speed * dt
    return travelled, speeds


class Drive(NamedTuple):
    """The ego car's way: side of the road, centre line (N, 2), path; distance (m) and speed (m/s) at every frame."""

    side: int
    centre: Array
    path: Path
    distance: Array
    speed: Array


def drive(seed: int, seconds: float) -> Drive:
    """Where and how the ego car of a street drives; its frames are one more than those of `seconds`."""
    way, pace = (np.random.default_rng([seed, part]) for part in range(2))
    centre = centre_line(way, seconds * EGO.top_speed + 4 * BLOCK)
    side = variation(seed).side
    path = from_points(centre, side * LANE)
    start = way.uniform(30.0, 70.0)
    return Drive(side, centre, path, *stop_and_go(pace, EGO, path, start, round(seconds * FRAME_RATE) + 1))
