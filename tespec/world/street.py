"""A recording of a street: what the sensor sees and what is true, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tespec.events.stream import Events
from tespec.world.city import city
from tespec.world.renderer import FAR, daylight, lamplight, raster, shade
from tespec.world.scene import BLOCK, CX, INSTANCE, LANE, Array, Camera, View, make_view, place
from tespec.world.sensor import DAY, NIGHT, EventSensor
from tespec.world.texture import Surface, paint
from tespec.world.traffic import EGO, Path, Traffic, agents, centre_line, from_points, stop_and_go

FRAME_RATE = 100
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
    image: npt.NDArray[np.float32]
    depth: npt.NDArray[np.float32]
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


@dataclass(frozen=True)
class Drive:
    """The ego car's way: centre line (N, 2), path, and its distance (m) and speed (m/s) at every frame (F,)."""

    centre: Array
    path: Path
    distance: Array
    speed: Array


def drive(seed: int, seconds: float, frame_rate: int = FRAME_RATE) -> Drive:
    """Where and how the ego car of a street drives, without the street."""
    way, pace = (np.random.default_rng([seed, part]) for part in range(2))
    centre = centre_line(way, seconds * EGO.top_speed + 4 * BLOCK)
    path = from_points(centre, LANE)
    distance, speed = stop_and_go(pace, EGO, path, way.uniform(30.0, 70.0), seconds, frame_rate)
    return Drive(centre, path, distance, speed)


class Street:
    """A drive through a city of so many seconds, by day or at night: everything about it follows from the arguments."""

    def __init__(self, seed: int, seconds: float, night: bool = False, frame_rate: int = FRAME_RATE) -> None:
        others, sky, shake = (np.random.default_rng([seed, part]) for part in range(2, 5))
        self.seed, self.night, self.frame_rate = seed, night, frame_rate
        self.frames = round(seconds * frame_rate) + 1
        ego = drive(seed, seconds, frame_rate)
        self.ego_speed = ego.speed
        self.x, self.y, self.heading = ego.path.at(ego.distance)
        self.static = city(seed, self.x, self.y, FAR + 0.5 * BLOCK)
        self.agents = agents(others, Traffic(ego.centre, ego.path, ego.distance, seconds, frame_rate))
        self.light = lamplight(sky) if night else daylight(sky)
        self._gather()
        self._shake(shake)

    def _gather(self) -> None:
        """One table of all moving boxes, so that placing them is a few array operations per frame."""
        bodies = [agent.body for agent in self.agents]
        self._moving = np.concatenate([np.empty((0, self.static.shape[1])), *(body.boxes for body in bodies)])
        self._swing = np.concatenate([np.empty(0), *(body.swing for body in bodies)])
        self._owner = np.repeat(np.arange(len(bodies)), [len(body.boxes) for body in bodies])
        empty = np.empty((0, self.frames, 4))
        self._poses = np.concatenate([empty, *(agent.poses[None] for agent in self.agents)])

    def _shake(self, rng: np.random.Generator) -> None:
        """Pitch (rad) and lift (m) of the driving car; a standing car is still."""
        time = np.arange(self.frames) / self.frame_rate
        slow, fast, lift = 2 * np.pi * (np.array([[1.7], [9.0], [2.3]]) * time + rng.random((3, 1)))
        driving = np.clip(self.ego_speed / 4, 0, 1)
        self.pitch = driving * (0.004 * np.sin(slow) + 0.0012 * np.sin(fast))
        self.lift = driving * 0.01 * np.sin(lift)

    def boxes(self, frame: int) -> Array:
        """All boxes at a frame (N, 13), the moving ones first."""
        x, y, heading, phase = self._poses[self._owner, frame].T
        moving = self._moving.copy()
        moving[:, CX] += self._swing * np.sin(phase)
        return np.concatenate([place(moving, x, y, heading), self.static])

    def view(self, frame: int) -> View:
        """The camera's position and directions at a frame."""
        return make_view(self.x[frame], self.y[frame], self.heading[frame], self.pitch[frame], self.lift[frame])


def render(street: Street, camera: Camera, frame: int) -> Frame:
    """Draw one frame of a street."""
    boxes, view = street.boxes(frame), street.view(frame)
    depth, hit = raster(boxes, camera, view)
    surface: Surface = paint(depth, hit, boxes, camera, view, street.night)
    image = shade(surface, depth, hit, boxes, camera, view, street.light)
    return Frame(
        index=frame,
        time_us=round(frame * 1_000_000 / street.frame_rate),
        ego_speed=float(street.ego_speed[frame]),
        image=image,
        depth=depth,
        hit=hit,
        label=surface.label,
        boxes=boxes,
        white=WHITE_NIGHT if street.night else 1.2 * street.light.strength,
    )


def record(street: Street, camera: Camera) -> Film:
    """Film a street.

    Yields:
        For every frame after the first: the frame and the events since the frame before it, all earlier than its time.
    """
    first = render(street, camera, 0)
    sensor = EventSensor(first.image, first.time_us, NIGHT if street.night else DAY, street.seed)
    for index in range(1, street.frames):
        frame = render(street, camera, index)
        yield frame, sensor.advance(frame.image, frame.time_us)
