"""Random crops, shifts, time flips and RandAugment, equal for all segments of a lane.

Numbers are drawn on the CPU for the global batch, so they depend on neither device nor ranks.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import tespec.core.compat  # noqa: F401  # before torchvision

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad
from torchvision.transforms.v2 import InterpolationMode, functional

from tespec.core.distributed import shard_slice
from tespec.models.layers import in_fp32, to_device

ASPECT = (3 / 4, 4 / 3)  # width over height of a crop, relative to the image's
TRIES = 10  # at a crop that fits into the image; if none does, the crop is the full image
# RandAugment: as a fraction of the side; steps between a level of 0 and of 1; largest step drawn
MAX_TRANSLATION = 150 / 331
BINS = 30
MAX_BIN = 20


def draw_boxes(draws: Tensor, size: Sequence[int], scale: tuple[float, float]) -> Tensor:
    """Convert uniform draws to crop boxes, as `RandomResizedCrop` then `RandomHorizontalFlip`.

    The crops are those of torchvision and kornia.

    Args:
        draws: (..., 2 * TRIES + 3) from 0 to 1: areas and aspect ratios of the tries, top, left
            and flip.
        size: height and width of the image in px.
        scale: minimum and maximum fraction of the image's area in a crop.

    Returns:
        Boxes (..., 4) float64 in px: first and last row, first and last column. The two columns of
        a flipped crop are swapped.
    """
    height, width = size
    draws = draws.double()
    area, aspect = draws[..., : 2 * TRIES].chunk(2, dim=-1)
    down, right, flip = draws[..., 2 * TRIES :].unbind(-1)
    area = (scale[0] + area * (scale[1] - scale[0])) * height * width
    aspect = (math.log(ASPECT[0]) + aspect * math.log(ASPECT[1] / ASPECT[0])).exp() * width / height
    rows = (area / aspect).sqrt().round().clamp(min=1)
    columns = (area * aspect).sqrt().round().clamp(min=1)
    fits = (rows <= height) & (columns <= width)
    first = fits.int().argmax(-1, keepdim=True)  # 0 if none fits
    rows = torch.where(fits, rows, height).gather(-1, first).squeeze(-1)
    columns = torch.where(fits, columns, width).gather(-1, first).squeeze(-1)
    top = (down * (height - rows + 1)).floor()
    left = (right * (width - columns + 1)).floor()
    sides = torch.stack([left, left + columns - 1], dim=-1)
    sides = torch.where(flip.unsqueeze(-1) < 0.5, sides.flip(-1), sides)
    return torch.cat([torch.stack([top, top + rows - 1], dim=-1), sides], dim=-1)


def crop_and_resize(
    maps: Tensor, boxes: Tensor, size: Sequence[int], mode: str = "bilinear"
) -> Tensor:
    """Crop maps at boxes and resample the crops with aligned corners.

    Args:
        maps: (N, C, H, W).
        boxes: (N, 4) as of `draw_boxes`, but from 0 at the first to 1 at the last row or column.
        size: height and width of the output.
        mode: interpolation of `torch.nn.functional.grid_sample`.

    Returns:
        Crops (N, C, *size) float32.
    """
    rows, columns = (2 * boxes.float() - 1).split(2, dim=1)  # first and last; -1 to 1
    y = torch.lerp(rows[:, :1], rows[:, 1:], torch.linspace(0, 1, size[0], device=maps.device))
    x = torch.lerp(
        columns[:, :1], columns[:, 1:], torch.linspace(0, 1, size[1], device=maps.device)
    )
    grid = torch.stack(
        [x.unsqueeze(1).expand(-1, *size), y.unsqueeze(2).expand(-1, *size)], dim=-1
    )  # (N, *size, 2)
    return grid_sample(maps.float(), grid, mode, padding_mode="border", align_corners=True)


def random_crops(frames: Tensor, side: int) -> Tensor:
    """Crop a random square of `side` px from every lane.

    Args:
        frames: (B, T, C, H, W).
        side: height and width of the crop, limited to those of the frames.

    Returns:
        Crops (B, T, C, min(side, H), min(side, W)).
    """
    height = min(side, frames.shape[-2])
    width = min(side, frames.shape[-1])
    positions = torch.tensor([frames.shape[-2] - height + 1, frames.shape[-1] - width + 1])
    lanes, local = shard_slice(len(frames))
    corners = (torch.rand(lanes, 2)[local].double() * positions).long()
    return _crops_at(frames, corners, height, width)


def random_views(
    frames: Tensor,
    count: int,
    size: Sequence[int],
    scale: tuple[float, float],
    mode: str = "bilinear",
) -> tuple[Tensor, Tensor]:
    """Draw random resized crops with horizontal flips, several of every lane.

    Args:
        frames: (B, T, C, H, W).
        count: number of crops of a lane.
        size: height and width of the output in px.
        scale: minimum and maximum fraction of the image's area in a crop.
        mode: interpolation of `torch.nn.functional.grid_sample`.

    Returns:
        Crops (count, B, T, C, *size) float32, and their boxes (count, B, 4) for `crop_and_resize`.
    """
    lanes, local = shard_slice(len(frames))
    height, width = frames.shape[-2:]
    draws = torch.rand(count, lanes, 2 * TRIES + 3)[:, local]
    last = torch.tensor([height - 1, height - 1, width - 1, width - 1]).clamp(min=1)
    boxes = draw_boxes(draws, (height, width), scale) / last
    boxes = to_device(boxes.float(), frames.device)
    images = frames.flatten(1, 2)  # (B, T * C, H, W)
    crops = torch.stack([crop_and_resize(images, box, size, mode) for box in boxes])
    return crops.unflatten(2, frames.shape[1:3]), boxes


def random_resized_crops(frames: Tensor, scale: tuple[float, float]) -> Tensor:
    """Crop every lane at random, flip it, and resize it to its size by a bicubic filter.

    As `RandomResizedCrop` of torchvision with Pillow's filter, then `RandomHorizontalFlip`.

    Args:
        frames: (B, T, C, H, W) uint8.
        scale: minimum and maximum fraction of the frame's area in a crop.

    Returns:
        The crops, of the same shape, in float32 from 0 to 255; Pillow would round them.
    """
    lanes, local = shard_slice(len(frames))
    size = frames.shape[-2:]
    boxes = draw_boxes(torch.rand(lanes, 2 * TRIES + 3)[local], size, scale).long().tolist()
    crops = []
    for lane, (top, bottom, left, right) in zip(frames, boxes, strict=True):
        crop = lane[..., top : bottom + 1, min(left, right) : max(left, right) + 1].float()
        crop = interpolate(crop, size, mode="bicubic", antialias=True)
        crops.append(crop.flip(-1) if left > right else crop)
    return torch.stack(crops).clamp(0, 255)


def random_time_flips(histograms: Tensor) -> Tensor:
    """Reverse time and swap polarities of a lane with probability 0.5: (B, T, 2 * bins, H, W)."""
    lanes, local = shard_slice(len(histograms))
    flips = to_device(torch.rand(lanes)[local] < 0.5, histograms.device).view(-1, 1, 1, 1, 1)
    return torch.where(flips, histograms.flip(1, 2), histograms)


def random_shifts(frames: Tensor, fraction: float) -> Tensor:
    """Shift every lane at random along both axes, padding with zeros.

    Args:
        frames: (B, T, C, H, W).
        fraction: maximum shift as a fraction of the shorter side.
    """
    lanes, local = shard_slice(len(frames))
    limit = round(fraction * min(frames.shape[-2:]))
    shifts = torch.randint(-limit, limit + 1, (lanes, 2))[local]
    height, width = frames.shape[-2:]
    return _crops_at(pad(frames, (limit,) * 4), limit - shifts, height, width)


def _crops_at(frames: Tensor, corners: Tensor, height: int, width: int) -> Tensor:
    """Crop frames (B, T, C, H, W) at their top left corners (B, 2), which are on the CPU."""
    lanes = zip(frames, corners.tolist(), strict=True)
    crops = [lane[..., top : top + height, left : left + width] for lane, (top, left) in lanes]
    return torch.stack(crops)


Operation = Callable[[Tensor, float, InterpolationMode], Tensor]


def _affine(
    image: Tensor,
    level: float,
    mode: InterpolationMode,
    shear: tuple[int, int] = (0, 0),
    translate: tuple[int, int] = (0, 0),
) -> Tensor:
    """Shear and translate by a level along x and y, where these are 1."""
    height, width = image.shape[-2:]
    pixels = [
        int(MAX_TRANSLATION * width * level * translate[0]),
        int(MAX_TRANSLATION * height * level * translate[1]),
    ]
    degrees = [math.degrees(0.3 * level * axis) for axis in shear]
    return functional.affine(image, 0, pixels, 1, degrees, mode)


def _enhance(adjust: Callable[[Tensor, float], Tensor]) -> Operation:
    """Adjust a property of an image by a factor of 0.1 to 1.9."""
    return lambda image, level, mode: adjust(image, 1 + 0.9 * level)


# Operations of tum-vision/mem, mem/transforms.py, EventRandAugment, in its order: on images
# (..., H, W), at a level from -1 to 1.
GEOMETRIC: list[Operation] = [
    lambda image, level, mode: image,
    partial(_affine, shear=(1, 0)),
    partial(_affine, shear=(0, 1)),
    partial(_affine, translate=(1, 0)),
    partial(_affine, translate=(0, 1)),
    lambda image, level, mode: functional.rotate(image, 30 * level, mode),
]
# Operations on 8-bit images of three planes.
PHOTOMETRIC: list[Operation] = [
    _enhance(functional.adjust_brightness),
    _enhance(functional.adjust_saturation),
    _enhance(functional.adjust_contrast),
    _enhance(functional.adjust_sharpness),
    lambda image, level, mode: functional.posterize(image, 8 - round(4 * abs(level))),
    lambda image, level, mode: functional.solarize(image, 255 * (1 - abs(level))),
    lambda image, level, mode: functional.autocontrast(image),
    lambda image, level, mode: functional.equalize(image),
]


@in_fp32  # half precision would round the positions of affine transforms
def rand_augment(images: Tensor, operations: Sequence[Operation], interpolation: str) -> Tensor:
    """Apply two random operations, at random levels, to every lane (EventRandAugment).

    Args:
        images: (B, ..., H, W) uint8; the frames of a sequence are transformed alike.
        operations: drawn with equal probability.
        interpolation: of geometric operations, "nearest" or "bilinear".
    """
    mode = InterpolationMode(interpolation)
    total, local = shard_slice(len(images))
    for _ in range(2):
        chosen = torch.randint(len(operations), (total,))[local].tolist()
        signs = 2 * torch.randint(2, (total,)) - 1
        levels = (signs * torch.randint(MAX_BIN + 1, (total,)) / BINS)[local].tolist()
        drawn = zip(images, chosen, levels, strict=True)
        images = torch.stack([operations[i](image, level, mode) for image, i, level in drawn])
    return images
