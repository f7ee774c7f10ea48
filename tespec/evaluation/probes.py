"""What frozen features of patches tell about classes: a linear classifier, and nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

STEPS, RATE, DECAY = 300, 0.05, 1e-4  # of the linear classifier
NEIGHBOURS, TEMPERATURE = 20, 0.07
AT_ONCE = 2048  # patches whose neighbours are looked for


def linear_probe(features: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """Class (M,) of queries (M, C) by multinomial logistic regression on features (N, C) with labels (N,).

    Features are standardised; all of them are one batch, so that nothing is drawn.
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
    """Class (M,) of queries (M, C) by the vote of the features (N, C) of highest cosine, with labels (N,).

    The 20 nearest vote, weighted by exp(cosine / 0.07), as in DINO's evaluation.
    """
    bank, votes = normalize(features, dim=1), one_hot(labels, classes).float()
    found = []
    for part in normalize(queries, dim=1).split(AT_ONCE):
        cosines, places = (part @ bank.T).topk(min(NEIGHBOURS, len(bank)), dim=1)
        weights = (cosines / TEMPERATURE).exp()
        found.append((weights.unsqueeze(-1) * votes[places]).sum(1).argmax(1))
    return torch.cat(found)
