"""Events to measure with: dense in the middle of the sensor, as many each millisecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tespec.events.packing import pack
from tespec.events.stream import ArrayStream, Events

# Events per second of the full sensor that a busy 1Mpx recording has: one of 540 million in 60 s that evlib measures.
BUSY = 9_000_000
SENSOR_1MPX = (720, 1280)
HALF_1MPX = (360, 640)


def make_events(count: int, microseconds: int, height: int, width: int, seed: int = 0, start: int = 0) -> Events:
    """Random events in time order, normally distributed about the middle of the sensor."""
    generator = np.random.default_rng(seed)

    def places(side: int) -> np.ndarray:
        drawn = generator.standard_normal(count, np.float32) * (side / 5) + side / 2
        return drawn.clip(0, side - 1).astype(np.uint16)

    t = start + np.sort(generator.integers(0, microseconds, count))
    return Events(places(width), places(height), t, generator.integers(0, 2, count, np.uint8))


def make_store(folder: Path, rate: int, seconds: float, sensor: tuple[int, int] = SENSOR_1MPX, seed: int = 0) -> Path:
    """A packed recording of `rate` events/s at `folder`."""
    events = make_events(round(rate * seconds), round(seconds * 1e6), *sensor, seed=seed)
    return pack(ArrayStream(*events, height=sensor[0], width=sensor[1]), folder)
