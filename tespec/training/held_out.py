"""What a pre-trained model does on recordings it has not seen: its losses, and moments worth looking at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

CARRIED, ZEROED, PREDICT_ZERO = "loss_masked_carried", "loss_masked_zeroed", "loss_zero"


@torch.no_grad()
def held_out_losses(
    model: nn.Module, steps: Dataset[dict[str, Tensor]], count: int, device: torch.device
) -> dict[str, float]:
    """Mean masked loss over `count` steps with the backbone's state carried, and with it zeroed at each step.

    The intensity image is carried in both, so that the targets are the same. The gap between the two is what the
    model gets from its memory.

    Returns:
        `loss_masked_carried`, `loss_masked_zeroed`, and `loss_zero`, the loss of predicting zero everywhere.
    """
    model.eval()
    sums = dict.fromkeys((CARRIED, ZEROED, PREDICT_ZERO), 0.0)
    state: Any = None
    for batch in batches(steps, count, device):
        zeroed, _ = model.loss(batch, None if state is None else (None, state[1]))
        carried, state = model.loss(batch, state)
        sums[CARRIED] += carried["loss_masked"].item()
        sums[ZEROED] += zeroed["loss_masked"].item()
        sums[PREDICT_ZERO] += carried["loss_zero"].item()
    return {name: total / count for name, total in sums.items()}


def batches(steps: Dataset[dict[str, Tensor]], count: int, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """The first `count` batches, on the device."""
    for step in range(count):
        yield {name: value.to(device) for name, value in steps[step].items()}
