"""Parts of contrastive and self-distillation methods: momentum teacher, heads, InfoNCE, Sinkhorn assignments."""

import copy
import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, normalize

from tespec.core.distributed import all_reduce_sum, global_max
from tespec.models.backbone import Backbone
from tespec.models.layers import DropPath, in_fp32

Module = TypeVar("Module", bound=nn.Module)
SINKHORN_ROUNDS = 3
SMALLEST = torch.finfo(torch.float32).tiny  # lower bound of divisors


def momentum_copy(student: Module) -> Module:
    """Copy `student` as a teacher without gradients or stochastic depth."""
    teacher = copy.deepcopy(student)
    for module in teacher.modules():
        if isinstance(module, DropPath):
            module.drop_prob = 0.0
    return teacher.requires_grad_(False)


@torch.no_grad()
def ema_update_(teacher: nn.Module, student: nn.Module, momentum: float, share: float) -> None:
    """Move the teacher's parameters towards the student's by 1 - momentum, and copy the student's buffers.

    The momentum rises to 1 along half a cosine; `share` is the share of the training that is done.
    """
    step = (1 - momentum) * (math.cos(math.pi * share) + 1) / 2
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), step)
    if buffers := list(teacher.buffers()):
        torch._foreach_copy_(buffers, list(student.buffers()))


@in_fp32
def info_nce(
    queries: Tensor, keys: Tensor, temperature: float | Tensor, negatives: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """InfoNCE of queries (N, D) and their keys (N, D): cross-entropy over cosines, and the share of correct matches.

    The negatives (K, D) have unit length; None: the other queries' keys.
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
    """Assign this rank's samples softly to prototypes so that all are used equally (SwAV, Alg. 1; three rounds).

    The teacher's cosines `logits` (N, K) are divided by `temperature`. The assignments (N, K) are
    balanced over the samples of all ranks, which may hold different numbers; they exchange the
    largest logit and, in each round, K sums.
    """
    sharp = logits / temperature
    shares = sharp.sub_(global_max(sharp)).exp_()
    for _ in range(SINKHORN_ROUNDS):
        # Factors for the numbers of samples and prototypes cancel out, since the rows are
        # normalised last.
        shares /= all_reduce_sum(shares.sum(0, keepdim=True)).clamp(min=SMALLEST)
        shares /= shares.sum(1, keepdim=True).clamp(min=SMALLEST)
    return shares


@in_fp32
def soft_cross_entropy(logits: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """Cross-entropy (N,) between the student's logits (N, K) and the teacher's assignments (N, K)."""
    return -(assignments * log_softmax(logits / temperature, dim=-1)).sum(-1)


@in_fp32
def pooled(maps: Tensor, norm: nn.Module | None = None) -> Tensor:
    """Average single-frame maps (N, 1, C, h, w) over positions to (N, C), after `norm` at each position."""
    places = maps.squeeze(1).flatten(2).transpose(1, 2)
    return (norm(places) if norm else places).mean(1)


def global_avg_pool(backbone: Backbone, frames: Tensor, norm: nn.Module | None = None) -> Tensor:
    """Average a backbone's last stage over single frames (N, 1, channels, H, W) to (N, C); see `pooled`."""
    features, _ = backbone(frames)
    return pooled(features[-1], norm)


class Projector(nn.Sequential):
    """Sequential layers in float32, (N, channels) -> (N, out)."""

    forward = in_fp32(nn.Sequential.forward)


def projector(channels: int, hidden: int, out: int) -> Projector:
    """MoBY's projector (N, channels) -> (N, out): two linear layers with batch normalisation between them."""
    return Projector(
        nn.Linear(channels, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, out),
    )


class PrototypeHead(nn.Module):
    """DINO's head: MLP, normalisation to unit length, and a weight-normalised linear layer of prototypes.

    Prototypes are initialised as torch's `Linear`, with a norm of about 0.577; AdamW rotates such
    short vectors fast.
    """

    def __init__(self, channels: int, hidden: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        self.perceptron = nn.Sequential(
            nn.Linear(channels, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, bottleneck),
        )
        for layer in self.perceptron:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.directions = nn.Parameter(
            nn.Linear(bottleneck, prototypes, bias=False).weight.detach()
        )
        self.lengths = nn.Parameter(torch.ones(prototypes, 1))

    @in_fp32
    def forward(self, features: Tensor) -> Tensor:
        """Logits (..., prototypes) of features (..., channels): cosine times the prototype's length, initially 1."""
        prototypes = self.lengths * normalize(self.directions, dim=-1)
        return normalize(self.perceptron(features), dim=-1) @ prototypes.T
