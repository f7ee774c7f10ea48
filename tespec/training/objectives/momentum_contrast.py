"""MoBY as a way to pre-train."""

from __future__ import annotations

from dataclasses import dataclass

from tespec.pretraining.objectives.momentum_contrast import MomentumContrast
from tespec.registry import OBJECTIVES
from tespec.training.objectives.images import ImageObjective


@dataclass(frozen=True)
class MomentumSettings:
    """See `MomentumContrast` and `tespec.datasets.images.ViewRule`; `size` is a view's side in px."""

    size: int
    channels: int
    scale: tuple[float, float]
    jitter: float
    hidden: int
    out: int
    queue: int
    temperature: float
    momentum: float


@OBJECTIVES.register_module(name="momentum_contrast")
class MomentumContrastTask(ImageObjective):
    """Two views of each image."""

    settings_type = MomentumSettings
    loss_is = "sum over both views of the contrast with the other view and the queue"
    views = 2

    def network(self) -> MomentumContrast:
        """The objective with a fresh backbone."""
        own = self.own
        return MomentumContrast(self.backbone(), own.hidden, own.out, own.queue, own.temperature, own.momentum)
