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
    held_out_batch,
    open_images,
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
    jitter = torch.from_numpy(np.stack([each for _, each in drawn])).unflatten(0, (3, 2))
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, 2, channels, 16, 24))
    assert jitter.abs().max() <= 0.4
    assert len(jitter.unique()) == jitter.numel()
    seen = as_input(pixels, jitter)
    assert seen.dtype == torch.float32
    for found, (view, (brighter, sharper)) in zip(seen.flatten(0, 1), drawn, strict=True):
        np.testing.assert_allclose(found, plain(view, float(brighter), float(sharper)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_views_of_an_image_held_out_are_the_same_each_time_and_differ_from_each_other(tmp_path, count):
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture(1).save(tmp_path / name)
    folder, rule = open_images(tmp_path), ViewRule((16, 24), 1, (0.2, 1.0), 0.4, count)
    paths = [*folder.train, *folder.held_out]
    batch, again = held_out_batch(folder, paths, rule), held_out_batch(folder, paths[1:], rule)
    assert batch["views"].shape == (3, count, 1, 16, 24)
    assert batch["color_jitter"].shape == (3, count, 2)
    for name, value in again.items():
        assert torch.equal(batch[name][1:], value)
    if count == 1:
        whole = pixels_of(picture(1).resize((24, 16), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(batch["views"][0, 0].numpy(), whole)
        assert not batch["color_jitter"].any()
    else:
        assert not torch.equal(batch["views"][:, 0], batch["views"][:, 1])


@pytest.mark.parametrize("channels", [1, 3])
def test_without_light_an_image_is_normalised_alone(channels):
    pixels = pixels_of(picture(channels))
    assert (pixels.dtype, pixels.shape) == (np.uint8, (channels, 20, 30))
    seen = as_input(torch.from_numpy(pixels))
    np.testing.assert_allclose(seen, plain(pixels, 0.0, 0.0), rtol=1e-5, atol=1e-6)
    assert as_input(seen) is seen
