import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.pretraining.tespec import normalise_patches, patchify, pixels_inside, unpatchify

CPU = torch.device("cpu")


@settings(deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), unit=st.sampled_from([4, 8, 16]))
def test_unpatchify_undoes_patchify(height, width, unit):
    maps = torch.arange(2 * 3 * height * width, dtype=torch.float32).view(2, 3, height, width)
    patches = patchify(maps, unit)
    assert patches.shape == (2, 3, -(-height // unit), -(-width // unit), unit * unit)
    assert torch.equal(unpatchify(patches, unit, (height, width)), maps)


def test_a_patch_is_a_square_of_the_image():
    image = torch.arange(12 * 8).view(12, 8)
    assert torch.equal(patchify(image, 4)[2, 1].view(4, 4), image[8:12, 4:8])


@pytest.mark.parametrize("eps", [1e-6, 0.05])
def test_normalisation_equals_the_definition_patch_by_patch(eps):
    rng = np.random.default_rng(0)
    image = rng.normal(3, 2, (1, 22, 13)).astype(np.float32)
    image[0, :8, :8] = 1.5  # a constant patch
    inside = pixels_inside((22, 13), 8, CPU)
    patches, mean, deviation = normalise_patches(patchify(torch.tensor(image), 8), inside, eps)
    normalised = unpatchify(patches, 8, (22, 13))
    for top in range(0, 22, 8):
        for left in range(0, 13, 8):
            patch = image[0, top : top + 8, left : left + 8]
            expected = (patch - patch.mean()) / np.sqrt(patch.var(ddof=1) + eps)
            found = normalised[0, top : top + 8, left : left + 8]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    restored = unpatchify(patches * deviation + mean, 8, (22, 13))
    torch.testing.assert_close(restored, torch.tensor(image), rtol=1e-5, atol=1e-5)


def test_pixels_outside_of_the_image_stay_zero():
    inside = pixels_inside((5, 5), 4, CPU)
    patches, _, _ = normalise_patches(patchify(torch.full((5, 5), 7.0) + torch.rand(5, 5), 4), inside, 1e-6)
    assert (patches[inside == 0] == 0).all()
    assert inside.sum() == 25


def test_a_patch_of_one_pixel_is_finite():
    patches, _, deviation = normalise_patches(patchify(torch.full((1, 1), 7.0), 4), pixels_inside((1, 1), 4, CPU), 0.01)
    assert patches.abs().sum() == 0
    assert deviation.item() == pytest.approx(0.1)
