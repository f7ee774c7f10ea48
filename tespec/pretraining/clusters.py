"""K-means over the tokens of an image, and pooling by clusters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tespec.models.layers import in_fp32

ROUNDS = 5


@torch.no_grad()
@in_fp32
def cluster(tokens: Tensor, count: int) -> Tensor:
    """Cluster (N, P) int64 of each of P tokens (N, P, C), by K-means over unit-length tokens.

    It starts from tokens evenly spaced, so that nothing is drawn. A cluster that loses all its tokens stays empty.
    """
    tokens = normalize(tokens, dim=-1)
    count = min(count, tokens.shape[1])
    starts = torch.linspace(0, tokens.shape[1] - 1, count, device=tokens.device).round().long()
    centres = tokens[:, starts]
    for _ in range(ROUNDS):
        nearest = (tokens @ centres.transpose(1, 2)).argmax(-1)
        members = _members(nearest, count).to(tokens.dtype)
        sums = members.transpose(1, 2) @ tokens
        centres = torch.where(members.sum(1).unsqueeze(-1) > 0, normalize(sums, dim=-1), centres)
    return (tokens @ centres.transpose(1, 2)).argmax(-1)


def _members(nearest: Tensor, count: int) -> Tensor:
    """(N, P, count) bool, whether a token is of a cluster; torch's `one_hot` would look at the numbers and wait."""
    return nearest.unsqueeze(-1) == torch.arange(count, device=nearest.device)


@in_fp32
def pool(tokens: Tensor, scores: Tensor, nearest: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean of the tokens of each cluster, weighted by a softmax of scores within it.

    Args:
        tokens: (N, P, C).
        scores: (N, P).
        nearest: (N, P) cluster of each.
        count: number of clusters.

    Returns:
        (N, count, C), and (N, count) bool, whether a cluster has tokens.
    """
    members = _members(nearest, count).transpose(1, 2)
    there = members.any(-1)
    weights = scores.unsqueeze(1).masked_fill(~members, float("-inf"))
    weights = torch.where(there.unsqueeze(-1), weights, 0.0).softmax(-1)
    return torch.where(members, weights, 0.0).to(tokens.dtype) @ tokens, there
