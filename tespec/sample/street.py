"""Simulate a drive along a street: road users, rendered frames, ground truth and events."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tespec.events.readers import Events
from tespec.sample.city import LANE, Variation, city, cyclist, person, transform, vehicle
from tespec.sample.render import (
    CX,
    INSTANCE,
    SPACING,
    SWING,
    Array,
    Camera,
    CameraPose,
    Image,
    SceneContext,
    render,
)
from tespec.sample.sensor import DAY, NIGHT, EventSensor

FRAME_RATE = 100  # rendered frames per second
PERIOD_US = 1_000_000 // FRAME_RATE  # time between two frames
WHITE_NIGHT = 0.4  # intensity shown as white in grey frames; by day it scales with the light
RAMP = 120  # frames that a road user takes to reach its speed, or to stop
# attempts at density 1; CARS: oncoming and crossing each
CROSSERS, WALKERS, CARS, CYCLISTS = 10, 36, 6, 7
LEAD_FRACTION = 0.5  # fraction of streets with a vehicle ahead of the ego car
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
        linear = (self.image.astype(np.float64) / self.white).clip(0, 1)
        return (255 * linear ** (1 / 2.2) + 0.5).astype(np.uint8)


Film = Iterator[tuple[Frame, Events]]
# Boxes (N, 14) in the body frame, and poses (frames, 4): x and y in m, heading and walking phase in
# rad.
Agent = tuple[Array, Array]


class MotionPattern(NamedTuple):
    """Top speed of a road user, and ranges of the durations of moving and of standing."""

    top_speed: float  # m/s
    go: tuple[float, float] = (2.0, 5.0)  # s
    stop: tuple[float, float] = (0.5, 2.0)  # s


# The ego car stands about 40 % of the time, including ramps.
EGO = MotionPattern(8.0, (2.0, 4.0), (2.8, 5.6))
DRIVER, CYCLIST, WALKER = MotionPattern(9.0), MotionPattern(5.0), MotionPattern(1.6)


def stop_and_go(
    rng: np.random.Generator, pattern: MotionPattern, frames: int
) -> tuple[Array, Array]:
    """Sample a motion that starts at any moment of a go or a stop.

    Args:
        rng: generator of durations and speeds.
        pattern: speed and durations.
        frames: number of frames.

    Returns:
        Distance (frames,) in m, from 0, and speed (frames,) in m/s.
    """
    periods = frames // round(FRAME_RATE * (pattern.go[0] + pattern.stop[0])) + 3
    goes = rng.uniform(*pattern.go, periods)
    stops = rng.uniform(*pattern.stop, periods)
    # Integers in mm/s, so that the mean speed during a stop is exactly 0.
    low, high = round(500 * pattern.top_speed), round(1000 * pattern.top_speed)
    speeds = rng.integers(low, high, periods)
    durations = np.round(FRAME_RATE * np.stack([goes, stops], axis=1)).astype(np.int64)
    targets = np.stack([speeds, np.zeros_like(speeds)], axis=1)  # (periods, 2)
    total = np.cumsum(np.repeat(targets.ravel(), durations.ravel()))
    first = RAMP + rng.integers(durations[0].sum())
    speed = (total[first:] - total[first - RAMP : -RAMP])[:frames] / (1000 * RAMP)
    return (np.cumsum(speed) - speed) / FRAME_RATE, speed


class Street:
    """Drive through a city, fully determined by the arguments.

    Args:
        seed: seed of the street and its traffic.
        seconds: duration.
        night: whether lamps light the street.
    """

    def __init__(self, seed: int, seconds: float, night: bool = False) -> None:
        pace, traffic, sky, shake = (np.random.default_rng([seed, part]) for part in range(1, 5))
        self.seed = seed
        self.night = night
        self.frames = round(seconds * FRAME_RATE) + 1
        self.variation = Variation(seed)
        distance, self.ego_speed = stop_and_go(pace, EGO, self.frames)
        self.x = distance + pace.uniform(0, SPACING)
        swing = 2 * np.pi / WAVE * self.x
        self.y = SWAY * np.sin(swing) - self.variation.side * LANE
        self.heading = SWAY * 2 * np.pi / WAVE * np.cos(swing)
        self.static = city(seed, self.variation, self.x[0], self.x[-1])
        self.scene = SceneContext(
            light=self.variation.light,
            azimuth=sky.uniform(0, 2 * np.pi),
            headlights=0.0,
            street_lamps=0.0,
            sky=1.0,
            road=self.variation.road,
            grass=self.variation.green > 0.4,
            wind=0.0,
        )
        if night:
            self.scene = self.scene._replace(
                light=sky.uniform(0.08, 0.14),
                headlights=0.8,
                street_lamps=sky.uniform(2.0, 4.0),
                sky=0.15,
            )
        self.agents = _agents(traffic, self.variation, self.x, self.y, self.ego_speed)
        # One table of all moving boxes, so that moving them takes few array operations per frame.
        self._moving = np.concatenate([boxes for boxes, _ in self.agents])
        counts = [len(boxes) for boxes, _ in self.agents]
        self._owner = np.repeat(np.arange(len(self.agents)), counts)
        self._poses = np.stack([poses for _, poses in self.agents])
        # Pitch (rad) and height (m) of the camera, which shakes only while the car drives.
        time = np.arange(self.frames) / FRAME_RATE
        phases = 2 * np.pi * (np.array([[1.7], [9.0], [2.3]]) * time + shake.random((3, 1)))
        slow, fast, lift = np.sin(phases)
        driving = (self.ego_speed / 4).clip(0, 1)
        self.pitch = driving * (0.004 * slow + 0.0012 * fast)
        self.height = self.variation.height + driving * 0.01 * lift

    def boxes(self, frame: int) -> Array:
        """All boxes at a frame (N, 14), the moving ones first."""
        x, y, heading, phase = self._poses[self._owner, frame].T
        moving = self._moving.copy()
        moving[:, CX] += moving[:, SWING] * np.sin(phase)
        return np.concatenate([transform(moving, x, y, heading), self.static])

    def camera(self, height: int, width: int, free_rows: int) -> Camera:
        """Return the camera of this street.

        Args:
            height: of the image in px.
            width: of the image in px.
            free_rows: rows above the ego car's bonnet.
        """
        focal = self.variation.focal * width
        horizon = self.variation.horizon * free_rows
        return Camera(height, width, focal, width / 2, horizon, free_rows)

    def camera_pose(self, frame: int) -> CameraPose:
        """Pose of the camera at a frame."""
        heading = self.heading[frame] + self.variation.yaw
        pitch, roll = self.pitch[frame], self.variation.roll
        forward = np.array(
            [np.cos(heading) * np.cos(pitch), np.sin(heading) * np.cos(pitch), np.sin(pitch)]
        )
        left = np.array([-np.sin(heading), np.cos(heading), 0.0])
        up = np.cross(forward, left)
        rolled_left = np.cos(roll) * left + np.sin(roll) * up
        rolled_up = np.cos(roll) * up - np.sin(roll) * left
        position = np.array([self.x[frame], self.y[frame], self.height[frame]])
        return CameraPose(position, np.stack([forward, rolled_left, rolled_up]))

    def render(self, camera: Camera, index: int) -> Frame:
        """Render a frame.

        Args:
            camera: of `camera`.
            index: number of the frame.

        Returns:
            Image, depth, labels and instances (H, W).
        """
        boxes = self.boxes(index)
        scene = self.scene._replace(wind=WIND * np.sin(2 * np.pi * index / FRAME_RATE))
        image, depth, hit, label = render(boxes, camera, self.camera_pose(index), scene)
        return Frame(
            index=index,
            time_us=PERIOD_US * index,
            ego_speed=float(self.ego_speed[index]),
            image=image,
            depth=depth,
            label=label,
            instance=np.append(boxes[:, INSTANCE], 0).astype(np.int32)[hit],
            white=WHITE_NIGHT if self.night else 1.2 * self.scene.light,
        )

    def record(self, camera: Camera) -> Film:
        """Yield every frame after the first, with the events since the frame before it."""
        sensor = EventSensor(self.render(camera, 0).image, NIGHT if self.night else DAY, self.seed)
        for index in range(1, self.frames):
            frame = self.render(camera, index)
            yield frame, sensor.advance(frame.image, frame.time_us)


def _agents(
    rng: np.random.Generator, variation: Variation, x: Array, y: Array, speed: Array
) -> list[Agent]:
    """Sample road users near the ego car's path x, y, without those that collide."""
    frames = len(x)
    side = variation.side

    def ahead(near: float, far: float) -> float:
        return float(rng.uniform(x[0] + near, x[-1] + far))

    def straight(pattern: MotionPattern, x0: float, y0: float, direction: int) -> Array:
        distance, _ = stop_and_go(rng, pattern, frames)
        step_x, step_y = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
        heading = np.full(frames, direction * np.pi / 2)
        poses = [x0 + step_x * distance, y0 + step_y * distance, heading, STRIDE * distance]
        return np.stack(poses, axis=1)

    def leading() -> Array:
        gap = rng.uniform(7.0, 16.0) + 0.5 * speed
        poses = [x + gap, np.full(frames, -side * LANE), np.zeros(frames), np.zeros(frames)]
        return np.stack(poses, axis=1)

    def oncoming() -> Array:
        return straight(DRIVER, ahead(10.0, 70.0), side * LANE, WEST)

    def crossing() -> Array:
        direction = int(rng.choice((NORTH, SOUTH)))
        corner = SPACING * round(ahead(0.0, 60.0) / SPACING)
        sign = 1 if direction == NORTH else -1
        start = -sign * rng.uniform(-20.0, 50.0)
        return straight(DRIVER, corner + sign * side * LANE, start, direction)

    def cycling() -> Array:
        direction = int(rng.choice((EAST, WEST)))
        lane = (direction - EAST - 1) * side * CYCLE_LANE
        return straight(CYCLIST, ahead(5.0, 25.0), lane, direction)

    def walking() -> Array:
        sidewalk = rng.choice((-1, 1)) * (variation.road + rng.uniform(0.9, 2.3))
        return straight(WALKER, ahead(3.0, 28.0), sidewalk, int(rng.choice((EAST, WEST))))

    def crossing_on_foot() -> Array:
        """Walk to and fro between the sidewalks."""
        poses = straight(WALKER, ahead(5.0, 14.0), rng.uniform(0.0, 24.0), NORTH)
        is_returning = np.mod(poses[:, 1], 24.0) > 12.0
        poses[:, 1] = 6.0 - np.abs(12.0 - np.mod(poses[:, 1], 24.0))
        poses[:, 2] += np.where(is_returning, np.pi, 0.0)
        return poses

    kinds = [(1.0, leading, vehicle, 2.4)] if rng.random() < LEAD_FRACTION else []
    kinds += [
        (variation.crowd * CROSSERS, crossing_on_foot, person, 0.35),
        (variation.crowd * WALKERS, walking, person, 0.35),
        (variation.crowd * CARS, oncoming, vehicle, 2.4),
        (variation.crowd * CARS, crossing, vehicle, 2.4),
        (variation.crowd * CYCLISTS, cycling, cyclist, 0.8),
    ]
    paths = [(2.4, np.stack([x, y], 1)[::COLLISION_STEP])]  # radius and positions (N, 2)
    agents: list[Agent] = []
    for attempts, sample_poses, build, radius in kinds:
        for _ in range(round(attempts)):
            poses = sample_poses()
            boxes = build(rng, len(agents) + 1)
            path = poses[::COLLISION_STEP, :2]
            if all(
                np.min(np.sum((path - other) ** 2, axis=1)) > (0.75 * (radius + other_radius)) ** 2
                for other_radius, other in paths
            ):
                paths.append((radius, path))
                agents.append((boxes, poses))
    return agents
