"""Random views of a sequence: crops of any share of the image, resized to one size and mirrored by chance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tespec.core.distributed import batch_rows

ASPECT = (3 / 4, 4 / 3)  # of a crop, width over height


def draw_view(size: tuple[int, int], wanted: tuple[int, int], scale: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Source rows (h,) and columns (w,) of a random crop of an image, drawn from torch's generator.

    Args:
        size: (H, W) of the image.
        wanted: (h, w) of the view.
        scale: lowest and highest share of the image's area.
    """
    height, width = size
    draws = torch.rand(5).tolist()
    area = (scale[0] + draws[0] * (scale[1] - scale[0])) * height * width
    aspect = math.exp(math.log(ASPECT[0]) + draws[1] * math.log(ASPECT[1] / ASPECT[0])) * width / height
    rows = min(height, max(1.0, math.sqrt(area / aspect)))
    columns = min(width, max(1.0, math.sqrt(area * aspect)))
    top, left = draws[2] * (height - rows), draws[3] * (width - columns)
    of_rows = (top + (torch.arange(wanted[0]) + 0.5) * rows / wanted[0]).long().clamp(max=height - 1)
    of_columns = (left + (torch.arange(wanted[1]) + 0.5) * columns / wanted[1]).long().clamp(max=width - 1)
    return of_rows, of_columns.flip(0) if draws[4] < 0.5 else of_columns


def random_crops(frames: Tensor, side: int) -> Tensor:
    """A square (B, T, C, side, side) of each lane of frames (B, T, C, H, W), at a place drawn from torch's generator.

    A side that is longer than the image's is cut down to it. Places are drawn for the lanes of all processes.
    """
    height, width = (min(side, whole) for whole in frames.shape[-2:])
    whole, own = batch_rows(len(frames))
    draws = torch.rand(whole, 2)[own].tolist()
    room = (frames.shape[-2] - height + 1, frames.shape[-1] - width + 1)
    crops = []
    for lane, (down, right) in zip(frames, draws, strict=True):
        top, left = int(down * room[0]), int(right * room[1])
        crops.append(lane[..., top : top + height, left : left + width])
    return torch.stack(crops)


def random_views(frames: Tensor, wanted: tuple[int, int], scale: tuple[float, float]) -> Tensor:
    """A view (B, T, C, h, w) of each lane of frames (B, T, C, H, W), the same for all its segments.

    They are drawn for the lanes of all processes. Pixels are picked by the nearest rule, so that counts stay counts.
    """
    size = (frames.shape[-2], frames.shape[-1])
    whole, own = batch_rows(len(frames))
    drawn = [draw_view(size, wanted, scale) for _ in range(whole)][own]
    views = []
    for lane, (of_rows, of_columns) in zip(frames, drawn, strict=True):
        views.append(lane[..., of_rows.to(frames.device), :][..., of_columns.to(frames.device)])
    return torch.stack(views)
