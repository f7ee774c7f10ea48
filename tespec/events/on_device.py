"""Histograms counted on the device that computes with them: four bytes an event travel there, and no empty pixel."""

from __future__ import annotations

import torch
from torch import Tensor

from tespec.events.histogram import CLIP
from tespec.events.spatial import DROPPED, Region
from tespec.events.store import LAYOUT


def count_words(words: Tensor, counts: Tensor, region: Region, clip: int = CLIP) -> Tensor:
    """Histograms of packed events, equal to those of `tespec.events.window_histograms`; nothing waits for the device.

    Args:
        words: (N,) int32, the bits of the store's words, window by window and bin by bin, as `window_words` gives them.
        counts: (B, T, bins) int64, how many of them fall into each bin.
        region: part of the sensor that is used, and its downsampling.
        clip: largest count, at most 255.

    Returns:
        (B, T, 2 * bins, H, W) uint8 on the device of the words.
    """
    lanes, segments, bins = counts.shape
    shape = (lanes, segments, 2 * bins, region.height, region.width)
    column, wide = _placed(words & (LAYOUT.columns - 1), region.width, region)
    row, high = _placed((words >> LAYOUT.y_shift) & (LAYOUT.rows - 1), region.height, region)
    positive = (words >> LAYOUT.p_shift) & 1
    # Its length is known, so that nothing has to be read for it.
    number = torch.repeat_interleave(counts.flatten(), output_size=len(words))
    plane = number + bins * (number // bins + positive)
    cells = shape[0] * shape[1] * shape[2] * shape[3] * shape[4]
    # What the region drops is counted in a cell of its own, behind the others.
    cell = torch.where(wide & high, (plane * region.height + row) * region.width + column, cells)
    sums = torch.zeros(cells + 1, dtype=torch.int32, device=words.device)
    sums.scatter_add_(0, cell, torch.ones_like(words))
    return sums[:-1].clamp_(max=clip).to(torch.uint8).view(shape)


def _placed(coordinate: Tensor, size: int, region: Region) -> tuple[Tensor, Tensor]:
    """Where coordinates of the sensor land along one side of the region, and whether they do: as `Region.places`."""
    place = coordinate // region.factor
    inside = place < size
    if region.keep == "nearest":
        inside &= coordinate % region.factor == region.factor // 2
    return place, inside


def as_seen(frames: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Each lane of frames (B, T, C, H, W) as `tespec.events.spatial.apply_maps` shows it; 0 from outside of the image.

    Args:
        frames: of any dtype.
        rows: (B, H) int64 source row of each row, `DROPPED` outside of the image.
        columns: (B, W) likewise.
    """
    outside = (rows == DROPPED).unsqueeze(-1) | (columns == DROPPED).unsqueeze(-2)
    seen = picked(frames, rows.clamp(min=0), columns.clamp(min=0))
    return seen.masked_fill_(outside.unsqueeze(1).unsqueeze(1), 0)


def picked(frames: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels (..., B, T, C, h, w) of frames (..., B, T, C, H, W) at rows ([...,] B, h) and columns ([...,] B, w)."""
    places = rows.unsqueeze(-1) * frames.shape[-1] + columns.unsqueeze(-2)
    shape = (*frames.shape[:-2], *places.shape[-2:])
    places = places.flatten(-2).unsqueeze(-2).unsqueeze(-2).expand(*frames.shape[:-2], -1)
    return frames.flatten(-2).gather(-1, places).view(shape)
