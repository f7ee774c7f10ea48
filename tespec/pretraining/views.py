"""Random views of sequences; positions are drawn on the CPU for the global batch and do not depend on the device."""

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad

from tespec.core.distributed import shard_slice
from tespec.core.settings import Size
from tespec.models.layers import sent

ASPECT = (3 / 4, 4 / 3)  # width over height of a crop, relative to the image's
TRIES = 10  # at a crop that fits into the image; if none does, the crop is the full image


def draw_boxes(draws: Tensor, size: tuple[int, int], scale: tuple[float, float]) -> Tensor:
    """Random crops (..., 4) as first and last row, first and last column in px; mirrored ones swap the two columns.

    As `RandomResizedCrop` of torchvision and kornia, followed by `RandomHorizontalFlip`. `draws`
    holds 2 * TRIES + 3 numbers from 0 to 1 per crop: area and aspect ratio of each try, top, left,
    and mirroring.
    """
    height, width = size
    share, shape = draws[..., : 2 * TRIES].double().chunk(2, dim=-1)
    down, right, mirrored = draws[..., 2 * TRIES :].double().unbind(-1)
    area = (scale[0] + share * (scale[1] - scale[0])) * height * width
    aspect = (math.log(ASPECT[0]) + shape * math.log(ASPECT[1] / ASPECT[0])).exp() * width / height
    rows, columns = (
        (area / aspect).sqrt().round().clamp(min=1),
        (area * aspect).sqrt().round().clamp(min=1),
    )
    fits = (rows <= height) & (columns <= width)
    first = fits.int().argmax(-1, keepdim=True)
    rows, columns = (
        torch.where(fits.any(-1), sides.gather(-1, first).squeeze(-1), whole)
        for sides, whole in ((rows, height), (columns, width))
    )
    top, left = (down * (height - rows + 1)).floor(), (right * (width - columns + 1)).floor()
    sides = torch.stack([left, left + columns - 1], dim=-1)
    sides = torch.where(mirrored.unsqueeze(-1) < 0.5, sides.flip(-1), sides)
    return torch.cat([torch.stack([top, top + rows - 1], dim=-1), sides], dim=-1)


def seen_in(maps: Tensor, boxes: Tensor, wanted: tuple[int, int], mode: str = "bilinear") -> Tensor:
    """Crop maps (N, C, H, W) and resample them with aligned corners to `wanted` (h, w) in float32.

    `boxes` (N, 4) are those of `draw_boxes`, scaled to 0 at the first and 1 at the last row or
    column of the image. `mode` is that of `grid_sample`.
    """
    ends = (2 * boxes.float() - 1).unflatten(1, (2, 2))
    rows, columns = (
        torch.lerp(
            ends[:, axis, :1], ends[:, axis, 1:], torch.linspace(0, 1, count, device=maps.device)
        )
        for axis, count in enumerate(wanted)
    )
    grid = torch.stack(
        [columns.unsqueeze(1).expand(-1, *wanted), rows.unsqueeze(2).expand(-1, *wanted)], dim=-1
    )
    return grid_sample(maps.float(), grid, mode, padding_mode="border", align_corners=True)


def random_crops(frames: Tensor, side: int) -> Tensor:
    """Crop a random square (B, T, C, side, side) from each lane of frames (B, T, C, H, W), the same for all segments.

    The crop's height and width are at most the image's.
    """
    height, width = (min(side, whole) for whole in frames.shape[-2:])
    room = torch.tensor([frames.shape[-2] - height + 1, frames.shape[-1] - width + 1])
    whole, own = shard_slice(len(frames))
    return _parts(frames, (torch.rand(whole, 2)[own].double() * room).long(), height, width)


def random_views(
    frames: Tensor, count: int, wanted: Size, scale: tuple[float, float], mode: str = "bilinear"
) -> tuple[Tensor, Tensor]:
    """Draw views (count, B, T, C, *wanted) float32 of each lane of frames (B, T, C, H, W), the same for all segments.

    Returns:
        the views, each with a share of the image's area within `scale`, and their boxes (count, B,
        4) for `seen_in`.
    """
    whole, own = shard_slice(len(frames))
    height, width = frames.shape[-2:]
    boxes = draw_boxes(torch.rand(count, whole, 2 * TRIES + 3)[:, own], (height, width), scale)
    last = torch.tensor([height - 1, height - 1, width - 1, width - 1]).clamp(min=1)
    boxes = sent((boxes / last).float(), frames.device)
    views = torch.stack([seen_in(frames.flatten(1, 2), each, wanted, mode) for each in boxes])
    return views.unflatten(2, frames.shape[1:3]), boxes


def random_resized_crops(frames: Tensor, scale: tuple[float, float]) -> Tensor:
    """Crop each lane of frames (B, T, C, H, W) uint8 at random, mirror it, and resize it to H x W.

    As torchvision's `RandomResizedCrop` with Pillow's bicubic filter, and `RandomHorizontalFlip`;
    the same for all segments.

    Args:
        frames: values from 0 to 255.
        scale: minimum and maximum share of the frame's area in a crop.

    Returns:
        The crops, of the same shape, in float32 from 0 to 255; Pillow would round them.
    """
    everything, own = shard_slice(len(frames))
    size = (frames.shape[-2], frames.shape[-1])
    boxes = draw_boxes(torch.rand(everything, 2 * TRIES + 3)[own], size, scale).long().tolist()
    parts = [
        lane[..., top : bottom + 1, min(left, right) : max(left, right) + 1].float()
        for lane, (top, bottom, left, right) in zip(frames, boxes, strict=True)
    ]
    crops = torch.stack([interpolate(part, size, mode="bicubic", antialias=True) for part in parts])
    mirrored = torch.tensor([left > right for _, _, left, right in boxes])
    mirrored = sent(mirrored, frames.device).view(-1, 1, 1, 1, 1)
    return torch.where(mirrored, crops.flip(-1), crops).clamp(0, 255)


def random_time_flips(histograms: Tensor) -> Tensor:
    """Reverse time and swap polarities of each lane of histograms (B, T, 2 * bins, H, W) with probability 0.5."""
    whole, own = shard_slice(len(histograms))
    flips = sent(torch.rand(whole)[own] < 0.5, histograms.device).view(-1, 1, 1, 1, 1)
    return torch.where(flips, histograms.flip(1, 2), histograms)


def random_shifts(frames: Tensor, share: float) -> Tensor:
    """Shift each lane of frames (B, T, C, H, W) along both axes by up to a share of the shorter, padding with zeros."""
    whole, own = shard_slice(len(frames))
    most = round(share * min(frames.shape[-2:]))
    corners = most - torch.randint(-most, most + 1, (whole, 2))[own]
    return _parts(pad(frames, (most,) * 4), corners, *frames.shape[-2:])


def _parts(frames: Tensor, corners: Tensor, height: int, width: int) -> Tensor:
    """Crop each lane of frames (B, T, C, H, W) at its top and left of corners (B, 2), which are on the CPU."""
    lanes = zip(frames, corners.tolist(), strict=True)
    return torch.stack(
        [lane[..., top : top + height, left : left + width] for lane, (top, left) in lanes]
    )
