"""The event sensor against plain threshold crossing; order and noise of its events."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tespec.sample.sensor import DAY, NIGHT, EventSensor, SensorModel

IDEAL = SensorModel(
    contrast=0.2, mismatch=0.0, leak=0.0, noise=0.0, hot_fraction=0.0, refractory_us=1, dark=0.0
)


def plain_events(images, times, contrast, reference):
    """Events (t, y, x, p) of an ideal sensor, one pixel and one threshold at a time."""
    events_of_pixels = []
    for y, x in np.ndindex(images.shape[1:]):
        memory = reference[y, x]
        for k in range(1, len(images)):
            low, high = np.log(float(images[k - 1, y, x])), np.log(float(images[k, y, x]))
            span = times[k] - times[k - 1]
            while abs(high - memory) >= contrast:
                step = contrast if high > memory else -contrast
                memory += step
                fraction = (memory - low) / (high - low)
                events_of_pixels.append(
                    (
                        times[k - 1] + min(max(int(span * fraction), 0), span - 1),
                        y,
                        x,
                        int(step > 0),
                    )
                )
    return events_of_pixels


@settings(max_examples=30)
@given(arrays(np.float32, (5, 4, 5), elements=st.floats(0.0625, 1.0, width=32)))
def test_ideal_sensor_equals_plain_threshold_crossing(images):
    times = [0, 10_000, 20_000, 25_000, 40_000]
    sensor = EventSensor(images[0], IDEAL, seed=0)
    expected = plain_events(images, times, IDEAL.contrast, sensor.reference.copy())
    events_of_pixels = []
    for image, time in zip(images[1:], times[1:], strict=True):
        events = sensor.advance(image, time)
        events_of_pixels += zip(*(getattr(events, name).tolist() for name in "tyxp"), strict=True)
    # Rounding may move a crossing that ends exactly at a frame to the next one.
    assert len(events_of_pixels) == pytest.approx(len(expected), abs=1)
    assert len(set(events_of_pixels) & set(expected)) >= len(set(expected)) - 1


@pytest.mark.parametrize("model", [DAY, NIGHT])
def test_events_are_sorted_and_a_pixel_rests_after_each(model):
    images = np.random.default_rng(2).uniform(0.05, 1, (12, 20, 30)).astype(np.float32)
    sensor = EventSensor(images[0], model, seed=3)
    chunks = [sensor.advance(image, 5000 * k) for k, image in enumerate(images[1:], start=1)]
    t, y, x = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in "tyx")
    assert len(t) > 1000
    assert (np.diff(t) >= 0).all()
    assert 0 <= t[0] <= t[-1] < 55_000
    pixel = y.astype(int) * 30 + x
    order = np.lexsort((t, pixel))
    assert np.diff(t[order])[np.diff(pixel[order]) == 0].min() >= model.refractory_us


@pytest.mark.parametrize("model", [DAY, NIGHT])
def test_a_still_image_gives_only_noise_leak_and_hot_pixels(model):
    image = np.full((120, 160), 0.3, np.float32)
    sensor = EventSensor(image, model, seed=4)
    rate = sum(len(sensor.advance(image, 10_000 * k).t) for k in range(1, 401)) / image.size / 4.0
    assert 0.9 * sensor.noise_rate.mean() < rate < 1.1 * (sensor.noise_rate.mean() + model.leak)
