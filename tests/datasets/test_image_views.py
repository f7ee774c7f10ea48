"""Views of images travel as bytes, and are on the device what they were when they were made in float."""

import numpy as np
import pytest
import torch
from PIL import Image

from tespec.datasets.images import (
    DEVIATION,
    GREY_DEVIATION,
    GREY_MEAN,
    MEAN,
    ViewRule,
    as_input,
    pixels_of,
    random_view,
)

MODES = {1: "L", 3: "RGB"}


def picture(channels):
    shape = (20, 30) if channels == 1 else (20, 30, 3)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8), MODES[channels])


def plain(pixels, brighter, sharper):
    """By NumPy, in float64, of (C, H, W)."""
    mean, deviation = ((GREY_MEAN,), (GREY_DEVIATION,)) if len(pixels) == 1 else (MEAN, DEVIATION)
    seen = (pixels / 255 - np.array(mean)[:, None, None]) / np.array(deviation)[:, None, None]
    return (seen - seen.mean()) * (1 + sharper) + seen.mean() + brighter


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_become_what_a_network_sees(channels):
    rule = ViewRule((16, 24), channels, (0.2, 1.0), 0.4, 2)
    drawn = [random_view(picture(channels), rule, np.random.default_rng(seed)) for seed in range(6)]
    pixels = torch.from_numpy(np.stack([view for view, _ in drawn])).unflatten(0, (3, 2))
    light = torch.from_numpy(np.stack([each for _, each in drawn])).unflatten(0, (3, 2))
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, 2, channels, 16, 24))
    assert light.abs().max() <= 0.4
    assert len(light.unique()) == light.numel()
    seen = as_input(pixels, light)
    assert seen.dtype == torch.float32
    for found, (view, (brighter, sharper)) in zip(seen.flatten(0, 1), drawn, strict=True):
        np.testing.assert_allclose(found, plain(view, float(brighter), float(sharper)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_without_light_an_image_is_normalised_alone(channels):
    pixels = pixels_of(picture(channels))
    assert (pixels.dtype, pixels.shape) == (np.uint8, (channels, 20, 30))
    seen = as_input(torch.from_numpy(pixels))
    np.testing.assert_allclose(seen, plain(pixels, 0.0, 0.0), rtol=1e-5, atol=1e-6)
    assert as_input(seen) is seen
