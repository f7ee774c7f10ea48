"""A recording of a street: what the sensor sees and what is true, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tespec.events.stream import Events
from tespec.sample.city import city
from tespec.sample.paths import FRAME_RATE, drive
from tespec.sample.renderer import FAR, raster
from tespec.sample.scene import (
    BLOCK,
    COLUMNS,
    CX,
    INSTANCE,
    Array,
    Camera,
    Image,
    View,
    make_camera,
    make_view,
    place,
    variation,
)
from tespec.sample.sensor import DAY, NIGHT, EventSensor
from tespec.sample.shading import daylight, lamplight, shade
from tespec.sample.traffic import Traffic

WHITE_NIGHT = 0.4  # intensity that the grey frame shows as white; by day it follows the light


@dataclass(frozen=True)
class Frame:
    """A rendered moment.

    Attributes:
        index: of the frame; `time_us`: its time in microseconds; `ego_speed` in m/s.
        image: linear intensity (H, W) float32.
        depth: metres along the optical axis (H, W) float32, infinite for the sky.
        hit: row of `boxes` that each pixel shows, or a negative code of `raster` (H, W) int32.
        label: what each pixel shows (H, W) uint8, a class of `scene`.
        boxes: everything on the street at this moment (N, 13).
        white: intensity that the grey frame shows as white.
    """

    index: int
    time_us: int
    ego_speed: float
    image: Image
    depth: Image
    hit: npt.NDArray[np.int32]
    label: npt.NDArray[np.uint8]
    boxes: Array
    white: float

    @cached_property
    def instance(self) -> npt.NDArray[np.int32]:
        """Which car, person or two-wheeler each pixel shows (H, W) int32; 0: none of them."""
        numbers = np.append(self.boxes[:, INSTANCE].astype(np.int32), np.int32(0))
        return numbers[np.maximum(self.hit, -1)]

    @cached_property
    def grey(self) -> npt.NDArray[np.uint8]:
        """The frame as a camera would store it (H, W) uint8, with a gamma of 2.2."""
        # In float64: a power's last digits depend on the processor's instructions, and in float32 some would show.
        seen = np.clip(self.image.astype(np.float64) / self.white, 0, 1)
        return (255 * seen ** (1 / 2.2) + 0.5).astype(np.uint8)


Film = Iterator[tuple[Frame, Events]]


class Street:
    """A drive through a city of so many seconds, by day or at night: everything about it follows from the arguments."""

    def __init__(self, seed: int, seconds: float, night: bool = False) -> None:
        others, sky, shake = (np.random.default_rng([seed, part]) for part in range(2, 5))
        self.seed, self.night = seed, night
        ego = drive(seed, seconds)
        self.ego_speed, self.frames = ego.speed, len(ego.speed)
        self.x, self.y, self.heading = ego.path.at(ego.distance)
        self.variation = variation(seed)
        self.static = city(seed, self.variation, self.x, self.y, FAR + 0.5 * BLOCK)
        self.light = lamplight(sky) if night else daylight(sky, self.variation.light)
        self.agents = Traffic(others, ego, self.variation.crowd).agents()
        # One table of all moving boxes, so that placing them is a few array operations per frame.
        bodies = [agent.body for agent in self.agents]
        self._moving = np.concatenate([np.empty((0, COLUMNS)), *(body.boxes for body in bodies)])
        self._swing = np.concatenate([np.empty(0), *(body.swing for body in bodies)])
        self._owner = np.repeat(np.arange(len(bodies)), [len(body.boxes) for body in bodies])
        self._poses = np.concatenate([np.empty((0, self.frames, 4)), *(agent.poses[None] for agent in self.agents)])
        # Pitch (rad) and height (m) of the camera; on a standing car it is still.
        time = np.arange(self.frames) / FRAME_RATE
        slow, fast, lift = 2 * np.pi * (np.array([[1.7], [9.0], [2.3]]) * time + shake.random((3, 1)))
        driving = np.clip(self.ego_speed / 4, 0, 1)
        self.pitch = self.variation.pitch + driving * (0.004 * np.sin(slow) + 0.0012 * np.sin(fast))
        self.height = self.variation.height + driving * 0.01 * np.sin(lift)

    def boxes(self, frame: int) -> Array:
        """All boxes at a frame (N, 13), the moving ones first."""
        x, y, heading, phase = self._poses[self._owner, frame].T
        moving = self._moving.copy()
        moving[:, CX] += self._swing * np.sin(phase)
        return np.concatenate([place(moving, x, y, heading), self.static])

    def camera(self, height: int, width: int, free_rows: int | None = None) -> Camera:
        """The street's camera at a size in pixels; see `make_camera`."""
        return make_camera(height, width, free_rows, self.variation.focal)

    def view(self, frame: int) -> View:
        """The camera's position and directions at a frame."""
        heading = self.heading[frame] + self.variation.yaw
        return make_view(self.x[frame], self.y[frame], self.height[frame], heading, self.pitch[frame])

    def render(self, camera: Camera, index: int) -> Frame:
        """Draw one frame."""
        boxes, view = self.boxes(index), self.view(index)
        depth, hit = raster(boxes, camera, view)
        image, label = shade(depth, hit, boxes, camera, view, self.light, self.variation.green > 0.5)
        white = WHITE_NIGHT if self.night else 1.2 * self.light.strength
        time_us = round(index * 1_000_000 / FRAME_RATE)
        return Frame(index, time_us, float(self.ego_speed[index]), image, depth, hit, label, boxes, white)

    def record(self, camera: Camera) -> Film:
        """Yield every frame after the first, with the events since the frame before it, all earlier than its time."""
        sensor = EventSensor(self.render(camera, 0).image, NIGHT if self.night else DAY, self.seed)
        for index in range(1, self.frames):
            frame = self.render(camera, index)
            yield frame, sensor.advance(frame.image, frame.time_us)
