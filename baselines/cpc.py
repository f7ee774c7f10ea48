"""CPC: contrastive predictive coding (van den Oord et al., 2018), `objective=cpc`.

TESPEC's ablation of objectives has it.
"""

from dataclasses import replace
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from tespec.core.distributed import all_gather_rows
from tespec.core.errors import UserError
from tespec.core.settings import PositiveFloat, PositiveInt
from tespec.models.backbone import Backbone, detach, reset
from tespec.models.layers import to_device
from tespec.pretraining.contrast import info_nce, projector
from tespec.pretraining.method import Batch, EventMethod, Losses, PretrainData, TableRow
from tespec.pretraining.tespec import Tespec
from tespec.registry import METHODS


@dataclass(frozen=True)
class CpcSettings:
    """Settings of prediction and contrast; the paper specifies none."""

    width: PositiveInt = 256  # of the contrasted latents
    ahead: PositiveInt = 3  # largest k: the next segments t + 1, ..., t + k are predicted
    places: PositiveInt = 1024  # maximum number of positions to contrast, drawn anew for every k
    temperature: PositiveFloat = 0.1  # of the softmax over cosines


@METHODS.register_module(name="cpc")
class Cpc(EventMethod):
    """Contrast predictions from the recurrent state at t with features of the segment at t + k.

    The latents are the last stage of the same backbone on single segments, so memory cannot leak
    into the targets. Negatives are latents of other positions, times and lanes. Predictions and
    latents pass a projector with batch normalisation: features of all positions start nearly
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

    def __init__(self, cfg: CpcSettings, backbone: Backbone) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        channels = backbone.channels[-1]
        self.latent = projector(channels, channels, cfg.width)
        self.predict = nn.ModuleList(
            projector(channels, channels, cfg.width) for _ in range(cfg.ahead)
        )

    @classmethod
    def from_data(cls, data: PretrainData) -> "Cpc":
        segments = data.settings.segments
        if segments <= data.cfg.ahead:
            raise UserError(
                "objective.ahead",
                f"{segments} segments are too few to predict {data.cfg.ahead} ahead",
                "decrease it, or increase segments",
            )
        return super().from_data(data)

    def loss(self, batch: Batch, state: Any) -> tuple[Losses, Any]:
        """Contrast predictions with the latents of later segments (Eq. 4).

        Args:
            batch: "histograms" (B, T, 2 * bins, H, W) uint8 and "is_first" (B,) bool.
            state: recurrent state of the backbone.

        Returns:
            "loss", and "accuracy", the accuracy of the matches; and the next state.
        """
        histograms = batch["histograms"]
        lanes, segments = histograms.shape[:2]
        features, state = self.backbone(histograms, reset(state, batch["is_first"]))
        contexts = features[-1].movedim(2, -1)  # (B, T, h, w, C)
        single, _ = self.backbone(histograms.flatten(0, 1).unsqueeze(1))
        last = single[-1].squeeze(1).movedim(1, -1)  # (B * T, h, w, C)
        latents = self.latent(last.flatten(0, -2)).view(lanes, segments, *last.shape[1:-1], -1)
        results = []
        for k, predict in enumerate(self.predict, start=1):
            queries = all_gather_rows(predict(contexts[:, :-k].flatten(0, -2)))  # (N, D)
            keys = all_gather_rows(latents[:, k:].flatten(0, -2))
            drawn = to_device(torch.randperm(len(queries))[: self.cfg.places], queries.device)
            results.append(info_nce(queries[drawn], keys[drawn], self.cfg.temperature))
        losses, accuracies = zip(*results, strict=True)
        means = {"loss": torch.stack(losses).mean(), "accuracy": torch.stack(accuracies).mean()}
        return means, detach(state)
