"""The labelled segments of a batch: the only ones that a head sees in training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def pick(features: Sequence[Tensor], place: Tensor) -> list[Tensor]:
    """Features (L, C, h, w) of the labelled segments, from those (B, T, C, h, w) of all.

    Args:
        features: of the stages.
        place: (L, 2) int64 lane and segment of each label.
    """
    return [feature[place[:, 0], place[:, 1]] for feature in features]
