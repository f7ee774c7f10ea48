"""Metrics of features: their spread over sampled positions, linear and nearest-neighbour probes."""

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
    unit = normalize(features.double(), dim=1)
    std = unit.std(dim=0).mean() * unit.shape[1] ** 0.5
    singular = torch.linalg.svdvals(features.double())
    p = singular / singular.sum().clamp(min=1e-12)
    entropy = -(p * p.clamp(min=1e-12).log()).sum()
    return FeatureStatistics(float(std), float(entropy.exp()))


SAMPLED_POSITIONS = 4096  # positions sampled for statistics of features


class FeatureReservoir:
    """Uniform sample of feature vectors from all positions of all frames, in constant memory.

    A position gets a random key, seeded by the index of its batch; the lowest keys stay.

    Args:
        limit: maximum number of vectors.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # sampled (N, C) float32 on the CPU, in the order of the frames
        self.features = torch.zeros(0)
        self._batches = 0
        self._keys: NDArray[np.float64] = np.zeros(0)

    def add(self, features: Tensor) -> None:
        """Add all positions of a batch's features (B, T, C, h, w)."""
        vectors = features.movedim(2, -1).flatten(0, 3)  # (B * T * h * w, C)
        n_old = len(self._keys)
        new_keys = np.random.default_rng(self._batches).random(len(vectors))
        keys = np.concatenate([self._keys, new_keys])
        lowest = np.argpartition(keys, min(self.limit, len(keys)) - 1)[: self.limit]
        selected = np.sort(lowest)
        new = torch.from_numpy(selected[selected >= n_old] - n_old).to(vectors.device)
        rows = vectors[new].float().cpu()
        self.features = torch.cat([self.features[selected[selected < n_old]], rows])
        self._keys = keys[selected]
        self._batches += 1


STEPS = 300  # of the linear probe
NEIGHBOURS = 20
TEMPERATURE = 0.07


def linear_probe(features: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """Classify queries by multinomial logistic regression on standardised features.

    Training uses all features in every step, so it is deterministic.

    Args:
        features: (N, C) float.
        labels: (N,) int64 classes of the features.
        queries: (M, C) float.
        classes: number of classes.

    Returns:
        (M,) int64 classes of the queries.
    """
    mean = features.mean(0)
    std = features.std(0).clamp(min=1e-6)
    inputs = (features - mean) / std
    weight = torch.zeros(classes, inputs.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], lr=0.05, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = cross_entropy(inputs @ weight.T + bias, labels)
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return (((queries - mean) / std) @ weight.T + bias).argmax(1)


@torch.no_grad()
def nearest_neighbours(features: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """Classify queries by a vote of their nearest features.

    The 20 features with the highest cosine vote, weighted by exp(cosine / 0.07), as in DINO's
    evaluation.

    Args:
        features: (N, C) float.
        labels: (N,) int64 classes of the features.
        queries: (M, C) float.
        classes: number of classes.

    Returns:
        (M,) int64 classes of the queries.
    """
    bank = normalize(features, dim=1)
    votes = one_hot(labels, classes).float()
    predicted = []
    for chunk in normalize(queries, dim=1).split(2048):  # less memory than all at once
        cosines, indices = (chunk @ bank.T).topk(min(NEIGHBOURS, len(bank)), dim=1)  # (M, k)
        weights = (cosines / TEMPERATURE).exp()
        predicted.append((weights.unsqueeze(-1) * votes[indices]).sum(1).argmax(1))
    return torch.cat(predicted)
