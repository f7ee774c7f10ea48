"""Small networks on top of features: what objectives compare is their output, and they are dropped afterwards."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


def projector(channels: int, hidden: int, out: int) -> nn.Sequential:
    """Two layers with batch normalisation between them (N, channels) -> (N, out), as MoBY has them."""
    return nn.Sequential(
        nn.Linear(channels, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out)
    )


class PrototypeHead(nn.Module):
    """Logits of prototypes: a perceptron, unit length, and a dot product with directions that are learned (DINO).

    Args:
        channels: width of the features.
        hidden: width of the perceptron.
        bottleneck: dimensions of the directions.
        prototypes: number of them.
    """

    def __init__(self, channels: int, hidden: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        self.perceptron = nn.Sequential(
            nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        for layer in self.perceptron:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(cast("Tensor", layer.bias))
        self.directions = nn.Parameter(torch.randn(prototypes, bottleneck))

    def forward(self, features: Tensor) -> Tensor:
        """(..., prototypes) cosines of features (..., channels)."""
        return normalize(self.perceptron(features), dim=-1) @ normalize(self.directions, dim=-1).T
