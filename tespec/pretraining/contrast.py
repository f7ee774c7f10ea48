"""Losses between two networks' outputs: contrast with negatives, and agreement with a teacher's assignments."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

SINKHORN_ROUNDS = 3


def info_nce(
    queries: Tensor, keys: Tensor, temperature: float, negatives: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of finding each query's own key, and the share that is found.

    Args:
        queries: (N, D).
        keys: (N, D), the n-th belonging to the n-th query.
        temperature: of the softmax over cosines.
        negatives: (K, D) of unit length that a key is told from; None: the other queries' keys.
    """
    queries, keys = normalize(queries.float(), dim=1), normalize(keys.float(), dim=1)
    if negatives is None:
        logits = queries @ keys.T
        right = torch.arange(len(queries), device=queries.device)
    else:
        logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ negatives.T], dim=1)
        right = torch.zeros(len(queries), dtype=torch.long, device=queries.device)
    found = (logits.argmax(1) == right).float().mean()
    return cross_entropy(logits / temperature, right), found.detach()


@torch.no_grad()
def sinkhorn(logits: Tensor, temperature: float) -> Tensor:
    """Assignments (N, K) of samples to prototypes that use all prototypes alike (SwAV, Alg. 1; three rounds).

    Args:
        logits: (N, K) cosines of the teacher.
        temperature: that sharpens them.
    """
    shares = (logits.float() / temperature).sub((logits.float() / temperature).max()).exp()
    samples, prototypes = shares.shape
    shares = shares / shares.sum()
    for _ in range(SINKHORN_ROUNDS):
        shares = shares / shares.sum(0, keepdim=True).clamp(min=1e-12) / prototypes
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1e-12) / samples
    return shares * samples


def agreement(logits: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """Cross-entropy (N,) of the student's logits (N, K) with the teacher's assignments (N, K)."""
    return -(assignments * log_softmax(logits.float() / temperature, dim=-1)).sum(-1)
