"""How healthy features are: how those of each stage differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tespec.metrics.features import PLACES, FeatureReservoir, feature_std_and_rank

FRAMES = 64  # that are looked at


@torch.no_grad()
def stage_spreads(batches: Iterable[Sequence[Tensor]], stages: Sequence[int] = range(4)) -> dict[str, dict[str, float]]:
    """How features of the stages differ.

    Args:
        batches: features (B, T, C, h, w) of the four stages, batch by batch.
        stages: those that are looked at.

    Returns:
        "std" and "rank" of "stage 1" to "stage 4".
    """
    seen = {index: FeatureReservoir(PLACES) for index in stages}
    for features in batches:
        for index, reservoir in seen.items():
            reservoir.add(features[index : index + 1], features[index].shape[-2:])
    return {
        f"stage {index + 1}": feature_std_and_rank(reservoir.features())._asdict() for index, reservoir in seen.items()
    }


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is evaluated; afterwards each part of it is trained or evaluated as it was before."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
