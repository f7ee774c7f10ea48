"""Metrics of features: their spread over sampled places, a linear probe and a nearest-neighbour probe."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot


class FeatureStatistics(NamedTuple):
    """Spread of features."""

    # Mean over channels of the standard deviation of unit-length features, times the root of their
    # number: about 1 for uniform directions, 0 for equal ones ("Exploring Simple Siamese
    # Representation Learning", CVPR 2021, Sec. 4.1).
    std: float
    # Exponential of the entropy of their singular values, from 1 to the number of channels (RankMe,
    # ICML 2023).
    rank: float


def feature_std_and_rank(features: Tensor) -> FeatureStatistics:
    """Standard deviation and effective rank of features (N, C); zeros for fewer than two."""
    if len(features) < 2:
        return FeatureStatistics(0.0, 0.0)
    each = normalize(features.double(), dim=1)
    std = each.std(dim=0).mean() * each.shape[1] ** 0.5
    shares = torch.linalg.svdvals(features.double())
    shares = shares / shares.sum().clamp(min=1e-12)
    entropy = -(shares * shares.clamp(min=1e-12).log()).sum()
    return FeatureStatistics(float(std), float(entropy.exp()))


PLACES = 4096  # sampled for statistics of features


class FeatureReservoir:
    """Uniform sample of at most `limit` places from all frames added so far, in constant memory.

    Each place gets a random number, seeded by the index of its batch; the places with the lowest
    numbers stay.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # sampled (N, C) float32 on the CPU, in the order of the frames
        self.features = torch.zeros(0)
        self._batches = 0
        self._numbers: NDArray[np.float64] = np.zeros(0)

    def add(self, features: Tensor) -> None:
        """Add the places of a batch's features (B, T, C, h, w)."""
        places, before = features.movedim(2, -1).flatten(0, 3), len(self._numbers)
        drawn = np.random.default_rng(self._batches).random(len(places))
        numbers = np.concatenate([self._numbers, drawn])
        kept = np.sort(np.argpartition(numbers, min(self.limit, len(numbers)) - 1)[: self.limit])
        old, new = (
            torch.from_numpy(kept[kept < before]),
            torch.from_numpy(kept[kept >= before] - before),
        )
        rows = places[new.to(places.device)].float().cpu()
        self.features = torch.cat([self.features[old], rows])
        self._numbers = numbers[kept]
        self._batches += 1


STEPS, RATE, DECAY = 300, 0.05, 1e-4  # of the linear probe
NEIGHBOURS, TEMPERATURE = 20, 0.07
AT_ONCE = 2048  # queries per search for neighbours


def linear_probe(features: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """Classes (M,) of queries (M, C) by multinomial logistic regression on features (N, C) with labels (N,).

    Features are standardised. Training uses all of them in every step, so it is deterministic.
    """
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-6)
    inputs = (features - mean) / deviation
    weight = torch.zeros(classes, inputs.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = cross_entropy(inputs @ weight.T + bias, labels)
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return (((queries - mean) / deviation) @ weight.T + bias).argmax(1)


@torch.no_grad()
def nearest_neighbours(features: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """Classes (M,) of queries (M, C) by a vote of the nearest features (N, C) with labels (N,).

    The 20 features with the highest cosine vote, weighted by exp(cosine / 0.07), as in DINO's
    evaluation.
    """
    bank, votes = normalize(features, dim=1), one_hot(labels, classes).float()
    found = []
    for part in normalize(queries, dim=1).split(AT_ONCE):
        cosines, places = (part @ bank.T).topk(min(NEIGHBOURS, len(bank)), dim=1)
        weights = (cosines / TEMPERATURE).exp()
        found.append((weights.unsqueeze(-1) * votes[places]).sum(1).argmax(1))
    return torch.cat(found)
