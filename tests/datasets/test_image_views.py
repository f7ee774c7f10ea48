"""Views of images: what is drawn follows from the seed alone, and pixels become what a network sees."""

import random

import tespec.core.compat  # noqa: F401  # before torchvision

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from tespec.datasets.images import (
    DEVIATION,
    GREY_DEVIATION,
    GREY_MEAN,
    MEAN,
    ImageBatches,
    as_input,
    held_out_batch,
    open_images,
    pixels_of,
    seeded,
)

MODES = {1: "L", 3: "RGB"}


def picture(channels):
    shape = (20, 30) if channels == 1 else (20, 30, 3)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8), MODES[channels])


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_become_what_a_network_sees(channels):
    pixels = pixels_of(picture(channels))
    assert (pixels.dtype, pixels.shape) == (np.uint8, (channels, 20, 30))
    seen = as_input(torch.from_numpy(pixels))
    mean, deviation = ((GREY_MEAN,), (GREY_DEVIATION,)) if channels == 1 else (MEAN, DEVIATION)
    plain = (pixels / 255 - np.array(mean)[:, None, None]) / np.array(deviation)[:, None, None]
    np.testing.assert_allclose(seen, plain, rtol=1e-5, atol=1e-6)
    assert as_input(seen) is seen


def numbers():
    return random.random(), float(np.random.random()), torch.rand(1).item()  # noqa: NPY002


def test_what_libraries_draw_follows_from_the_seed_and_nothing_else_moves():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    with seeded(3, 4):
        first = numbers()
    after = numbers()
    with seeded(3, 4):
        assert numbers() == first
    with seeded(3, 5):
        assert numbers() != first
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    assert numbers() == after


def test_views_of_an_image_are_the_same_each_time_and_differ_from_each_other(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture(1).save(tmp_path / name)
    view = v2.Compose([v2.RandomResizedCrop((16, 24)), v2.ColorJitter(0.4), v2.PILToTensor()])
    folder = open_images(tmp_path)
    paths = [*folder.train, *folder.held_out]
    batch, again = held_out_batch(folder, paths, [view, view]), held_out_batch(folder, paths[1:], [view, view])
    assert batch["views"].shape == (3, 2, 3, 16, 24)
    for name, value in again.items():
        assert torch.equal(batch[name][1:], value)
    assert not torch.equal(batch["views"][:, 0], batch["views"][:, 1])
    steps = ImageBatches(folder, [view], 2, seed=0)
    first = steps[5]["views"]
    assert torch.equal(ImageBatches(folder, [view], 2, seed=0)[5]["views"], first)
    assert not torch.equal(ImageBatches(folder, [view], 2, seed=1)[5]["views"], first)
