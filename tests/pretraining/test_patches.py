"""Patches of a video: their sums, what each pixel has of its patch, and their normalisation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.pretraining.masking import patch_sums, pixel_maps
from tespec.pretraining.tespec import normalise_patches


@settings(deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), unit=st.sampled_from([4, 8, 16]))
def test_patches_are_squares_that_end_with_the_image(height, width, unit):
    image = torch.rand(height, width, dtype=torch.float64)
    sums = patch_sums(image, unit)
    found = pixel_maps(sums, unit, (height, width))
    assert found.shape == (height, width)
    for top in range(0, height, unit):
        for left in range(0, width, unit):
            square = (slice(top, top + unit), slice(left, left + unit))
            torch.testing.assert_close(found[square], image[square].sum().expand(image[square].shape))


@pytest.mark.parametrize("eps", [1e-6, 0.05])
def test_normalisation_equals_the_definition_patch_by_patch(eps):
    video = np.random.default_rng(0).normal(3, 2, (1, 1, 2, 22, 13)).astype(np.float32)
    video[0, 0, :, :8, :8] = 1.5  # a constant patch
    normalised, mean, deviation = normalise_patches(torch.tensor(video), 8, eps)
    for top in range(0, 22, 8):
        for left in range(0, 13, 8):
            patch = (0, 0, slice(None), slice(top, top + 8), slice(left, left + 8))
            expected = (video[patch] - video[patch].mean()) / np.sqrt(video[patch].var(ddof=1) + eps)
            np.testing.assert_allclose(normalised[patch], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(normalised * deviation + mean, torch.tensor(video), rtol=1e-5, atol=1e-5)


def test_a_patch_of_one_pixel_is_finite():
    patch, _, deviation = normalise_patches(torch.full((1, 1, 1, 1, 1), 7.0), 4, 0.01)
    assert patch.item() == 0
    assert deviation.item() == pytest.approx(0.1)
