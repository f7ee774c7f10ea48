import tespec.core.compat  # noqa: F401  # before torchvision

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.functional import resized_crop

from tespec.pretraining.views import (
    TRIES,
    crop_and_resize,
    draw_boxes,
    random_crops,
    random_resized_crops,
    random_views,
)

SIZE = (64, 96)


@pytest.mark.parametrize("scale", [(0.05, 0.32), (0.32, 1.0)])
def test_crops_are_drawn_as_torchvision_draws_them(scale):
    torch.manual_seed(0)
    found, image = (
        draw_boxes(torch.rand(4000, 2 * TRIES + 3), (224, 224), scale),
        torch.empty(1, 224, 224),
    )
    drawn = [RandomResizedCrop.get_params(image, scale, (3 / 4, 4 / 3)) for _ in range(4000)]
    wanted = torch.tensor(drawn).double()  # top, left, height, width
    lefts, widths = found[:, 2:].amin(1), (found[:, 3] - found[:, 2]).abs() + 1
    sides = torch.stack([found[:, 0], lefts, found[:, 1] - found[:, 0] + 1, widths], dim=1)
    assert sides.min() >= 0
    assert (sides[:, :2] + sides[:, 2:]).max() <= 224
    torch.testing.assert_close(sides.mean(0), wanted.mean(0), rtol=0.03, atol=1.0)
    torch.testing.assert_close(sides.std(0), wanted.std(0), rtol=0.05, atol=0.0)
    assert (found[:, 2] > found[:, 3]).double().mean().item() == pytest.approx(0.5, abs=0.03)


def test_views_are_bilinear_crops_the_same_for_all_segments():
    frames = torch.randint(
        0, 9, (2, 3, 4, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    torch.manual_seed(0)
    views, places = random_views(frames, 3, (32, 48), (0.05, 0.32))
    assert (views.shape, views.dtype) == ((3, 2, 3, 4, 32, 48), torch.float32)
    for found, lane, place in zip(
        views.flatten(0, 1), frames.repeat(3, 1, 1, 1, 1), places.flatten(0, 1), strict=True
    ):
        top, bottom, left, right = (
            (place.double() * torch.tensor([63, 63, 95, 95])).round().int().tolist()
        )
        part = lane[..., top : bottom + 1, min(left, right) : max(left, right) + 1].float()
        part = part.flip(-1) if left > right else part
        wanted = torch.nn.functional.interpolate(
            part, (32, 48), mode="bilinear", align_corners=True
        )
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    half = crop_and_resize(
        torch.arange(16.0).view(1, 1, 4, 4), torch.tensor([[0.0, 1.0, 1.0, 1 / 3]]), (4, 3)
    )
    assert half[0, 0, 0].tolist() == pytest.approx([3, 2, 1], abs=1e-5)


def test_resized_crops_are_those_of_torchvision_with_pillows_bicubic_filter():
    frames = torch.randint(
        80, 176, (6, 2, 1, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    torch.manual_seed(0)
    found = random_resized_crops(frames, (0.2, 1.0))
    torch.manual_seed(0)
    boxes = draw_boxes(torch.rand(6, 2 * TRIES + 3), SIZE, (0.2, 1.0)).int().tolist()
    assert {left > right for _, _, left, right in boxes} == {True, False}
    for crops, lane, (top, bottom, left, right) in zip(found, frames, boxes, strict=True):
        sides = (top, min(left, right), bottom - top + 1, abs(right - left) + 1)
        for crop, frame in zip(crops, lane, strict=True):
            image = resized_crop(
                Image.fromarray(frame[0].numpy()), *sides, SIZE, InterpolationMode.BICUBIC
            )
            expected = torch.from_numpy(np.array(image)).float()
            expected = expected.flip(-1) if left > right else expected
            assert (crop[0] - expected).abs().max() <= 1.5  # Pillow rounds, once in each direction


def test_a_crop_is_a_square_of_the_image_the_same_for_all_segments():
    frames = torch.arange(64 * 96).view(1, 1, 1, 64, 96).expand(5, 3, 1, 64, 96)
    torch.manual_seed(0)
    for lane in random_crops(frames, 40):
        assert lane.shape == (3, 1, 40, 40)
        top, left = divmod(int(lane[0, 0, 0, 0]), 96)
        assert torch.equal(lane, frames[0, :, :, top : top + 40, left : left + 40])
    assert random_crops(frames, 80).shape == (5, 3, 1, 64, 80)
    assert torch.equal(random_crops(frames, 320), frames)
    # Every position can be drawn, including the last row and column.
    lanes = torch.arange(3 * 3).view(1, 1, 1, 3, 3).expand(200, 1, 1, 3, 3)
    assert set(random_crops(lanes, 2)[:, 0, 0, 0, 0].tolist()) == {0, 1, 3, 4}
