"""The other road users: their bodies, and where each is at every frame."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tespec.sample import scene
from tespec.sample.paths import (
    CYCLIST,
    DRIVER,
    FRAME_RATE,
    STEP,
    WALKER,
    Drive,
    Habit,
    Path,
    around_block,
    centre_line,
    from_points,
    stop_and_go,
)
from tespec.sample.scene import BLOCK, LANE, ROAD_HALF, Array, BoxList


class Body(NamedTuple):
    """Boxes (N, 13) in the body frame; metres (N,) that each swings along x with the walk; radius in metres."""

    boxes: Array
    swing: Array
    radius: float


class Agent(NamedTuple):
    """A body and its poses (frames, 4): x, y in metres, heading in radians, phase of the walk in radians."""

    body: Body
    poses: Array


def _rigid(boxes: BoxList, radius: float) -> Body:
    table = boxes.table()
    return Body(table, np.zeros(len(table)), radius)


def _wheels(boxes: BoxList, axles: tuple[float, float], track: float, label: int, instance: int) -> None:
    for x in axles:
        for y in (-track, track):
            boxes.add((x, y, 0.33), (0.33, 0.11, 0.33), label, 0.05, instance=instance)


def car(albedo: float, seed: float, instance: int) -> Body:
    """A passenger car of 4.2 m and its shadow."""
    boxes = BoxList()
    boxes.add((0.0, 0.0, 0.004), (2.25, 1.0, 0.004), scene.ROAD, 0.05)
    boxes.add((0.0, 0.0, 0.64), (2.1, 0.88, 0.36), scene.CAR, albedo, scene.BODYWORK, seed, instance=instance)
    boxes.add((-0.25, 0.0, 1.25), (1.2, 0.76, 0.27), scene.CAR, albedo, scene.CABIN, seed, instance=instance)
    _wheels(boxes, (-1.3, 1.3), 0.82, scene.CAR, instance)
    return _rigid(boxes, 2.4)


def truck(albedo: float, seed: float, instance: int) -> Body:
    """A delivery truck of 6.4 m with a separate cab, and its shadow."""
    boxes = BoxList()
    boxes.add((0.0, 0.0, 0.004), (3.3, 1.15, 0.004), scene.ROAD, 0.05)
    boxes.add((-0.8, 0.0, 1.75), (2.4, 1.1, 1.25), scene.TRUCK, albedo, scene.BODYWORK, seed, instance=instance)
    boxes.add((2.4, 0.0, 1.3), (0.75, 1.05, 0.85), scene.TRUCK, albedo * 0.6, scene.CABIN, seed, instance=instance)
    _wheels(boxes, (-2.0, 2.3), 1.0, scene.TRUCK, instance)
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
        boxes.add(centre, half, scene.PERSON, brightness, scene.CLOTH, seed + part, instance=instance)
    return Body(boxes.table(), np.array([swing for *_, swing in parts]), 0.35)


def cyclist(albedo: float, seed: float, instance: int) -> Body:
    """A cyclist: the bicycle is a two-wheeler, who sits on it a rider of the same instance."""
    boxes = BoxList()
    for x in (-0.52, 0.52):
        boxes.add((x, 0.0, 0.34), (0.34, 0.05, 0.34), scene.TWO_WHEELER, 0.07, instance=instance)
    boxes.add((0.0, 0.0, 0.66), (0.58, 0.07, 0.14), scene.TWO_WHEELER, 0.6 * albedo, instance=instance)
    boxes.add((0.48, 0.0, 1.0), (0.06, 0.3, 0.05), scene.TWO_WHEELER, 0.1, instance=instance)
    boxes.add((-0.1, 0.0, 1.22), (0.2, 0.24, 0.36), scene.RIDER, albedo, scene.CLOTH, seed, instance=instance)
    boxes.add((0.02, 0.0, 1.72), (0.14, 0.13, 0.15), scene.RIDER, 0.35, scene.CLOTH, seed + 1, instance=instance)
    for y in (-0.14, 0.14):
        half = (0.12, 0.09, 0.32)
        boxes.add((0.0, y, 0.7), half, scene.RIDER, 0.5 * albedo, scene.CLOTH, seed + 2, instance=instance)
    return _rigid(boxes, 0.8)


CARS, CYCLISTS, WALKERS, CROSSERS = 5, 7, 26, 8  # of each direction, where the density is 1
LEAD_SHARE = 0.6
TRUCK_SHARE = 0.2
CYCLE_LANE = 2.8
STRIDE = 4.5  # radians of the leg swing per metre walked
COLLISION_STEP = FRAME_RATE // 10  # frames between two in which bodies are compared


class Traffic:
    """Draws the road users around the way of the ego car."""

    def __init__(self, rng: np.random.Generator, ego: Drive, crowd: float) -> None:
        self.rng, self.ego, self.crowd = rng, ego, crowd

    def agents(self) -> list[Agent]:
        """A random population in which nobody drives through anybody, the ego car included; instances are from 1 on."""
        kinds = [self._lead] if self.rng.random() < LEAD_SHARE else []
        for count, propose in (
            (CROSSERS, self._crosser), (WALKERS, self._walker), (CARS, self._oncoming), (CARS, self._crossing),
            (CYCLISTS, self._cyclist),
        ):  # fmt: skip
            kinds += round(self.crowd * count) * [propose]
        taken = [(2.4, _poses(self.ego.path, self.ego.distance)[::COLLISION_STEP, :2])]
        accepted: list[Agent] = []
        for propose in kinds:
            agent = propose(len(accepted) + 1)
            radius, own = agent.body.radius, agent.poses[::COLLISION_STEP, :2]
            if all(np.min(np.sum((own - at) ** 2, axis=1)) > (0.75 * (radius + other)) ** 2 for other, at in taken):
                taken.append((radius, own))
                accepted.append(agent)
        return accepted

    def _looks(self) -> tuple[float, float]:
        return self.rng.uniform(0.08, 0.85), self.rng.uniform(0, 1000)

    def _vehicle(self, instance: int) -> Body:
        build = truck if self.rng.random() < TRUCK_SHARE else car
        return build(*self._looks(), instance)

    def _travel(self, habit: Habit, path: Path, start: float) -> Array:
        distance, _ = stop_and_go(self.rng, habit, path, start, len(self.ego.distance))
        return _poses(path, distance)

    def _place_ahead(self, near: float, far: float) -> float:
        """A place on the ego car's way: `near` metres ahead of its start to `far` metres beyond its end."""
        return self.rng.uniform(self.ego.distance[0] + near, self.ego.distance[-1] + far)

    def _pose_ahead(self, near: float, far: float) -> tuple[float, float, float]:
        x, y, heading = self.ego.path.at(np.array([self._place_ahead(near, far)]))
        return float(x[0]), float(y[0]), float(heading[0])

    def _way_nearby(self, lane: float, top_speed: float) -> Path:
        x, y, _ = self._pose_ahead(0.0, 40.0)
        crossing = (round(x / BLOCK + self.rng.normal(0.0, 0.6)), round(y / BLOCK + self.rng.normal(0.0, 0.6)))
        length = (len(self.ego.distance) - 1) / FRAME_RATE * top_speed + 80.0
        return from_points(centre_line(self.rng, length, crossing), self.ego.side * lane)

    def _lead(self, instance: int) -> Agent:
        """Drives ahead of the ego car."""
        speed = np.gradient(self.ego.distance) * FRAME_RATE
        gap = self.rng.uniform(8.0, 11.0) + 0.5 * np.clip(speed, 0.0, 8.0)
        return Agent(self._vehicle(instance), _poses(self.ego.path, self.ego.distance + gap))

    def _oncoming(self, instance: int) -> Agent:
        path = from_points(self.ego.centre[::-1], self.ego.side * LANE)
        start = path.length - self._place_ahead(10.0, 70.0)
        return Agent(self._vehicle(instance), self._travel(DRIVER, path, max(start, 0.0)))

    def _crossing(self, instance: int) -> Agent:
        path = self._way_nearby(LANE, DRIVER.top_speed)
        return Agent(self._vehicle(instance), self._travel(DRIVER, path, self.rng.uniform(0.0, 60.0)))

    def _cyclist(self, instance: int) -> Agent:
        body = cyclist(*self._looks(), instance)
        if self.rng.random() < 0.35:
            path, start = self._way_nearby(CYCLE_LANE, CYCLIST.top_speed), self.rng.uniform(0.0, 40.0)
        elif self.rng.random() < 0.5:
            path = from_points(self.ego.centre[::-1], self.ego.side * CYCLE_LANE)
            start = path.length - self._place_ahead(6.0, 25.0)
        else:
            path, start = from_points(self.ego.centre, self.ego.side * CYCLE_LANE), self._place_ahead(6.0, 12.0)
        return Agent(body, self._travel(CYCLIST, path, max(start, 0.0)))

    def _walker(self, instance: int) -> Agent:
        """Walks around a block beside the ego car's way."""
        x, y, heading = self._pose_ahead(4.0, 28.0)
        reach = self.rng.choice([-1.0, 1.0]) * (ROAD_HALF + 2.0)
        column = int(np.floor((x - reach * np.sin(heading)) / BLOCK))
        row = int(np.floor((y + reach * np.cos(heading)) / BLOCK))
        points = around_block(column, row, ROAD_HALF + self.rng.uniform(0.9, 2.3))
        path = from_points(points if self.rng.random() < 0.5 else points[::-1])
        round_trip = np.hypot(path.x - x, path.y - y)[: len(path.x) // 2]
        start = STEP * float(np.argmin(round_trip))
        return Agent(person(*self._looks(), instance), self._travel(WALKER, path, start))

    def _crosser(self, instance: int) -> Agent:
        """Walks to and fro across the ego car's road."""
        x, y, heading = self._pose_ahead(5.0, 14.0)
        across = np.array([-np.sin(heading), np.cos(heading)])
        begin, end = np.array([x, y]) - 4.5 * across, np.array([x, y]) + 8.0 * across
        path = from_points(begin + np.linspace(0.0, 1.0, 51)[:, None] * (end - begin))
        endless = Path(path.x, path.y, path.heading, np.full_like(path.speed_limit, np.inf))
        start = self.rng.uniform(0.0, path.length)
        distance, _ = stop_and_go(self.rng, WALKER, endless, start, len(self.ego.distance))
        back = np.mod(distance, 2 * path.length) > path.length
        poses = _poses(path, path.length - np.abs(path.length - np.mod(distance, 2 * path.length)))
        poses[:, 2] += np.where(back, np.pi, 0.0)
        return Agent(person(*self._looks(), instance), poses)


def _poses(path: Path, distance: Array) -> Array:
    x, y, heading = path.at(distance)
    return np.stack([x, y, heading, STRIDE * distance], axis=1)
