"""Who else is on the street: their bodies and where each is at every frame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numba import njit

from tespec.world.scene import (
    BLOCK,
    BODYWORK,
    CABIN,
    CAR,
    CLOTH,
    LANE,
    PERSON,
    PLAIN,
    RIDER,
    ROAD,
    ROAD_HALF,
    TRUCK,
    TWO_WHEELER,
    Array,
    BoxList,
)

STEP = 0.25
TIE = 1e-6  # share of a step by which a way may be longer than a whole number of steps and still count as that
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


@dataclass(frozen=True)
class Habit:
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


def stop_and_go(
    rng: np.random.Generator, habit: Habit, path: Path, start: float, seconds: float, frame_rate: int
) -> tuple[Array, Array]:
    """Distance and speed at every frame.

    The motion is followed for a random time before the first frame, so a recording starts at any moment of a go or a
    stop and the share of standing does not depend on its length. The path's speed limit is kept.

    Returns:
        Distance along the path in metres, `start` at the first frame, and speed in m/s; each of shape
        (round(seconds * frame_rate) + 1,).
    """
    frames = round(seconds * frame_rate) + 1
    before = round(rng.uniform(*WARM_UP) * frame_rate)
    switches = int(np.ceil((before + frames) / frame_rate / (habit.go[0] + habit.stop[0]))) + 2
    go, stop = rng.uniform(*habit.go, switches), rng.uniform(*habit.stop, switches)
    target = habit.top_speed * rng.uniform(0.5, 1.0, switches)
    travelled, speed = _follow(
        path.speed_limit, STEP, start, before, before + frames, 1.0 / frame_rate, go, stop, target, habit.acceleration
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


CARS, RIDERS, WALKERS, CROSSERS = 10, 7, 26, 8
LEAD_SHARE = 0.6
TRUCK_SHARE = 0.2
CYCLE_LANE = 2.8
STRIDE = 4.5  # radians of the leg swing per metre walked
MEETING_RATE = 10  # looks per second for two bodies in the same place


@dataclass(frozen=True)
class Agent:
    """A body and its poses (frames, 4): x, y in metres, heading in radians, phase of the walk in radians."""

    body: Body
    poses: Array


@dataclass(frozen=True)
class Traffic:
    """What the agents of a street have to know about it; the ego car's way is given by path and distance (F,)."""

    centre: Array
    path: Path
    distance: Array
    seconds: float
    frame_rate: int


def agents(rng: np.random.Generator, traffic: Traffic) -> list[Agent]:
    """A random population in which nobody drives through anybody, the ego car included; instances are from 1 on."""
    ego = _poses(traffic.path, traffic.distance)
    taken = [(2.4, ego)]
    accepted: list[Agent] = []
    kinds = [_lead] if rng.random() < LEAD_SHARE else []
    kinds += CROSSERS * [_crosser] + WALKERS * [_walker]
    kinds += CARS // 2 * [_oncoming, _crossing] + RIDERS * [_cyclist]
    for propose in kinds:
        agent = propose(rng, traffic, len(accepted) + 1)
        if _is_free(agent, taken, traffic.frame_rate):
            taken.append((agent.body.radius, agent.poses))
            accepted.append(agent)
    return accepted


def _is_free(agent: Agent, taken: list[tuple[float, Array]], frame_rate: int) -> bool:
    stride = max(frame_rate // MEETING_RATE, 1)
    own = agent.poses[::stride, :2]
    return all(
        np.min(np.sum((own - other[::stride, :2]) ** 2, axis=1)) > (0.75 * (agent.body.radius + radius)) ** 2
        for radius, other in taken
    )


def _poses(path: Path, distance: Array) -> Array:
    x, y, heading = path.at(distance)
    return np.stack([x, y, heading, STRIDE * distance], axis=1)


def _travel(rng: np.random.Generator, traffic: Traffic, habit: Habit, path: Path, start: float) -> Array:
    distance, _ = stop_and_go(rng, habit, path, start, traffic.seconds, traffic.frame_rate)
    return _poses(path, distance)


def _looks(rng: np.random.Generator) -> tuple[float, float]:
    return rng.uniform(0.08, 0.85), rng.uniform(0, 1000)


def _vehicle(rng: np.random.Generator, instance: int) -> Body:
    build = truck if rng.random() < TRUCK_SHARE else car
    return build(*_looks(rng), instance)


def _place_ahead(rng: np.random.Generator, traffic: Traffic, near: float, far: float) -> float:
    """A place on the ego car's way: `near` metres ahead of its start to `far` metres beyond its end."""
    return rng.uniform(traffic.distance[0] + near, traffic.distance[-1] + far)


def _lead(rng: np.random.Generator, traffic: Traffic, instance: int) -> Agent:
    speed = np.gradient(traffic.distance) * traffic.frame_rate
    gap = rng.uniform(8.0, 11.0) + 0.5 * np.clip(speed, 0.0, 8.0)
    return Agent(_vehicle(rng, instance), _poses(traffic.path, traffic.distance + gap))


def _oncoming(rng: np.random.Generator, traffic: Traffic, instance: int) -> Agent:
    path = from_points(traffic.centre[::-1], LANE)
    start = path.length - _place_ahead(rng, traffic, 10.0, 70.0)
    return Agent(_vehicle(rng, instance), _travel(rng, traffic, DRIVER, path, max(start, 0.0)))


def _crossing(rng: np.random.Generator, traffic: Traffic, instance: int) -> Agent:
    path = _way_nearby(rng, traffic, LANE, DRIVER.top_speed)
    return Agent(_vehicle(rng, instance), _travel(rng, traffic, DRIVER, path, rng.uniform(0.0, 60.0)))


def _cyclist(rng: np.random.Generator, traffic: Traffic, instance: int) -> Agent:
    body = rider(*_looks(rng), instance)
    if rng.random() < 0.35:
        path = _way_nearby(rng, traffic, CYCLE_LANE, CYCLIST.top_speed)
        return Agent(body, _travel(rng, traffic, CYCLIST, path, rng.uniform(0.0, 40.0)))
    if rng.random() < 0.5:
        path = from_points(traffic.centre[::-1], CYCLE_LANE)
        start = path.length - _place_ahead(rng, traffic, 6.0, 25.0)
    else:
        path = from_points(traffic.centre, CYCLE_LANE)
        start = _place_ahead(rng, traffic, 6.0, 12.0)
    return Agent(body, _travel(rng, traffic, CYCLIST, path, max(start, 0.0)))


def _way_nearby(rng: np.random.Generator, traffic: Traffic, lane: float, top_speed: float) -> Path:
    x, y, _ = traffic.path.at(np.array([_place_ahead(rng, traffic, 0.0, 40.0)]))
    crossing = (round(float(x[0]) / BLOCK + rng.normal(0.0, 0.6)), round(float(y[0]) / BLOCK + rng.normal(0.0, 0.6)))
    return from_points(centre_line(rng, traffic.seconds * top_speed + 80.0, crossing), lane)


def _walker(rng: np.random.Generator, traffic: Traffic, instance: int) -> Agent:
    """Walks around a block beside the ego car's way."""
    x, y, heading = (float(v[0]) for v in traffic.path.at(np.array([_place_ahead(rng, traffic, 4.0, 28.0)])))
    side = rng.choice([-1.0, 1.0])
    reach = ROAD_HALF + 2.0
    column = int(np.floor((x - side * reach * np.sin(heading)) / BLOCK))
    row = int(np.floor((y + side * reach * np.cos(heading)) / BLOCK))
    points = around_block(column, row, ROAD_HALF + rng.uniform(0.9, 2.3))
    path = from_points(points if rng.random() < 0.5 else points[::-1])
    round_trip = np.hypot(path.x - x, path.y - y)[: len(path.x) // 2]
    start = 0.25 * float(np.argmin(round_trip))
    return Agent(person(*_looks(rng), instance), _travel(rng, traffic, WALKER, path, start))


def _crosser(rng: np.random.Generator, traffic: Traffic, instance: int) -> Agent:
    """Walks to and fro across the ego car's road."""
    x, y, heading = (float(v[0]) for v in traffic.path.at(np.array([_place_ahead(rng, traffic, 5.0, 14.0)])))
    across = np.array([-np.sin(heading), np.cos(heading)])
    begin, end = np.array([x, y]) - 4.5 * across, np.array([x, y]) + 8.0 * across
    share = np.linspace(0.0, 1.0, 51)[:, None]
    path = from_points(begin + share * (end - begin))
    start = rng.uniform(0.0, path.length)
    endless = Path(path.x, path.y, path.heading, np.full_like(path.speed_limit, np.inf))
    distance, _ = stop_and_go(rng, WALKER, endless, start, traffic.seconds, traffic.frame_rate)
    there = path.length - np.abs(path.length - np.mod(distance, 2 * path.length))
    back = np.mod(distance, 2 * path.length) > path.length
    poses = _poses(path, there)
    poses[:, 2] += np.where(back, np.pi, 0.0)
    return Agent(person(*_looks(rng), instance), poses)
