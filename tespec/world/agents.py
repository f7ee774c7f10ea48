"""Who else is on the street: their bodies and where each is at every frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tespec.world.bodies import Body, car, person, rider, truck
from tespec.world.paths import Path, around_block, centre_line, from_points
from tespec.world.scene import BLOCK, LANE, ROAD_HALF, Array
from tespec.world.speeds import CYCLIST, DRIVER, WALKER, Habit, stop_and_go

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
    """A random population in which nobody drives through anybody, the ego car included.

    Args:
        rng: source of everything random.
        traffic: the ego car's centre line (N, 2), path and distances, length and frame rate of the recording.

    Returns:
        Agents with instances from 1, in an order that does not depend on the ego car's view.
    """
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
