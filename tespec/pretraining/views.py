"""Random views of a sequence: crops of any share of the image, resized to one size and mirrored by chance.

Places are drawn from torch's generator on the CPU, for the lanes of all processes, so that every device sees the same;
pixels are picked on the device, of all lanes at once, by the nearest rule, so that counts stay counts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tespec.core.distributed import shard_slice
from tespec.events.on_device import as_seen, picked
from tespec.events.spatial import DROPPED
from tespec.models.layers import sent

ASPECT = (3 / 4, 4 / 3)  # of a crop, width over height


def draw_views(
    draws: Tensor, size: tuple[int, int], wanted: tuple[int, int], scale: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Source rows (..., h) and columns (..., w) int64 of random crops of an image.

    Args:
        draws: (..., 5) numbers from 0 to 1: area, aspect, top, left, and whether it is mirrored.
        size: (H, W) of the image.
        wanted: (h, w) of the views.
        scale: lowest and highest share of the image's area.
    """
    height, width = size
    share, shape, down, right, mirrored = draws.double().unbind(-1)
    area = (scale[0] + share * (scale[1] - scale[0])) * height * width
    aspect = (math.log(ASPECT[0]) + shape * math.log(ASPECT[1] / ASPECT[0])).exp() * width / height
    rows, columns = (area / aspect).sqrt().clamp(1, height), (area * aspect).sqrt().clamp(1, width)
    of_rows = _spread(down * (height - rows), rows, wanted[0]).clamp(max=height - 1)
    of_columns = _spread(right * (width - columns), columns, wanted[1]).clamp(max=width - 1)
    return of_rows, torch.where(mirrored.unsqueeze(-1) < 0.5, of_columns.flip(-1), of_columns)


def _spread(first: Tensor, length: Tensor, count: int) -> Tensor:
    """The pixels (..., count) under as many places, spread evenly over `length` (...) px from `first` (...) on."""
    places = torch.arange(count) + 0.5
    return (first.float().unsqueeze(-1) + places * length.float().unsqueeze(-1) / count).long()


def random_crops(frames: Tensor, side: int) -> Tensor:
    """A square (B, T, C, side, side) of each lane of frames (B, T, C, H, W), the same for all its segments.

    A side that is longer than the image's is cut down to it.
    """
    height, width = (min(side, whole) for whole in frames.shape[-2:])
    room = torch.tensor([frames.shape[-2] - height + 1, frames.shape[-1] - width + 1])
    whole, own = shard_slice(len(frames))
    top, left = (torch.rand(whole, 2)[own].double() * room).long().unsqueeze(-1).unbind(1)
    return _picked(frames.unsqueeze(0), top + torch.arange(height), left + torch.arange(width)).squeeze(0)


def random_views(frames: Tensor, count: int, wanted: tuple[int, int], scale: tuple[float, float]) -> Tensor:
    """Views (count, B, T, C, h, w) of each lane of frames (B, T, C, H, W), the same for all its segments.

    Args:
        frames: of any dtype.
        count: views of each lane.
        wanted: (h, w) of a view.
        scale: lowest and highest share of the image's area that a view shows.
    """
    whole, own = shard_slice(len(frames))
    draws = torch.rand(count, whole, 5)[:, own]
    rows, columns = draw_views(draws, (frames.shape[-2], frames.shape[-1]), wanted, scale)
    return _picked(frames.expand(count, -1, -1, -1, -1, -1), rows, columns)


def random_time_flips(histograms: Tensor) -> Tensor:
    """Half of the lanes of histograms (B, T, 2 * bins, H, W), by chance, played backwards, polarities exchanged."""
    whole, own = shard_slice(len(histograms))
    flips = sent(torch.rand(whole)[own] < 0.5, histograms.device).view(-1, 1, 1, 1, 1)
    return torch.where(flips, histograms.flip(1, 2), histograms)


def random_shifts(frames: Tensor, most: int) -> Tensor:
    """Each lane of frames (B, T, C, H, W) moved by up to `most` px along either axis; 0 comes in from outside."""
    whole, own = shard_slice(len(frames))
    moves = torch.randint(-most, most + 1, (whole, 2))[own]
    places = [torch.arange(frames.shape[axis - 2]) - moves[:, axis : axis + 1] for axis in (0, 1)]
    maps = [torch.where((each >= 0) & (each < each.shape[1]), each, DROPPED) for each in places]
    return as_seen(frames, *(sent(each, frames.device) for each in maps))


def _picked(frames: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return picked(frames, sent(rows, frames.device), sent(columns, frames.device))
