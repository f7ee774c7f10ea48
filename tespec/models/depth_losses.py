"""Losses on normalised log depth: scale-invariant, and gradient matching (hamarh/HMNet_pth, depth_reg_head.py)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

from tespec.processes import averaged, silent

SOBEL = ((1.0, 0.0, -1.0), (2.0, 0.0, -2.0), (1.0, 0.0, -1.0))


def scale_invariant_loss(difference: Tensor, valid: Tensor, share: float) -> Tensor:
    """Mean over the maps of mean(d^2) - share * mean(d)^2.

    Args:
        difference: (L, H, W) prediction minus truth, finite everywhere.
        valid: (L, H, W) bool, pixels that count; a map without any counts as 0.
        share: of the squared mean that is taken off: 0.5 in HMNet, 1 (the variance) in RAMNet.
    """
    count = valid.flatten(1).sum(1).clamp(min=1)
    kept = torch.where(valid, difference, 0.0).flatten(1)
    mean = kept.sum(1) / count
    losses = kept.square().sum(1) / count - share * mean.square()
    return averaged(losses.sum(), 0 if silent() else len(losses))


def gradient_loss(difference: Tensor, valid: Tensor, scales: int) -> Tensor:
    """Mean of the absolute Sobel gradients of the difference at 1, 1/2, 1/4 ... of its size.

    Args:
        difference: (L, H, W) prediction minus truth, finite everywhere; pixels that do not count are taken as 0.
        valid: (L, H, W) bool, pixels that count.
        scales: number of sizes; those with fewer than 3 rows or columns are left out.
    """
    image = torch.where(valid, difference, 0.0).unsqueeze(1)
    kernel = torch.tensor(SOBEL, dtype=image.dtype, device=image.device)
    kernels = torch.stack([kernel, kernel.T]).unsqueeze(1)
    total, places = image.sum() * 0.0, 0
    for scale in range(scales):
        pooled = avg_pool2d(image, 2**scale) if scale else image
        if min(pooled.shape[-2:]) < 3:
            break
        gradients = conv2d(pooled, kernels)
        total = total + gradients.abs().sum()
        places += gradients[:, 0].numel()
    return averaged(total, 0 if silent() else places)
