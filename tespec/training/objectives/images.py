"""Objectives on images: a folder of them, a part held out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tespec.datasets.images import ImageSteps, ViewRule, held_out_batch, open_images
from tespec.datasets.parts import WHOLE, Part
from tespec.errors import UserError
from tespec.settings import Pretraining
from tespec.training.objectives.base import Batch, PretrainingTask, left_alone

HELD_OUT_IMAGES = 512


class ImageObjective(PretrainingTask):
    """An objective whose batches are views of images; the backbone is feed-forward and sees 1 or 3 channels."""

    views: int
    fewest: int = 2

    def __init__(self, settings: Pretraining, root: Path) -> None:
        super().__init__(settings, root)
        if settings.recurrent:
            raise UserError("recurrent", "images have no order in time", "set it to false")
        if self.own.channels not in (1, 3):
            raise UserError("objective.channels", f"{self.own.channels} is neither grey nor RGB", "choose 1 or 3")
        self.images = open_images(root)
        self.notes = left_alone(self.images.tested_on)

    @property
    def rule(self) -> ViewRule:
        """How views are drawn."""
        own = self.own
        return ViewRule(self.size, own.channels, own.scale, own.jitter, type(self).views)

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of a view in px."""
        return self.own.size, self.own.size

    @property
    def channels(self) -> int:
        """1 or 3."""
        channels: int = self.own.channels
        return channels

    def fingerprint(self) -> str:
        """Hash of the folder."""
        return self.images.fingerprint()

    def recordings(self) -> dict[str, dict[str, float]]:
        """Images of each folder."""
        return self.images.counts()

    def counts(self) -> dict[str, str]:
        """Images and classes, in words."""
        images = self.images
        return {
            "images": f"{len(images.train):,} to train on, {len(images.held_out):,} held out",
            "classes": ", ".join(images.classes[:20]) + (", ..." if len(images.classes) > 20 else ""),
        }

    def steps(self, seed: int, part: Part = WHOLE) -> ImageSteps:
        """Batches of the training by step."""
        return ImageSteps(self.images, self.rule, self.settings.batch_size, seed, part)

    def small_batch(self) -> Batch:
        """A batch of as few images as the objective needs."""
        batch = ImageSteps(self.images, self.rule, self.fewest, 0)[0]
        return batch | {"histograms": batch["views"]}

    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Batches of whole images held out; the last one may be left out where it is too small."""
        paths, size = self.images.held_out[:HELD_OUT_IMAGES], max(self.settings.batch_size, self.fewest)
        for first in range(0, len(paths), size):
            batch = held_out_batch(self.images, paths[first : first + size], self.rule)
            yield {name: value.to(device) for name, value in batch.items()}

    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features of the first view."""
        features: list[Tensor]
        features, _ = model.backbone(batch["views"][:, :1])
        return features, None
