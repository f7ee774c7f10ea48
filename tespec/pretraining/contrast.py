"""Parts of contrastive and self-distillation methods: momentum teacher, losses, heads."""

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
TINY = torch.finfo(torch.float32).tiny  # lower bound of divisors


def momentum_copy(student: Module) -> Module:
    """Copy `student` as a teacher without gradients or stochastic depth."""
    teacher = copy.deepcopy(student)
    for module in teacher.modules():
        if isinstance(module, DropPath):
            module.drop_prob = 0.0
    return teacher.requires_grad_(False)


@torch.no_grad()
def momentum_update(
    teacher: nn.Module, student: nn.Module, momentum: float, progress: float
) -> None:
    """Move a teacher towards its student, with BYOL's momentum schedule (Grill et al., 2020).

    Args:
        teacher: moving average of the student's parameters, with a copy of the student's buffers.
        student: network of the same structure.
        momentum: initial momentum; it rises to 1 along half a cosine.
        progress: completed fraction of the training, 0 to 1.
    """
    step = (1 - momentum) * (math.cos(math.pi * progress) + 1) / 2
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), step)
    if buffers := list(teacher.buffers()):
        torch._foreach_copy_(buffers, list(student.buffers()))


@in_fp32
def info_nce(
    queries: Tensor, keys: Tensor, temperature: float | Tensor, negatives: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Contrast queries with their keys against negatives (InfoNCE over cosines).

    Args:
        queries: (N, D).
        keys: (N, D), the positive of each query.
        temperature: divisor of the cosines.
        negatives: (K, D) of unit length; None: the keys of the other queries.

    Returns:
        The mean cross-entropy, and the accuracy: the fraction of queries most similar to their key.
    """
    queries = normalize(queries, dim=1)
    keys = normalize(keys, dim=1)
    if negatives is None:
        logits = queries @ keys.T  # (N, N)
        labels = torch.arange(len(queries), device=queries.device)
    else:
        positives = (queries * keys).sum(1, keepdim=True)
        logits = torch.cat([positives, queries @ negatives.T], dim=1)  # (N, 1 + K)
        labels = torch.zeros(len(queries), dtype=torch.long, device=queries.device)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return cross_entropy(logits / temperature, labels), accuracy


@torch.no_grad()
@in_fp32
def sinkhorn(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Assign samples softly to prototypes, all of which are used equally (SwAV, Alg. 1).

    The assignments are balanced over the samples of all ranks, which may hold different numbers of
    samples. The ranks exchange the largest logit and, in each round, K sums.

    Args:
        logits: cosines (N, K) between this rank's samples and the prototypes.
        temperature: divisor of the cosines.

    Returns:
        Assignments (N, K) of this rank's samples; each row sums to 1.
    """
    logits = logits / temperature
    assignments = logits.sub_(global_max(logits)).exp_()
    for _ in range(SINKHORN_ROUNDS):
        # The factors 1 / K and 1 / N of Alg. 1 cancel out, since rows are normalised last.
        assignments /= all_reduce_sum(assignments.sum(0, keepdim=True)).clamp(min=TINY)
        assignments /= assignments.sum(1, keepdim=True).clamp(min=TINY)
    return assignments


@in_fp32
def soft_cross_entropy(logits: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """Compute the cross-entropy between a student's logits and a teacher's assignments.

    Args:
        logits: the student's (N, K).
        assignments: the teacher's probabilities (N, K).
        temperature: divisor of the student's logits.

    Returns:
        The cross-entropy (N,) of each sample.
    """
    return -(assignments * log_softmax(logits / temperature, dim=-1)).sum(-1)


@in_fp32
def pooled(maps: Tensor, norm: nn.Module | None = None) -> Tensor:
    """Average single-frame maps over positions.

    Args:
        maps: (N, 1, C, h, w).
        norm: applied to the C channels of each position before averaging.

    Returns:
        Vectors (N, C) float32.
    """
    tokens = maps.squeeze(1).flatten(2).transpose(1, 2)  # (N, h * w, C)
    return (norm(tokens) if norm else tokens).mean(1)


def global_avg_pool(backbone: Backbone, frames: Tensor, norm: nn.Module | None = None) -> Tensor:
    """Average a backbone's last stage over single frames.

    Args:
        backbone: called without a recurrent state.
        frames: (N, 1, channels, H, W).
        norm: see `pooled`.

    Returns:
        Vectors (N, C) float32.
    """
    features, _ = backbone(frames)
    return pooled(features[-1], norm)


class Projector(nn.Sequential):
    """Sequential layers in float32, (N, channels) -> (N, out)."""

    forward = in_fp32(nn.Sequential.forward)


def projector(channels: int, hidden: int, out: int) -> Projector:
    """Build MoBY's projector: two linear layers with batch normalisation between them.

    Args:
        channels: width of the input (N, channels).
        hidden: width between the layers.
        out: width of the output (N, out).
    """
    return Projector(
        nn.Linear(channels, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, out),
    )


def init_linear(module: nn.Module) -> None:
    """Initialise a linear layer as ViTs: truncated normal weights of std 0.02, biases of 0."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class PrototypeHead(nn.Module):
    """DINO's head: an MLP to unit length, and a weight-normalised linear layer of prototypes.

    Prototypes are initialised as torch's `Linear`, with a norm of about 0.577; AdamW rotates such
    short vectors fast.

    Args:
        channels: width of the features.
        hidden: width of the MLP.
        bottleneck: dimensions of the prototypes.
        prototypes: number of prototypes.
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
        self.perceptron.apply(init_linear)
        self.directions = nn.Linear(bottleneck, prototypes, bias=False).weight
        self.lengths = nn.Parameter(torch.ones(prototypes, 1))

    @in_fp32
    def forward(self, features: Tensor) -> Tensor:
        """Compute logits (..., prototypes) of features (..., channels).

        A logit is the cosine between feature and prototype times the prototype's length, which
        starts at 1.
        """
        embeddings = normalize(self.perceptron(features), dim=-1)
        prototypes = self.lengths * normalize(self.directions, dim=-1)
        return embeddings @ prototypes.T
