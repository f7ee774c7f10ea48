"""The intensity estimate of Eq. 7 and the filter of Eq. 6, against their definitions in float64."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tespec.events.intensity import estimate_high_pass, estimate_intensity

CONSTANTS = {"alpha": 40.0, "contrast": 0.7}
BOTH = pytest.mark.parametrize("estimate", [estimate_intensity, estimate_high_pass])
# counts of 255 add up to about 1000, and float32 has seven digits
CLOSE = {"rtol": 2e-5, "atol": 5e-4}


def state_of(estimate):
    """Initial state: an image, and for Eq. 6 also the time since each pixel's last event."""
    image, age = torch.randn(2, 2, 3, 5, generator=torch.Generator().manual_seed(0)).unbind(1)
    return image if estimate is estimate_intensity else torch.stack([image, 0.1 * age.abs()], 1)


@st.composite
def counts(draw, segments=5):
    """Strategy for histograms (2, T, 2*bins, 3, 5), empty to full, some with equal polarities."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (2, segments, 2, draw(st.sampled_from([1, 4])), 3, 5)
    filled = generator.random(shape) < draw(st.sampled_from([0.0, 0.02, 0.2, 1.0]))
    histograms = np.where(filled, generator.integers(1, 256, shape), 0).astype(np.uint8)
    if draw(st.booleans()):
        histograms[:, :, 1, ..., 1] = histograms[:, :, 0, ..., 1]
    return torch.from_numpy(histograms.reshape(2, segments, -1, 3, 5))


def bin_by_bin(update, histograms, state, bin_seconds):
    """Video of `update`, which changes a lane's state by the counts of one bin."""
    states, video = state.double().numpy().copy(), np.zeros((*histograms.shape[:2], 3, 5))
    for place in np.ndindex(histograms.shape[:2]):
        seconds = bin_seconds if isinstance(bin_seconds, float) else float(bin_seconds[place])
        for minus, plus in zip(
            *histograms[place].numpy().astype(float).reshape(2, -1, 3, 5), strict=True
        ):
            video[place] = update(states[place[0]], seconds, minus, plus)
    return video


def eq_7(image, seconds, minus, plus, *, alpha, contrast, norm_events):
    """Eq. 7: the image decays by the number of all events, then adds the signed counts."""
    decay = math.exp(-alpha * seconds * (minus + plus).sum() / norm_events)
    image[:] = decay * image + contrast * (plus - minus)
    return image


def eq_6(state, seconds, minus, plus, *, alpha, contrast):
    """Eq. 6: a pixel changes only at its own events, and decays by the time since its last one."""
    image, age = state
    age += seconds
    seen = (minus > 0) | (plus > 0)
    image[seen] = (np.exp(-alpha * age) * image + contrast * (plus - minus))[seen]
    age[seen] = 0
    return image


# Eq. 7 has a compiled loop for uint8 on a CPU; everything else uses torch.
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int32])
@BOTH
@given(histograms=counts(), cut=st.integers(1, 4), data=st.data())
def test_it_equals_going_bin_by_bin_whole_and_cut_in_two(estimate, dtype, histograms, cut, data):
    state = data.draw(st.sampled_from([None, state_of(estimate)]))
    seconds = data.draw(st.sampled_from([0.005, 0.001 * torch.arange(1, 11).view(2, 5)]))
    constants, update = CONSTANTS, eq_6
    if estimate is estimate_intensity:
        constants, update = (
            CONSTANTS | {"norm_events": data.draw(st.sampled_from([5000.0, 100.0]))},
            eq_7,
        )
    start = torch.zeros_like(state_of(estimate)) if state is None else state
    wanted = bin_by_bin(partial(update, **constants), histograms, start, seconds)
    before, given = histograms.clone(), None if state is None else state.clone()
    video, end = estimate(histograms.to(dtype), state, bin_seconds=seconds, **constants)
    assert video.dtype == end.dtype == torch.float32
    np.testing.assert_allclose(video.numpy(), wanted, **CLOSE)
    lengths = (
        (seconds, seconds) if isinstance(seconds, float) else (seconds[:, :cut], seconds[:, cut:])
    )
    head, middle = estimate(
        histograms[:, :cut].to(dtype), state, bin_seconds=lengths[0], **constants
    )
    tail, last = estimate(
        histograms[:, cut:].to(dtype), middle, bin_seconds=lengths[1], **constants
    )
    torch.testing.assert_close(torch.cat([head, tail], 1), video, **CLOSE)
    torch.testing.assert_close(last, end, **CLOSE)
    assert torch.equal(end if estimate is estimate_intensity else end[:, 0], video[:, -1])
    kept, _ = video.clone(), end.fill_(7)
    assert torch.equal(video, kept)
    assert torch.equal(histograms, before)
    assert state is None or torch.equal(state, given)


@BOTH
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_without_events_the_image_stays_the_same_to_the_bit(estimate, dtype):
    state = state_of(estimate)
    video, _ = estimate(torch.zeros(2, 4, 8, 3, 5, dtype=dtype), state)
    image = state if estimate is estimate_intensity else state[:, 0]
    assert all(torch.equal(video[:, segment], image) for segment in range(4))


def test_a_strong_decay_over_a_long_time_is_zero_and_not_nan():
    histograms = torch.zeros(1, 2, 2, 1, 1, dtype=torch.uint8)
    histograms[0, :, 1] = 1
    video, _ = estimate_high_pass(
        histograms, torch.tensor([3e38, 1e30]).view(1, 2, 1, 1), alpha=1e6, bin_seconds=100.0
    )
    assert video.flatten().tolist() == [1.0, 1.0]


def test_counts_beyond_half_precision_decay_everything_under_autocast_too():
    histograms = torch.full((1, 2, 2, 256, 512), 10, dtype=torch.uint8)  # 2.6 million events a bin
    for counted in (histograms, histograms.float()):
        with torch.autocast("cpu", torch.bfloat16):
            video, _ = estimate_intensity(counted, torch.full((1, 256, 512), 1e6))
        assert video.abs().max() < 2.1  # 1e6 * exp(-5 * 0.005 * 2.6e6 / 5000) in the first segment
        assert video.dtype == torch.float32


@BOTH
@pytest.mark.parametrize(
    ("shape", "state"),
    [((3, 20, 6, 7), None), ((2, 3, 5, 6, 7), None), ((2, 3, 4, 6, 7), (1, 6, 7))],
)
def test_shapes_that_do_not_fit_are_refused(estimate, shape, state):
    with pytest.raises(ValueError, match="shape"):
        estimate(torch.zeros(shape), None if state is None else torch.zeros(state))
