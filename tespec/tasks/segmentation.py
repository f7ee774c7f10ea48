"""Semantic segmentation as a task: UperNet on the backbone, and mIoU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.registry import TASKS
from tespec.core.settings import Finetuning, build
from tespec.datasets.batches import stack_masks
from tespec.metrics.segmentation import SegmentationScorer
from tespec.models import Backbone, SegmentationModel
from tespec.tasks.base import LabelledTask
from tespec.tasks.variants import VIEWS, Variants


@dataclass(frozen=True)
class SegmentationHead:
    """Width and dropout of UperNet."""

    channels: int
    dropout: float


@TASKS.register_module(name="segmentation")
class SegmentationTask(LabelledTask):
    """A data set with masks; see `LabelledTask`."""

    collate = stack_masks
    test_time_augmentations = tuple(VIEWS)

    def __init__(self, settings: Finetuning, root: Path) -> None:
        labels = settings.batch_size * min(settings.labels_per_chunk or settings.segments, settings.segments)
        if labels < 2:
            raise UserError("batch_size", "a step has a single label, and batch normalisation needs two", "give more")
        super().__init__(settings, root)

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> SegmentationModel:
        """`backbone` with a fresh UperNet."""
        head = build(SegmentationHead, settings.head, "head")
        return SegmentationModel(backbone, len(settings.classes), head.channels, head.dropout)

    def player(self, model: SegmentationModel) -> SegmentationModel | Variants:
        """The model, or its test-time augmentation."""
        views = VIEWS[self.settings.test_time_augmentation]
        return model if views is None else Variants(model, views, self.size)

    def small_labels(self, count: int) -> dict[str, Tensor]:
        """Masks of the first class."""
        return {"labels": torch.zeros(count, *self.size, dtype=torch.uint8)}

    def scorer(self) -> SegmentationScorer:
        """A scorer that has seen nothing."""
        return SegmentationScorer(self.settings.classes)

    @staticmethod
    def read(predictions: Tensor) -> Sequence[NDArray[np.uint8]]:
        """Class of each pixel, from logits (L, classes, H, W)."""
        classes: NDArray[np.uint8] = predictions.argmax(dim=1).to(torch.uint8).cpu().numpy()
        return list(classes)

    def of_classes(self, overall: Any) -> dict[str, float]:
        """Intersection over union of each class."""
        return dict(zip(self.settings.classes, overall.iou, strict=True))
