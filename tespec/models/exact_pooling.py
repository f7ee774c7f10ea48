"""Adaptive average pooling as two matrix products: the same numbers, and a backward pass CUDA repeats to the bit."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MatrixPool(nn.Module):
    """What `nn.AdaptiveAvgPool2d(size)` computes: (..., H, W) -> (..., size[0], size[1])."""

    def __init__(self, size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__()
        self.size = size if isinstance(size, tuple) else (size, size)

    def forward(self, maps: Tensor) -> Tensor:
        """Pooled maps."""
        rows = pooling_matrix(maps.shape[-2], self.size[0] or maps.shape[-2], maps)
        columns = pooling_matrix(maps.shape[-1], self.size[1] or maps.shape[-1], maps)
        return rows @ maps @ columns.T


def pooling_matrix(length: int, bins: int, like: Tensor) -> Tensor:
    """(bins, length) weights of each place in each bin, where torch begins and ends its bins."""
    number = torch.arange(bins, device=like.device)
    first = number * length // bins
    end = ((number + 1) * length + bins - 1) // bins
    place = torch.arange(length, device=like.device)
    inside = (place >= first.unsqueeze(1)) & (place < end.unsqueeze(1))
    return inside.to(like.dtype) / (end - first).unsqueeze(1)


def with_exact_pools(model: nn.Module) -> nn.Module:
    """Put `MatrixPool` in the place of every adaptive average pooling, in place; gives the model."""
    for name, child in model.named_children():
        if isinstance(child, nn.AdaptiveAvgPool2d):
            setattr(model, name, MatrixPool(child.output_size))
        else:
            with_exact_pools(child)
    return model
