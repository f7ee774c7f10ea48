"""The intensity estimate of Eq. 7."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tespec.events.intensity import estimate_intensity

CONSTANTS = {"alpha": 5.0, "norm_events": 50.0, "contrast": 0.7, "bin_seconds": 0.005}


def counts(lanes=2, segments=3, bins=4, height=6, width=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 11, (lanes, segments, 2 * bins, height, width), generator=generator, dtype=torch.uint8)


def plain(histograms, state, *, alpha, norm_events, contrast, bin_seconds):
    """Bin by bin, in double precision: decay, then add."""
    lanes, segments, channels, height, width = histograms.shape
    video = np.zeros((lanes, segments, height, width))
    for lane in range(lanes):
        image = np.zeros((height, width)) if state is None else state[lane].double().numpy()
        for segment in range(segments):
            negative, positive = (
                histograms[lane, segment].numpy().astype(float).reshape(2, channels // 2, height, width)
            )
            seconds = bin_seconds if isinstance(bin_seconds, float) else float(bin_seconds[lane, segment])
            for minus, plus in zip(negative, positive, strict=True):
                image = math.exp(-alpha * seconds * (minus + plus).sum() / norm_events) * image
                image = image + contrast * (plus - minus)
            video[lane, segment] = image
    return video


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("bins", [1, 4, 10])
def test_the_closed_form_equals_going_bin_by_bin(carried, bins):
    histograms = counts(bins=bins)
    state = torch.randn(2, 6, 7) if carried else None
    video, last = estimate_intensity(histograms, state, **CONSTANTS)
    assert video.dtype == last.dtype == torch.float32
    np.testing.assert_allclose(video.numpy(), plain(histograms, state, **CONSTANTS), rtol=1e-5, atol=1e-5)
    assert torch.equal(last, video[:, -1])


def test_bins_may_differ_in_length():
    histograms = counts()
    constants = CONSTANTS | {"bin_seconds": torch.tensor([[0.005, 0.003, 0.010], [0.001, 0.005, 0.02]])}
    video, _ = estimate_intensity(histograms, **constants)
    np.testing.assert_allclose(video.numpy(), plain(histograms, None, **constants), rtol=1e-5, atol=1e-5)


def test_one_pixel_by_hand():
    histograms = torch.tensor([3, 0, 0, 2], dtype=torch.uint8).view(1, 1, 4, 1, 1)  # 3 negative, then 2 positive
    video, _ = estimate_intensity(histograms, alpha=5.0, norm_events=100.0, contrast=2.0, bin_seconds=0.1)
    assert video.item() == pytest.approx(-6 * math.exp(-5 * 0.1 * 2 / 100) + 4)


@given(st.integers(1, 5))
def test_a_sequence_cut_in_two_gives_the_same_video(cut):
    histograms = counts(segments=6)
    whole, last = estimate_intensity(histograms, **CONSTANTS)
    head, state = estimate_intensity(histograms[:, :cut], **CONSTANTS)
    tail, end = estimate_intensity(histograms[:, cut:], state, **CONSTANTS)
    torch.testing.assert_close(torch.cat([head, tail], dim=1), whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-6)


def test_without_events_the_image_stays_the_same_to_the_bit():
    state = torch.randn(2, 6, 7)
    video, last = estimate_intensity(torch.zeros(2, 4, 20, 6, 7, dtype=torch.uint8), state)
    assert all(torch.equal(video[:, segment], state) for segment in range(4))
    assert torch.equal(last, state)


def test_lanes_do_not_mix():
    histograms = counts()
    video, _ = estimate_intensity(histograms, **CONSTANTS)
    for lane in range(2):
        alone, _ = estimate_intensity(histograms[lane : lane + 1], **CONSTANTS)
        torch.testing.assert_close(alone[0], video[lane], rtol=0, atol=1e-6)


def test_autocast_and_lower_matmul_precision_change_nothing():
    histograms = counts()
    wanted, _ = estimate_intensity(histograms, **CONSTANTS)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            video, _ = estimate_intensity(histograms, **CONSTANTS)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(video, wanted)


def test_counts_beyond_half_precision_decay_everything():
    histograms = torch.full((1, 2, 2, 256, 512), 10, dtype=torch.uint8)  # 2.6 million events a bin
    video, _ = estimate_intensity(histograms, torch.full((1, 256, 512), 1e6))
    assert video.abs().max() < 2.1  # 1e6 * exp(-5 * 0.005 * 2.6e6 / 5000) in the first segment


def test_histograms_and_state_are_left_as_they_were():
    histograms, state = counts().float(), torch.randn(2, 6, 7)
    before = histograms.clone(), state.clone()
    video, last = estimate_intensity(histograms, state, **CONSTANTS)
    last.zero_()
    assert torch.equal(histograms, before[0])
    assert torch.equal(state, before[1])
    assert video[:, -1].any()


@pytest.mark.parametrize(
    ("shape", "state"),
    [((3, 20, 6, 7), None), ((2, 3, 5, 6, 7), None), ((2, 3, 4, 6, 7), (2, 7, 6)), ((2, 3, 4, 6, 7), (1, 6, 7))],
)
def test_shapes_that_do_not_fit_are_refused(shape, state):
    with pytest.raises(ValueError, match="shape"):
        estimate_intensity(torch.zeros(shape), None if state is None else torch.zeros(state))
