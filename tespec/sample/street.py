"""Simulate a drive along a street: motion of road users, rendered frames, ground truth and events."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tespec.events.readers import Events
from tespec.sample.city import LANE, Variation, city, cyclist, person, place, vehicle
from tespec.sample.render import (
    BLOCK,
    CX,
    INSTANCE,
    SWING,
    Array,
    Camera,
    Image,
    Surroundings,
    View,
    render,
)
from tespec.sample.sensor import DAY, NIGHT, EventSensor

FRAME_RATE = 100  # rendered frames per second
PERIOD_US = 1_000_000 // FRAME_RATE  # time between two frames
WHITE_NIGHT = 0.4  # intensity shown as white in grey frames; by day it scales with the light
RAMP = 120  # frames that a road user takes to reach its speed, or to stop
# attempts at density 1; CARS: oncoming and crossing each
CROSSERS, WALKERS, CARS, CYCLISTS = 10, 36, 6, 7
LEAD_SHARE = 0.5  # share of streets with a vehicle ahead of the ego car
CYCLE_LANE = 2.8  # m from the centre line
STRIDE = 4.5  # radians of the leg swing per metre walked
SWAY, WAVE = 0.4, 40.0  # amplitude and wavelength in m of the ego car's path around the lane centre
WIND = 0.25  # amplitude in m of the motion of leaves and grass, at 1 Hz
EAST, NORTH, WEST, SOUTH = range(4)  # directions in quarter turns
COLLISION_STEP = FRAME_RATE // 10  # frames between two collision checks


@dataclass(frozen=True)
class Frame:
    """Rendered frame with its ground truth; images are (H, W)."""

    index: int
    time_us: int
    ego_speed: float  # m/s
    image: Image  # linear intensity
    depth: Image  # metres along the optical axis, infinite for the sky
    label: npt.NDArray[np.uint8]  # class of `render`
    instance: npt.NDArray[np.int32]  # id of the vehicle or person; 0: none
    white: float  # intensity shown as white in the grey frame

    @cached_property
    def grey(self) -> npt.NDArray[np.uint8]:
        """Grey frame (H, W) uint8 as a camera would store it, with a gamma of 2.2."""
        # The last digits of a power depend on the CPU; in float32, some of these differences would
        # reach the result.
        seen = np.clip(self.image.astype(np.float64) / self.white, 0, 1)
        return (255 * seen ** (1 / 2.2) + 0.5).astype(np.uint8)


Film = Iterator[tuple[Frame, Events]]
# Boxes (N, 14) in the body frame, and poses (frames, 4): x and y in m, heading and walking phase in
# rad.
Agent = tuple[Array, Array]


class Habit(NamedTuple):
    """Motion of a road user: top speed (m/s), ranges (s) of the durations of moving and of standing."""

    top_speed: float
    go: tuple[float, float] = (2.0, 5.0)
    stop: tuple[float, float] = (0.5, 2.0)


EGO = Habit(8.0, (2.0, 4.0), (2.8, 5.6))  # stands still about 40 % of the time, including ramps
DRIVER, CYCLIST, WALKER = Habit(9.0), Habit(5.0), Habit(1.6)


def stop_and_go(rng: np.random.Generator, habit: Habit, frames: int) -> tuple[Array, Array]:
    """Sample distance (frames,) in m, from 0, and speed (frames,) in m/s; starts at any moment of a go or a stop."""
    periods = frames // round(FRAME_RATE * (habit.go[0] + habit.stop[0])) + 3
    spans = np.stack([rng.uniform(*habit.go, periods), rng.uniform(*habit.stop, periods)], axis=1)
    # Integers in mm/s, so that the mean speed during a stop is exactly 0.
    speeds = rng.integers(round(500 * habit.top_speed), round(1000 * habit.top_speed), periods)
    lengths = np.round(FRAME_RATE * spans).astype(np.int64)
    wanted = np.repeat(np.stack([speeds, np.zeros_like(speeds)], axis=1).ravel(), lengths.ravel())
    total = np.cumsum(wanted)
    first = RAMP + rng.integers(lengths[0].sum())
    speed = (total[first:] - total[first - RAMP : -RAMP])[:frames] / (1000 * RAMP)
    return (np.cumsum(speed) - speed) / FRAME_RATE, speed


class Street:
    """Drive of a given duration through a city, by day or at night; fully determined by the arguments."""

    def __init__(self, seed: int, seconds: float, night: bool = False) -> None:
        pace, others, sky, shake = (np.random.default_rng([seed, part]) for part in range(1, 5))
        self.seed, self.night, self.frames = seed, night, round(seconds * FRAME_RATE) + 1
        self.variation = Variation(seed)
        distance, self.ego_speed = stop_and_go(pace, EGO, self.frames)
        self.x = distance + pace.uniform(0, BLOCK)
        swing = 2 * np.pi / WAVE * self.x
        self.y = SWAY * np.sin(swing) - self.variation.side * LANE
        self.heading = SWAY * 2 * np.pi / WAVE * np.cos(swing)
        self.static = city(seed, self.variation, self.x[0], self.x[-1])
        azimuth, road, grass = (
            sky.uniform(0, 2 * np.pi),
            self.variation.road,
            self.variation.green > 0.4,
        )
        self.around = Surroundings(self.variation.light, azimuth, 0.0, 0.0, 1.0, road, grass, 0.0)
        if night:
            light, lamps = sky.uniform(0.08, 0.14), sky.uniform(2.0, 4.0)
            self.around = self.around._replace(
                light=light, headlights=0.8, street_lamps=lamps, sky=0.15
            )
        self.agents = _agents(others, self.variation, self.x, self.y, self.ego_speed)
        # One table of all moving boxes, so that placing them takes few array operations per frame.
        self._moving = np.concatenate([boxes for boxes, _ in self.agents])
        self._owner = np.repeat(
            np.arange(len(self.agents)), [len(boxes) for boxes, _ in self.agents]
        )
        self._poses = np.stack([poses for _, poses in self.agents])
        # Pitch (rad) and height (m) of the camera, which shakes only while the car drives.
        time = np.arange(self.frames) / FRAME_RATE
        slow, fast, lift = (
            2 * np.pi * (np.array([[1.7], [9.0], [2.3]]) * time + shake.random((3, 1)))
        )
        driving = np.clip(self.ego_speed / 4, 0, 1)
        self.pitch = driving * (0.004 * np.sin(slow) + 0.0012 * np.sin(fast))
        self.height = self.variation.height + driving * 0.01 * np.sin(lift)

    def boxes(self, frame: int) -> Array:
        """All boxes at a frame (N, 14), the moving ones first."""
        x, y, heading, phase = self._poses[self._owner, frame].T
        moving = self._moving.copy()
        moving[:, CX] += moving[:, SWING] * np.sin(phase)
        return np.concatenate([place(moving, x, y, heading), self.static])

    def camera(self, height: int, width: int, free_rows: int) -> Camera:
        """Return the camera for an image size in px; rows from `free_rows` on show the ego car's bonnet."""
        focal, horizon = self.variation.focal * width, self.variation.horizon * free_rows
        return Camera(height, width, focal, width / 2, horizon, free_rows)

    def view(self, frame: int) -> View:
        """Pose of the camera at a frame."""
        heading, pitch, roll = (
            self.heading[frame] + self.variation.yaw,
            self.pitch[frame],
            self.variation.roll,
        )
        forward = np.array(
            [np.cos(heading) * np.cos(pitch), np.sin(heading) * np.cos(pitch), np.sin(pitch)]
        )
        left = np.array([-np.sin(heading), np.cos(heading), 0.0])
        up = np.cross(forward, left)
        axes = [
            forward,
            np.cos(roll) * left + np.sin(roll) * up,
            np.cos(roll) * up - np.sin(roll) * left,
        ]
        return View(np.array([self.x[frame], self.y[frame], self.height[frame]]), np.stack(axes))

    def render(self, camera: Camera, index: int) -> Frame:
        """Render one frame."""
        boxes = self.boxes(index)
        around = self.around._replace(wind=WIND * np.sin(2 * np.pi * index / FRAME_RATE))
        image, depth, hit, label = render(boxes, camera, self.view(index), around)
        instance = np.append(boxes[:, INSTANCE], 0).astype(np.int32)[hit]
        white = WHITE_NIGHT if self.night else 1.2 * self.around.light
        return Frame(
            index,
            PERIOD_US * index,
            float(self.ego_speed[index]),
            image,
            depth,
            label,
            instance,
            white,
        )

    def record(self, camera: Camera) -> Film:
        """Yield every frame after the first, with the events since the previous frame, all earlier than its time."""
        sensor = EventSensor(self.render(camera, 0).image, NIGHT if self.night else DAY, self.seed)
        for index in range(1, self.frames):
            frame = self.render(camera, index)
            yield frame, sensor.advance(frame.image, frame.time_us)


def _agents(
    rng: np.random.Generator, varied: Variation, x: Array, y: Array, speed: Array
) -> list[Agent]:
    """Sample road users around the ego car's path x, y, and drop those that collide with it or with each other."""
    frames, side = len(x), varied.side

    def ahead(near: float, far: float) -> float:
        return float(rng.uniform(x[0] + near, x[-1] + far))

    def on_its_way(habit: Habit, x0: float, y0: float, direction: int) -> Array:
        walked, _ = stop_and_go(rng, habit, frames)
        step_x, step_y = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
        heading = np.full(frames, direction * np.pi / 2)
        return np.stack([x0 + step_x * walked, y0 + step_y * walked, heading, STRIDE * walked], 1)

    def lead() -> Array:
        gap = rng.uniform(7.0, 16.0) + 0.5 * speed
        return np.stack(
            [x + gap, np.full(frames, -side * LANE), np.zeros(frames), np.zeros(frames)], 1
        )

    def crossing() -> Array:
        direction, corner = int(rng.choice((NORTH, SOUTH))), BLOCK * round(ahead(0.0, 60.0) / BLOCK)
        turned = 1 if direction == NORTH else -1
        return on_its_way(
            DRIVER, corner + turned * side * LANE, -turned * rng.uniform(-20.0, 50.0), direction
        )

    def cycling() -> Array:
        direction = int(rng.choice((EAST, WEST)))
        return on_its_way(
            CYCLIST, ahead(5.0, 25.0), (direction - EAST - 1) * side * CYCLE_LANE, direction
        )

    def walking() -> Array:
        away = rng.choice((-1, 1)) * (varied.road + rng.uniform(0.9, 2.3))
        return on_its_way(WALKER, ahead(3.0, 28.0), away, int(rng.choice((EAST, WEST))))

    def crossing_on_foot() -> Array:
        """Walk to and fro between the sidewalks."""
        poses = on_its_way(WALKER, ahead(5.0, 14.0), rng.uniform(0.0, 24.0), NORTH)
        back = np.mod(poses[:, 1], 24.0) > 12.0
        poses[:, 1] = 6.0 - np.abs(12.0 - np.mod(poses[:, 1], 24.0))
        poses[:, 2] += np.where(back, np.pi, 0.0)
        return poses

    kinds = [(1, lead, vehicle, 2.4)] if rng.random() < LEAD_SHARE else []
    kinds += [
        (round(varied.crowd * CROSSERS), crossing_on_foot, person, 0.35),
        (round(varied.crowd * WALKERS), walking, person, 0.35),
        (
            round(varied.crowd * CARS),
            lambda: on_its_way(DRIVER, ahead(10.0, 70.0), side * LANE, WEST),
            vehicle,
            2.4,
        ),
        (round(varied.crowd * CARS), crossing, vehicle, 2.4),
        (round(varied.crowd * CYCLISTS), cycling, cyclist, 0.8),
    ]
    taken = [(2.4, np.stack([x, y], 1)[::COLLISION_STEP])]
    accepted: list[Agent] = []
    for number, way, body, radius in kinds:
        for _ in range(number):
            poses, boxes = way(), body(rng, len(accepted) + 1)
            own = poses[::COLLISION_STEP, :2]
            if all(
                np.min(np.sum((own - at) ** 2, axis=1)) > (0.75 * (radius + other)) ** 2
                for other, at in taken
            ):
                taken.append((radius, own))
                accepted.append((boxes, poses))
    return accepted
