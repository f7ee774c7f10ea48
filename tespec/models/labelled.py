"""The labelled segments of a batch: the only ones that a head sees in training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tespec.core.distributed import ranks_per_batch


def pick(features: Sequence[Tensor], place: Tensor) -> list[Tensor]:
    """Features (L, C, h, w) of the labelled segments, from those (B, T, C, h, w) of all.

    Args:
        features: of the stages.
        place: (L, 2) int64 lane and segment of each label.
    """
    return [feature[place[:, 0], place[:, 1]] for feature in features]


def stand_in(place: Tensor, labels: Tensor, nothing: float) -> tuple[Tensor, Tensor, bool]:
    """Places and labels for the head, and whether they only stand in for none at all.

    A process without labels must go through the head as well where the others exchange something inside it.

    Args:
        place: (L, 2) int64 lane and segment of each label.
        labels: (L, ...) maps.
        nothing: the value of a pixel without a label.
    """
    if len(place) or ranks_per_batch() == 1:
        return place, labels, False
    return first_place(place), labels.new_full((1, *labels.shape[1:]), nothing), True


def first_place(place: Tensor) -> Tensor:
    """(1, 2) int64, the first segment of the first lane."""
    return torch.zeros(1, 2, dtype=torch.int64, device=place.device)
