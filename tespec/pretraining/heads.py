"""Small networks on top of features: what objectives compare is their output, and they are dropped afterwards.

They compute in float32 under autocast as well: at the start the features of all samples are nearly one, and their
differences would be lost in rounding.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tespec.models.precision import in_fp32


@in_fp32
def pooled(maps: Tensor) -> Tensor:
    """Mean (N, C) of the maps (N, 1, C, h, w) of single frames over their places."""
    return maps.squeeze(1).flatten(2).mean(2)


class Projector(nn.Sequential):
    """Layers one after the other."""

    @in_fp32
    def forward(self, features: Tensor) -> Tensor:
        """(N, out) of features (N, channels)."""
        out: Tensor = super().forward(features)
        return out


def projector(channels: int, hidden: int, out: int) -> Projector:
    """Two layers with batch normalisation between them (N, channels) -> (N, out), as MoBY has them."""
    return Projector(nn.Linear(channels, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out))


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

    @in_fp32
    def forward(self, features: Tensor) -> Tensor:
        """(..., prototypes) cosines of features (..., channels)."""
        return normalize(self.perceptron(features), dim=-1) @ normalize(self.directions, dim=-1).T
