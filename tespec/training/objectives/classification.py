"""Supervised classification as a way to pre-train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tespec.errors import UserError
from tespec.pretraining.objectives.classification import Classification
from tespec.registry import OBJECTIVES
from tespec.settings import Pretraining
from tespec.training.objectives.images import ImageObjective


@dataclass(frozen=True)
class ClassificationSettings:
    """See `Classification` and `tespec.datasets.images.ViewRule`; `size` is a view's side in px."""

    size: int
    channels: int
    scale: tuple[float, float]
    jitter: float
    smoothing: float


@OBJECTIVES.register_module(name="classification")
class ClassificationTask(ImageObjective):
    """One view of each image, whose folder is its class."""

    settings_type = ClassificationSettings
    loss_is = "cross-entropy with label smoothing"
    views = 1

    def __init__(self, settings: Pretraining, root: Path) -> None:
        super().__init__(settings, root)
        if len(self.images.classes) < 2:
            what = f"its images lie in {len(self.images.classes)} folder"
            raise UserError(root, what, "give a folder with one folder of images for each class")

    def network(self) -> Classification:
        """The objective with a fresh backbone."""
        return Classification(self.backbone(), len(self.images.classes), self.own.smoothing)

    @torch.no_grad()
    def evaluate(self, model: Any, device: torch.device) -> dict[str, float]:
        """Loss and spread, and the share of images held out that is right."""
        metrics = super().evaluate(model, device)
        right = count = 0.0
        for batch in self.held_out(device):
            losses, _ = model.loss(batch, None)
            right += losses["accuracy"].item() * len(batch["labels"])
            count += len(batch["labels"])
        return metrics | {"accuracy": 100 * right / count}
