"""Event sensor model: log intensity crosses per-pixel thresholds, with noise, leak and mismatch."""

from typing import NamedTuple

import numpy as np
from numba import njit

from tespec.events.readers import Events
from tespec.sample.render import Array, Image


class SensorModel(NamedTuple):
    """Parameters of an event sensor."""

    contrast: float = 0.25  # mean threshold in natural log units
    mismatch: float = 0.03  # standard deviation of the thresholds over pixels
    leak: float = 0.1  # ON events per second of a pixel with constant input
    noise: float = 0.1  # noise events per second and pixel
    hot_fraction: float = 0.0005  # fraction of hot pixels
    hot_rate: float = 80.0  # mean noise events per second of a hot pixel
    refractory_us: int = 500  # time for which a pixel is silent after an event, at least 1
    dark: float = 0.02  # intensity that a pixel measures in the dark, added to its input


DAY = SensorModel()
NIGHT = SensorModel(mismatch=0.04, leak=0.05, noise=0.4, hot_fraction=0.001)


class EventSensor:
    """Convert images of linear intensity to events, keeping the state of each pixel.

    Args:
        image: first image (H, W), at time 0.
        model: thresholds and noise.
        seed: seed of the thresholds and the noise.
    """

    def __init__(self, image: Image, model: SensorModel, seed: int) -> None:
        rng = np.random.default_rng([seed, 1])
        self.model = model
        self.seed = seed
        self.time_us = 0
        thresholds = rng.normal(model.contrast, model.mismatch, (2, *image.shape))
        self.thresholds = np.maximum(thresholds, 0.2 * model.contrast)
        is_hot = rng.random(image.shape) < model.hot_fraction
        hot_rate = rng.exponential(model.hot_rate, image.shape)
        self.noise_rate = model.noise + np.where(is_hot, hot_rate, 0.0)
        self.level = self._log(image)
        # After a while, the level of a pixel is anywhere between its two thresholds.
        above, below = self.thresholds
        self.reference = self.level - rng.uniform(-0.9 * below, 0.9 * above)
        self.last_event = np.full(image.shape, -model.refractory_us, np.int64)

    def _log(self, image: Image) -> Array:
        return np.log(np.maximum(image, 0).astype(np.float64) + self.model.dark)

    def advance(self, image: Image, time_us: int) -> Events:
        """Simulate the events between the last image and a new one.

        Log intensity is interpolated linearly.

        Args:
            image: new image (H, W).
            time_us: its time in us.

        Returns:
            Sorted events, from the time of the last image to the last us before `time_us`.
        """
        level = self._log(image)
        span = time_us - self.time_us
        pixels = (self.thresholds, self.noise_rate, self.reference, self.last_event)
        pixel, offset, p = _cross(
            self.level, level, pixels, self.time_us, span, self.model, self.seed
        )
        # A stable sort keeps events of the same microsecond in pixel order.
        order = np.argsort(offset, kind="stable")
        y, x = np.divmod(pixel[order], image.shape[1])
        t = self.time_us + offset[order].astype(np.int64)
        self.level = level
        self.time_us = time_us
        return Events(x.astype(np.uint16), y.astype(np.uint16), t, p[order])


@njit(cache=True)
def _random(seed: int, time: int, pixel: int, draw: int) -> float:
    """Hash the arguments to [0, 1): noise does not depend on the order of evaluation."""
    h = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    h += np.uint64(time) * np.uint64(0xBF58476D1CE4E5B9)
    h += np.uint64(pixel) * np.uint64(0x94D049BB133111EB)
    h += np.uint64(draw) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return float(h >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True)
def _cross(before, after, pixels, start, span, model, seed):  # type: ignore[no-untyped-def]
    """Return pixel, us since `start` and polarity of the events, and update the pixels' state."""
    thresholds, noise_rate, reference, last_event = pixels
    height, width = before.shape
    seconds = 1e-6 * span
    # A pixel fires at most once per refractory period, plus once at the start of the interval.
    capacity = height * width * (span // model.refractory_us + 2)
    pixel = np.empty(capacity, np.int32)
    offset = np.empty(capacity, np.int32)
    polarity = np.empty(capacity, np.uint8)
    count = 0
    for y in range(height):
        for x in range(width):
            index = y * width + x
            # The leak lowers the reference; relative to it, the level rises.
            drift = model.leak * thresholds[0, y, x] * seconds
            low = before[y, x] - reference[y, x]
            high = after[y, x] - reference[y, x] + drift
            rising = high > low
            threshold = thresholds[0, y, x] if rising else -thresholds[1, y, x]
            noise_at = span
            if _random(seed, start, index, 0) < noise_rate[y, x] * seconds:
                noise_at = int(span * _random(seed, start, index, 1))
            crossed = 0.0
            while True:
                crossing = span
                if (high - crossed >= threshold) if rising else (high - crossed <= threshold):
                    fraction = (crossed + threshold - low) / (high - low)
                    crossing = min(max(int(span * fraction), 0), span - 1)
                time = min(crossing, noise_at)
                if time == span:
                    break
                noisy = noise_at < crossing
                if start + time - last_event[y, x] >= model.refractory_us:
                    pixel[count] = index
                    offset[count] = time
                    polarity[count] = (_random(seed, start, index, 2) < 0.6) if noisy else rising
                    last_event[y, x] = start + time
                    count += 1
                if noisy:
                    noise_at = span
                else:
                    crossed += threshold
            reference[y, x] += crossed - drift
    return pixel[:count], offset[:count], polarity[:count]
