"""Contrastive predictive coding (van den Oord et al., 2018), an objective of TESPEC's ablation (`objective=cpc`)."""

from dataclasses import replace
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from typing_extensions import Self

from tespec.core.distributed import all_gather_rows
from tespec.core.errors import UserError
from tespec.core.settings import PositiveFloat, PositiveInt, Pretraining
from tespec.models.backbone import Backbone, detach, reset
from tespec.models.layers import sent
from tespec.pretraining.contrast import info_nce, projector
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import EventMethod, TableRow
from tespec.pretraining.tespec import Tespec
from tespec.registry import METHODS


@dataclass(frozen=True)
class CpcSettings:
    """Settings of prediction and contrast; the paper specifies none."""

    width: PositiveInt = 256  # of the contrasted latents
    ahead: PositiveInt = 3  # largest k: segments 1, ..., k after each one are predicted
    places: PositiveInt = 1024  # maximum number contrasted, sampled anew for each k
    temperature: PositiveFloat = 0.1  # of the softmax over cosines


@METHODS.register_module(name="cpc")
class Cpc(EventMethod):
    """InfoNCE between predictions from the recurrent state at t and features of the segment at t + k.

    The latents are the last stage of the same backbone for each segment alone, so memory cannot
    leak into the targets. Negatives are latents of other places, times and lanes. Predictions and
    latents pass a projector with batch normalisation: features of all places start nearly
    identical, and without it they stay so.
    """

    row = TableRow(
        title="CPC",
        group="Beyond the paper",
        pretraining_data="1Mpx",
        citation=(
            "van den Oord et al.: Representation Learning with Contrastive Predictive Coding, 2018"
        ),
        summary=(
            "The recurrent state predicts the features of the next segments among negatives "
            "(InfoNCE)."
        ),
    )
    deviations = (  # from van den Oord et al., Eqs. 3 and 4; TESPEC's paper adds no settings
        "predictions and latents are two-layer projections, compared by cosine at temperature 0.1 "
        "(published: linear predictions, dot products)",
        "one backbone, recurrent over the sequence for the context, on single segments for latents "
        "(published: an encoder, and a recurrent network on its latents)",
    )
    recipe = replace(Tespec.recipe, objective=CpcSettings())

    def __init__(self, own: CpcSettings, backbone: Backbone) -> None:
        super().__init__()
        self.own, self.backbone = own, backbone
        channels = backbone.channels[-1]
        self.latent = projector(channels, channels, own.width)
        self.predict = nn.ModuleList(
            projector(channels, channels, own.width) for _ in range(own.ahead)
        )

    @classmethod
    def from_settings(cls, own: CpcSettings, settings: Pretraining, data: PretrainData) -> Self:
        if settings.segments <= own.ahead:
            what = f"{settings.segments} segments are too few to predict {own.ahead} ahead"
            raise UserError("objective.ahead", what, "decrease it, or increase segments")
        return super().from_settings(own, settings, data)

    def loss(self, batch: dict[str, Tensor], state: Any) -> tuple[dict[str, Tensor], Any]:
        """Return "loss", and "found", the share of places where the true latent is the most similar one."""
        histograms = batch["histograms"]
        lanes, segments = histograms.shape[:2]
        features, state = self.backbone(histograms, reset(state, batch["fresh"]))
        context = features[-1].movedim(2, -1)
        alone, _ = self.backbone(histograms.flatten(0, 1).unsqueeze(1))
        last = alone[-1].squeeze(1).movedim(1, -1)
        latents = self.latent(last.flatten(0, -2)).view(lanes, segments, *last.shape[1:-1], -1)
        contrasts = []
        for ahead, predict in enumerate(self.predict, start=1):
            queries = all_gather_rows(predict(context[:, :-ahead].flatten(0, -2)))
            keys = all_gather_rows(latents[:, ahead:].flatten(0, -2))
            drawn = sent(torch.randperm(len(queries))[: self.own.places], queries.device)
            contrasts.append(
                torch.stack(info_nce(queries[drawn], keys[drawn], self.own.temperature))
            )
        loss, found = torch.stack(contrasts).mean(0)
        return {"loss": loss, "found": found}, detach(state)
