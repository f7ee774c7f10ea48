"""Validation of a pre-trained network: mean losses, and the spread of its features."""

from typing import Any

import torch
from torch import Tensor

from tespec.core.progress import progress
from tespec.metrics.features import SAMPLED_POSITIONS, FeatureReservoir, feature_std_and_rank
from tespec.models import Backbone
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import PretrainMethod

SEED = 0  # of random draws in validation, the same for every run
FRAMES = 64  # validation frames from which the features of each stage are measured


@torch.no_grad()
def validate(model: PretrainMethod, data: PretrainData, device: torch.device) -> dict[str, float]:
    """Average the validation losses of a network over all samples, in constant memory.

    Args:
        model: network, which is set to evaluation mode.
        data: opened data with a validation split.
        device: device of the network.

    Returns:
        The method's metrics and, if it has a backbone, the mean standard deviation
        ("last_stage_std") and the rank ("last_stage_rank") of its last features.
    """
    model.eval()
    sums: dict[str, Tensor | float] = {}
    samples = 0
    losses_state: Any = None
    features_state: Any = None
    last_stage = FeatureReservoir(SAMPLED_POSITIONS)
    has_backbone = isinstance(model.backbone, Backbone)
    with progress("validation", "batches") as advance:
        for number, batch in enumerate(data.val_batches(device)):
            torch.manual_seed(SEED + number)
            losses, losses_state = model.val_losses(batch, losses_state)
            count = len(next(iter(batch.values())))
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0.0) + loss.double().cpu() * count
            samples += count
            if has_backbone:
                features, features_state = data.features(model.backbone, batch, features_state)
                last_stage.add(features[-1])
            advance(number + 1, None, "")
    metrics = model.val_metrics({name: torch.as_tensor(sums[name] / samples) for name in sums})
    if has_backbone:
        std, rank = feature_std_and_rank(last_stage.features)
        metrics |= {"last_stage_std": std, "last_stage_rank": rank}
    return metrics


@torch.no_grad()
def stage_statistics(
    backbone: Backbone, data: PretrainData, device: torch.device
) -> dict[str, dict[str, float]]:
    """Measure the spread of the features of each stage on about `FRAMES` validation frames.

    Returns:
        "std" and "rank" for each of "stage 1" to "stage 4".
    """
    stages = [FeatureReservoir(SAMPLED_POSITIONS) for _ in range(4)]
    state: Any = None
    for batch in data.val_batches(device, FRAMES):
        features, state = data.features(backbone, batch, state)
        for stage, maps in zip(stages, features, strict=True):
            stage.add(maps)
    return {
        f"stage {number}": feature_std_and_rank(stage.features)._asdict()
        for number, stage in enumerate(stages, 1)
    }
