"""ECDDP's losses as a way to pre-train."""

from __future__ import annotations

from dataclasses import dataclass

from tespec.pretraining.objectives.dense_distillation import DenseDistillation
from tespec.registry import OBJECTIVES
from tespec.training.objectives.events import EventObjective


@dataclass(frozen=True)
class DistillationSettings:
    """See `DenseDistillation`."""

    hidden: int
    bottleneck: int
    prototypes: int
    clusters: int
    local_views: int
    crop: int
    large: int
    small: int
    mask_ratio: float
    momentum: float


@OBJECTIVES.register_module(name="ecddp")
class DenseDistillationTask(EventObjective):
    """The second row of the paper's table of objectives, and the pre-training of ECDDP itself."""

    settings_type = DistillationSettings
    loss_is = "sum of patch, context and image loss"

    def network(self) -> DenseDistillation:
        """The objective with a fresh backbone."""
        own = self.own
        return DenseDistillation(
            self.swin(),
            own.hidden,
            own.bottleneck,
            own.prototypes,
            own.clusters,
            own.local_views,
            own.mask_ratio,
            own.momentum,
            own.crop,
            own.large,
            own.small,
        )
