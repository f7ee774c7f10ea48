"""Images as square patches, and their normalisation patch by patch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def patchify(maps: Tensor, unit: int) -> Tensor:
    """(..., H, W) as (..., rows, cols, unit * unit), filled up with zeros at the right and the bottom."""
    height, width = maps.shape[-2:]
    maps = pad(maps, (0, -width % unit, 0, -height % unit))
    return maps.unflatten(-1, (-1, unit)).unflatten(-3, (-1, unit)).transpose(-3, -2).flatten(-2)


def unpatchify(patches: Tensor, unit: int, size: tuple[int, int]) -> Tensor:
    """The (..., H, W) maps of `size` that `patchify` was given."""
    maps = patches.unflatten(-1, (unit, unit)).transpose(-3, -2).flatten(-4, -3).flatten(-2)
    return maps[..., : size[0], : size[1]]


def pixels_inside(size: tuple[int, int], unit: int, device: torch.device) -> Tensor:
    """(rows, cols, unit * unit) float32: 1 for a pixel of the (H, W) image, 0 for one that fills a patch up."""
    return patchify(torch.ones(size, device=device), unit)


def normalise_patches(patches: Tensor, inside: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Patches of mean 0 and variance 1: (x - mean) / sqrt(variance + eps), with the unbiased variance.

    As in the reference code of masked autoencoders, facebookresearch/mae, where eps is 1e-6. Pixels outside of the
    image neither count nor change.

    Args:
        patches: (..., rows, cols, P) float32, 0 outside of the image.
        inside: (rows, cols, P) of `pixels_inside`.
        eps: added to the variance, in squared units of `patches`; keeps the noise of almost constant patches small.

    Returns:
        normalised patches (..., rows, cols, P), and mean and deviation (..., rows, cols, 1) to undo it with.
    """
    count = inside.sum(-1, keepdim=True)
    mean = patches.sum(-1, keepdim=True) / count
    centred = (patches - mean) * inside
    variance = centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)
    deviation = (variance + eps).sqrt()
    return centred / deviation, mean, deviation
