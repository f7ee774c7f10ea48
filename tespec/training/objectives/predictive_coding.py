"""Contrastive predictive coding as a way to pre-train."""

from __future__ import annotations

from dataclasses import dataclass

from tespec.pretraining.objectives.predictive_coding import PredictiveCoding
from tespec.registry import OBJECTIVES
from tespec.training.objectives.events import EventObjective


@dataclass(frozen=True)
class CodingSettings:
    """See `PredictiveCoding`."""

    width: int
    ahead: int
    places: int
    temperature: float


@OBJECTIVES.register_module(name="cpc")
class PredictiveCodingTask(EventObjective):
    """The first row of the paper's table of objectives."""

    settings_type = CodingSettings
    loss_is = "mean over k of the contrast between what is predicted and what comes k segments later"

    def network(self) -> PredictiveCoding:
        """The objective with a fresh backbone."""
        own = self.own
        return PredictiveCoding(self.backbone(), own.width, own.ahead, own.places, own.temperature)

    @property
    def fewest_segments(self) -> int:
        """One more than are predicted."""
        return int(self.own.ahead) + 1
