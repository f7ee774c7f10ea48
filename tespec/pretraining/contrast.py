"""Networks that are compared: a slow teacher, heads, contrast with negatives, agreement with a teacher."""

from __future__ import annotations

import copy
import math
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, normalize

from tespec.core.distributed import all_reduce_sum, global_max
from tespec.models.backbone import Backbone
from tespec.models.layers import DropPath, in_fp32

Module = TypeVar("Module", bound=nn.Module)
SINKHORN_ROUNDS = 3
SMALLEST = torch.finfo(torch.float32).tiny  # of a sum that is divided by


def momentum_copy(student: Module) -> Module:
    """A copy of `student` that is not trained and drops nothing."""
    teacher = copy.deepcopy(student)
    for module in teacher.modules():
        if isinstance(module, DropPath):
            module.drop_prob = 0.0
    return teacher.requires_grad_(False)


@torch.no_grad()
def ema_update_(teacher: nn.Module, student: nn.Module, momentum: float, share: float) -> None:
    """Move the teacher's parameters towards the student's by 1 - momentum; its buffers become the student's.

    The momentum rises to 1 by half a cosine over the training, of which `share` is done.
    """
    step = (1 - momentum) * (math.cos(math.pi * share) + 1) / 2
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), step)
    if buffers := list(teacher.buffers()):
        torch._foreach_copy_(buffers, list(student.buffers()))


@in_fp32
def info_nce(
    queries: Tensor, keys: Tensor, temperature: float | Tensor, negatives: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of finding each query's own key, and the share that is found.

    Args:
        queries: (N, D).
        keys: (N, D), the n-th belonging to the n-th query.
        temperature: of the softmax over cosines.
        negatives: (K, D) of unit length that a key is told from; None: the other queries' keys.
    """
    queries, keys = normalize(queries, dim=1), normalize(keys, dim=1)
    if negatives is None:
        logits = queries @ keys.T
        right = torch.arange(len(queries), device=queries.device)
    else:
        logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ negatives.T], dim=1)
        right = torch.zeros(len(queries), dtype=torch.long, device=queries.device)
    found = (logits.argmax(1) == right).float().mean()
    return cross_entropy(logits / temperature, right), found.detach()


@torch.no_grad()
@in_fp32
def sinkhorn(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Assignments (N, K) of samples to prototypes that use all prototypes alike (SwAV, Alg. 1; three rounds).

    Balanced over the samples of all processes, of which each has its own rows, as many as it likes: what travels is the
    largest logit and, round by round, K sums.

    Args:
        logits: (N, K) cosines of the teacher, those of this process.
        temperature: that sharpens them.
    """
    sharp = logits / temperature
    shares = sharp.sub_(global_max(sharp)).exp_()
    for _ in range(SINKHORN_ROUNDS):
        # The number of samples and of prototypes cancel out: the rows are brought to a sum of one after the columns.
        shares /= all_reduce_sum(shares.sum(0, keepdim=True)).clamp(min=SMALLEST)
        shares /= shares.sum(1, keepdim=True).clamp(min=SMALLEST)
    return shares


@in_fp32
def soft_cross_entropy(logits: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """Cross-entropy (N,) of the student's logits (N, K) with the teacher's assignments (N, K)."""
    return -(assignments * log_softmax(logits / temperature, dim=-1)).sum(-1)


@in_fp32
def pooled(maps: Tensor, norm: nn.Module | None = None) -> Tensor:
    """Mean (N, C) of the maps (N, 1, C, h, w) of single frames over their places, each of them normalised before."""
    places = maps.squeeze(1).flatten(2).transpose(1, 2)
    return (norm(places) if norm else places).mean(1)


def global_avg_pool(backbone: Backbone, frames: Tensor, norm: nn.Module | None = None) -> Tensor:
    """Mean (N, C) of a backbone's last stage over single frames (N, 1, channels, H, W), see `pooled`."""
    features, _ = backbone(frames)
    return pooled(features[-1], norm)


class Projector(nn.Sequential):
    """Layers one after the other in float32, (N, out) of features (N, channels)."""

    forward = in_fp32(nn.Sequential.forward)


def projector(channels: int, hidden: int, out: int) -> Projector:
    """Two layers with batch normalisation between them (N, channels) -> (N, out), as MoBY has them."""
    return Projector(nn.Linear(channels, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out))


class PrototypeHead(nn.Module):
    """Logits of prototypes: a perceptron, unit length, and a weight-normalised linear layer (DINO).

    The prototypes start as torch's `Linear` does, at a norm of about 0.577, from which AdamW turns them fast.

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
        self.directions = nn.Parameter(nn.Linear(bottleneck, prototypes, bias=False).weight.detach())
        self.lengths = nn.Parameter(torch.ones(prototypes, 1))

    @in_fp32
    def forward(self, features: Tensor) -> Tensor:
        """(..., prototypes) cosines of features (..., channels), times each prototype's length, which starts at 1."""
        prototypes = self.lengths * normalize(self.directions, dim=-1)
        return normalize(self.perceptron(features), dim=-1) @ prototypes.T
