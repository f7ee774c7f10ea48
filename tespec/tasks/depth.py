"""Monocular depth as a task: the MiDaS head on the backbone, and errors in metres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.registry import TASKS
from tespec.core.settings import Finetuning, build
from tespec.datasets.batches import stack_depths
from tespec.metrics.depth import DepthScorer
from tespec.models import Backbone, DepthModel
from tespec.tasks.base import LabelledTask


@dataclass(frozen=True)
class DepthHead:
    """Width of the MiDaS head, the range of depths in m, and the losses.

    Attributes:
        channels: width.
        min_depth: nearest ground truth that counts, in m.
        max_depth: farthest, in m; also the depth whose normalised logarithm is 1.
        alpha: normalised log depth is ln(d / max_depth) / alpha + 1.
        si_weight: of the scale-invariant loss.
        si_lambda: share of the squared mean that it takes off.
        gradient_weight: of the gradient-matching loss.
        gradient_scales: number of scales it is taken at.
    """

    channels: int
    min_depth: float
    max_depth: float
    alpha: float
    si_weight: float
    si_lambda: float
    gradient_weight: float
    gradient_scales: int


@TASKS.register_module(name="depth")
class DepthTask(LabelledTask):
    """A data set with depth; see `LabelledTask`."""

    collate = stack_depths

    def __init__(self, settings: Finetuning, root: Path) -> None:
        self._head = head_of(settings)
        if settings.augmentation.zoom:
            raise UserError("augmentation.zoom", "zooming does not go with depth", "set it to 0")
        super().__init__(settings, root)

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> DepthModel:
        """`backbone` with a fresh MiDaS head."""
        head = head_of(settings)
        return DepthModel(
            backbone,
            features=head.channels,
            min_depth=head.min_depth,
            max_depth=head.max_depth,
            alpha=head.alpha,
            si_weight=head.si_weight,
            si_lambda=head.si_lambda,
            gradient_weight=head.gradient_weight,
            scales=head.gradient_scales,
        )

    def small_labels(self, count: int) -> dict[str, Tensor]:
        """Depths of half the farthest."""
        return {"labels": torch.full((count, *self.size), self._head.max_depth / 2)}

    def scorer(self) -> DepthScorer:
        """A scorer that has seen nothing."""
        return DepthScorer(self._head.min_depth, self._head.max_depth)

    @staticmethod
    def read(predictions: Tensor) -> Sequence[NDArray[np.float32]]:
        """Depths (L, H, W) in m, one by one.

        Raises:
            UserError: a depth is no number.
        """
        depths: NDArray[np.float32] = predictions.float().cpu().numpy()
        if not np.isfinite(depths).all():
            raise UserError("the trained model", "predicts depths that are no numbers", "lower optimisation.peak_lr")
        return list(depths)


def head_of(settings: Finetuning) -> DepthHead:
    """Settings of the head.

    Raises:
        UserError: they do not go together.
    """
    head = build(DepthHead, settings.head, "head")
    if not head.min_depth < head.max_depth:
        what = f"{head.min_depth:g} m is not below head.max_depth, {head.max_depth:g} m"
        raise UserError("head.min_depth", what, "give a range of depths")
    return head
