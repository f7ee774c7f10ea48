"""Stop-and-go: how far something has come along its path at every frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from tespec.world.paths import STEP, Path
from tespec.world.scene import Array


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
    stop and the share of standing does not depend on its length.

    Args:
        rng: source of the durations.
        habit: of who moves.
        path: whose speed limit is kept.
        start: metres along the path at the first frame.
        seconds: length of the recording.
        frame_rate: frames per second.

    Returns:
        Distance along the path in metres and speed in m/s, (round(seconds * frame_rate) + 1,) each.
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
