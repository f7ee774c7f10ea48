"""Contrastive predictive coding: tell the features that come next from others, given what was seen so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tespec.core.distributed import all_gather_rows
from tespec.core.errors import UserError
from tespec.core.registry import OBJECTIVES
from tespec.models.backbone import Backbone, BackboneState, detach, reset
from tespec.pretraining.contrast import info_nce, projector
from tespec.pretraining.objective import EventObjective


class PredictiveCoding(nn.Module):
    """InfoNCE between what the memory at t predicts and features of the segment at t + k (van den Oord et al., 2018).

    The context is the last stage's output, which has memory; the latents are the same backbone's last stage for each
    segment alone, so that memory cannot leak into what is to be predicted. Negatives are latents of other places,
    times and lanes of the step. Both pass a projector with batch normalisation: at the start the features of all places
    are nearly one, and without it they stay so.

    Args:
        backbone: what is pre-trained.
        width: of the latents that are compared.
        ahead: number of segments that are predicted, 1, 2, ... after each.
        places: at most so many places are compared at once, drawn anew for each k.
        temperature: of the softmax over cosines.
    """

    draws_alike = True  # the same places in every process

    def __init__(self, backbone: Backbone, width: int, ahead: int, places: int, temperature: float) -> None:
        super().__init__()
        self.backbone = backbone
        channels = backbone.channels[-1]
        self.latent = projector(channels, channels, width)
        self.predict = nn.ModuleList(projector(channels, channels, width) for _ in range(ahead))
        self.places, self.temperature = places, temperature

    def loss(
        self, batch: dict[str, Tensor], state: BackboneState | None
    ) -> tuple[dict[str, Tensor], BackboneState | None]:
        """Losses of a step.

        Args:
            batch: histograms (B, T, 2 * bins, H, W) and fresh (B,) bool.
            state: what the step before returned, None at the start.

        Returns:
            "loss", the mean over k, and "found", the share of places whose latent is told from the others; and the
            detached state.

        Raises:
            UserError: fewer segments than are predicted.
        """
        histograms = batch["histograms"]
        lanes, segments = histograms.shape[:2]
        if segments <= len(self.predict):
            what = f"{segments} segments do not reach {len(self.predict)} ahead"
            raise UserError("objective.ahead", what, "predict fewer, or set more segments")
        features, state = self.backbone(histograms, reset(state, batch["fresh"]))
        context = features[-1].movedim(2, -1)
        alone, _ = self.backbone(histograms.flatten(0, 1).unsqueeze(1))
        last = alone[-1].squeeze(1).movedim(1, -1)
        latents = self.latent(last.flatten(0, -2)).view(lanes, segments, *last.shape[1:-1], -1)
        losses, found = [], []
        for ahead, predict in enumerate(self.predict, start=1):
            queries, _ = all_gather_rows(predict(context[:, :-ahead].flatten(0, -2)))
            keys, _ = all_gather_rows(latents[:, ahead:].flatten(0, -2))
            drawn = torch.randperm(len(queries))[: self.places].to(queries.device)
            loss, share = info_nce(queries[drawn], keys[drawn], self.temperature)
            losses.append(loss)
            found.append(share)
        return {"loss": torch.stack(losses).mean(), "found": torch.stack(found).mean()}, detach(state)


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
