"""Stochastic depth: in training, whole residual branches are left out sample by sample (Huang et al., ECCV 2016)."""

from __future__ import annotations

import tespec.compat  # noqa: F401  # before timm

import torch
from timm.layers import DropPath as TimmDropPath
from torch import Tensor, nn

from tespec.processes import rows


class DropPath(nn.Module):
    """Leaves a branch out of some samples, and scales it up in the others.

    Draws are those of the whole batch, of which each part takes its own; so several processes that draw alike drop what
    one process drops. They come from torch's generator.

    Args:
        rate: share of samples that go without; 0 turns it off.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """The branch (N, ...) of each sample."""
        if not self.training or not self.rate:
            return branch
        whole, own = rows(len(branch))
        kept = torch.rand(whole, device=branch.device)[own] >= self.rate
        return branch * (kept.to(branch.dtype) / (1 - self.rate)).view(-1, *[1] * (branch.dim() - 1))


def with_shared_draws(module: nn.Module) -> None:
    """Put `DropPath` in the place of timm's."""
    for name, child in module.named_children():
        if isinstance(child, TimmDropPath):
            setattr(module, name, DropPath(child.drop_prob))
        else:
            with_shared_draws(child)


def without_drop_path(module: nn.Module) -> None:
    """Turn stochastic depth off for good, as in teachers."""
    for each in module.modules():
        if isinstance(each, DropPath):
            each.rate = 0.0
