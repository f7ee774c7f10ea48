"""Histograms counted on the device that computes with them: four bytes an event travel there, and no empty pixel."""

from __future__ import annotations

import torch
from torch import Tensor

from tespec.events.spatial import DROPPED, Region
from tespec.events.store import CLIP, MAX_HEIGHT, MAX_WIDTH, P_SHIFT, X_BITS

CELLS_AT_ONCE = 1 << 26  # whose int32 sums are held beside the histograms: 256 MiB


def count_words(words: Tensor, counts: Tensor, region: Region) -> Tensor:
    """Histograms of packed events, equal to those of `tespec.events.window_histograms`, without synchronization.

    Args:
        words: (N,) int32, the bits of the words that `window_words` gives for the same region.
        counts: (B, T, bins) int32, how many of them fall into each bin.
        region: part of the sensor that is used, and its downsampling.

    Returns:
        (B, T, 2 * bins, H, W) uint8 on the device of the words.
    """
    lanes, segments, bins = counts.shape
    planes, area = lanes * segments * 2 * bins, region.height * region.width
    x, y = words & (MAX_WIDTH - 1), (words >> X_BITS) & (MAX_HEIGHT - 1)
    pixel = y // region.factor * region.width + x // region.factor
    # Its length is known, so that nothing has to be read for it.
    number = torch.repeat_interleave(counts.flatten(), output_size=len(words))
    plane = number + bins * (number // bins + ((words >> P_SHIFT) & 1))
    histograms = torch.empty((planes, area), dtype=torch.uint8, device=words.device)
    for part in histograms.split(max(1, CELLS_AT_ONCE // area)):
        inside = (plane >= 0) & (plane < len(part))
        # What belongs to another part adds nothing, at a pixel of its own: adding to one cell would take turns.
        cell = torch.where(inside, plane * area + pixel, pixel)
        sums = torch.zeros(part.numel(), dtype=torch.int32, device=words.device)
        part.copy_(sums.index_add_(0, cell, inside.int()).clamp_(max=CLIP).view(part.shape))
        plane -= len(part)
    return histograms.view(lanes, segments, 2 * bins, region.height, region.width)


def as_seen(frames: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Frames (B, T, C, H, W) of which each lane is flipped and zoomed by maps (B, H) and (B, W) int64 of a `View`.

    Pixels from outside of the image are 0, as of `tespec.events.spatial.apply_maps`.
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
