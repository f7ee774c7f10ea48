"""Whether features of different places differ, or have collapsed to one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Spread(NamedTuple):
    """How features differ.

    Attributes:
        std: mean over channels of the deviation of unit-length features, times the root of their number: about 1 for
            directions that are all alike probable, 0 for a single one (after "Exploring Simple Siamese Representation
            Learning", CVPR 2021, Sec. 4.1).
        rank: exponential of the entropy of their singular values, from 1 to the number of channels (RankMe, ICML 2023).
    """

    std: float
    rank: float


def spread(features: Tensor) -> Spread:
    """Spread of features (N, C); zeros for fewer than two."""
    if len(features) < 2:
        return Spread(0.0, 0.0)
    each = torch.nn.functional.normalize(features.double(), dim=1)
    std = each.std(dim=0).mean() * each.shape[1] ** 0.5
    shares = torch.linalg.svdvals(features.double())
    shares = shares / shares.sum().clamp(min=1e-12)
    entropy = -(shares * shares.clamp(min=1e-12).log()).sum()
    return Spread(float(std), float(entropy.exp()))
