"""How healthy features are: how those of each stage differ, before and after its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tespec.metrics.features import PLACES, FeatureReservoir, feature_std_and_rank
from tespec.models.backbone import Backbone

FRAMES = 64  # that are looked at
BEFORE = "_before_memory"


class _Seen:
    """Features of a stage over all batches: some places of them, and how large they are."""

    def __init__(self) -> None:
        self._places = FeatureReservoir(PLACES)
        self._sum, self._count = 0.0, 0

    def add(self, maps: Tensor) -> None:
        """Take maps (B, T, C, h, w) in."""
        self._places.add([maps], maps.shape[-2:])
        self._sum += maps.float().abs().sum(dtype=torch.float64).item()
        self._count += maps.numel()

    def numbers(self, ending: str) -> dict[str, float]:
        """Their spread and mean magnitude."""
        found = feature_std_and_rank(self._places.features())
        size = self._sum / max(self._count, 1)
        return {f"std{ending}": found.std, f"rank{ending}": found.rank, f"magnitude{ending}": size}


@torch.no_grad()
def stage_spreads(
    backbone: Backbone, batches: Iterable[Sequence[Tensor]], stages: Sequence[int] = range(4)
) -> dict[str, dict[str, float]]:
    """How features of the stages differ, and their mean magnitude, of a network with memory also before each ConvLSTM.

    Args:
        backbone: that the features come from; it is watched while they are asked for.
        batches: features (B, T, C, h, w) of the four stages, batch by batch.
        stages: those that are looked at.

    Returns:
        "std", "rank" and "magnitude" of "stage 1" to "stage 4", and those before memory as `<name>_before_memory`.
    """
    after = {index: _Seen() for index in stages}
    before = {index: _Seen() for index in stages if len(backbone.lstms)}
    with ExitStack() as stack:
        for index, seen in before.items():
            stack.enter_context(backbone.lstms[index].register_forward_pre_hook(_taking(seen)))
        for features in batches:
            for index, seen in after.items():
                seen.add(features[index])
    return {
        f"stage {index + 1}": after[index].numbers("") | (before[index].numbers(BEFORE) if before else {})
        for index in stages
    }


def _taking(seen: _Seen) -> Any:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.add(inputs[0].permute(1, 0, 4, 2, 3))

    return hook


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
