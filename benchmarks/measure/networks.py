"""Networks and batches of the two profiles, without data on disk."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.settings import Finetuning, Pretraining
from tespec.models import EventSwin
from tespec.models.layers import padded_size
from tespec.pretraining.objective import own_settings
from tespec.pretraining.tespec import MaskedReconstruction
from tespec.tasks import find_task
from tespec.tasks.base import fresh_backbone

# (H, W) in px of the histograms that each task's network sees: rows of the labels, and 1Mpx at half size.
SIZES = {"dsec": (440, 640), "ddd17": (200, 346), "mvsec": (260, 346), "gen1": (240, 304), "1mpx": (360, 640)}
COUNT = 0.05  # events of a cell of a histogram, on average


def task_network(task: str, profile: str) -> tuple[Any, Finetuning]:
    """A task's untrained recurrent network at its own size, in evaluation mode, and its settings."""
    settings = finetuning_settings(task, "recurrent", profile)
    network = find_task(settings).network(settings, fresh_backbone(settings, SIZES[task]))
    return network.eval(), settings


def objective_network(profile: str, size: tuple[int, int]) -> tuple[MaskedReconstruction, Pretraining]:
    """TESPEC's untrained objective for histograms of `size` (H, W), and its settings."""
    settings = pretraining_settings("tespec", profile)
    backbone = EventSwin(settings.width, settings.recurrent, settings.bins, padded_size(*size))
    seconds = settings.window_ms / 1000 / settings.bins
    network = MaskedReconstruction(own_settings(settings.objective), backbone, seconds)
    return network, settings


def histograms(*shape: int, device: torch.device | None = None) -> Tensor:
    """Random counts (..., 2 * bins, H, W) uint8."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.empty(shape, dtype=torch.uint8)
    for each in drawn.flatten(0, -3):
        each.copy_(torch.poisson(torch.full(each.shape, COUNT), generator=generator))
    return drawn.to(device or "cpu")


def objective_batch(
    network: MaskedReconstruction, lanes: int, segments: int, size: tuple[int, int], device: torch.device
) -> dict[str, Tensor]:
    """A batch of the objective, half of each image hidden."""
    channels = 2 * network.backbone.bins
    units = [-(-side // network.own.mask.unit) for side in size]
    checks = (torch.arange(units[0])[:, None] + torch.arange(units[1])) % 2 == 0
    return {
        "histograms": histograms(lanes, segments, channels, *size, device=device),
        "fresh": torch.zeros(lanes, dtype=torch.bool, device=device),
        "mask": checks.expand(lanes, -1, -1).to(device),
    }
