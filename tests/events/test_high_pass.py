"""The intensity filter of Eq. 6."""

import math

import numpy as np
import pytest
from event_cases import HEIGHT, WIDTH, event_arrays, random_events
from hypothesis import given

from tespec.events.intensity import high_pass_intensity

TIMES = np.array([-3_000, 0, 1, 2_500, 2_500, 9_000])


def plain(x, y, t, p, times, alpha, contrast):
    """Each pixel by itself, from its own events, each decayed from its time to that of the image."""
    video = np.zeros((len(times), HEIGHT, WIDTH))
    for index, time in enumerate(times):
        for i in range(len(t)):
            if t[i] < time:
                sign = 1 if p[i] else -1
                video[index, y[i], x[i]] += sign * contrast * math.exp(-alpha * (time - t[i]) * 1e-6)
    return video


@given(event_arrays(largest=60))
def test_it_equals_decaying_every_event_by_itself(events):
    found = high_pass_intensity(*events, height=HEIGHT, width=WIDTH, alpha=200.0, contrast=0.3, times=TIMES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, plain(*events, TIMES, 200.0, 0.3), rtol=1e-5, atol=1e-6)


def test_without_decay_it_sums_polarities():
    events = random_events(1_000)
    image = high_pass_intensity(*events, height=HEIGHT, width=WIDTH, alpha=0.0, times=np.array([50_000]))[0]
    wanted = np.zeros((HEIGHT, WIDTH))
    np.add.at(wanted, (events.y, events.x), 2.0 * events.p - 1)
    np.testing.assert_array_equal(image, wanted)


def test_times_may_lie_far_before_zero():
    x, y, t, p = random_events(200)
    far = -(10**16)
    near = high_pass_intensity(x, y, t, p, height=HEIGHT, width=WIDTH, alpha=5.0, times=TIMES)
    moved = high_pass_intensity(x, y, t + far, p, height=HEIGHT, width=WIDTH, alpha=5.0, times=TIMES + far)
    np.testing.assert_allclose(moved, near, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"x": [WIDTH, 0]}, "x has values"), ({"t": [3, 2]}, "not sorted"), ({"times": [9, 5]}, "not sorted")],
)
def test_mistakes_are_refused(change, message):
    given_arrays = {"x": [0, 1], "y": [0, 1], "t": [1, 2], "p": [0, 1], "times": [5, 9]} | change
    with pytest.raises(ValueError, match=message):
        high_pass_intensity(
            **{name: np.array(values) for name, values in given_arrays.items()}, height=HEIGHT, width=WIDTH, alpha=1.0
        )
