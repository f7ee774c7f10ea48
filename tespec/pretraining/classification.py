"""Supervised classification as a way to pre-train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tespec.core.errors import UserError
from tespec.core.registry import OBJECTIVES
from tespec.core.settings import Pretraining
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import pooled
from tespec.pretraining.objective import ImageObjective


class Classification(nn.Module):
    """Cross-entropy of a linear layer on the mean of the last stage.

    Args:
        backbone: what is pre-trained.
        classes: number of classes.
        smoothing: share of the label that is spread over all classes.
    """

    draws_alike = True  # of what stochastic depth draws for the whole batch, each process takes its own

    def __init__(self, backbone: Backbone, classes: int, smoothing: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.norm = nn.LayerNorm(backbone.channels[-1])
        self.classify = nn.Linear(backbone.channels[-1], classes)
        self.smoothing = smoothing

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step.

        Args:
            batch: views (B, 1, C, H, W) float32 and labels (B,) int64.
            state: None.

        Returns:
            "loss", and "accuracy", the share of images that is right; and None.
        """
        features, _ = self.backbone(batch["views"])
        return self._losses(features[-1], batch["labels"]), None

    @in_fp32
    def _losses(self, last: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.classify(self.norm(pooled(last)))
        loss = cross_entropy(logits, labels, label_smoothing=self.smoothing)
        return {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean().detach()}


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
