"""Monocular depth: an event backbone with a MiDaS head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tespec.models.backbone import Backbone, BackboneState
from tespec.models.depth_losses import gradient_loss, scale_invariant_loss
from tespec.models.labelled import pick, stand_in
from tespec.models.midas import MidasHead
from tespec.models.padding import crop
from tespec.models.precision import in_fp32
from tespec.models.state import detach, reset
from tespec.processes import silenced
from tespec.registry import MODELS


@MODELS.register_module()
class DepthModel(nn.Module):
    """Backbone and `MidasHead`, which predicts normalised log depth n = ln(d / max_depth) / alpha + 1.

    Args:
        backbone: gives the four features.
        features: width of the head.
        min_depth: nearest ground truth that counts, in m.
        max_depth: farthest, in m.
        alpha: of the normalisation.
        si_weight: weight of the scale-invariant loss.
        si_lambda: see `scale_invariant_loss`.
        gradient_weight: weight of the gradient loss.
        scales: see `gradient_loss`.
    """

    def __init__(
        self,
        backbone: Backbone,
        features: int = 128,
        *,
        min_depth: float = 1.978,
        max_depth: float = 80.0,
        alpha: float = 3.7,
        si_weight: float = 1.0,
        si_lambda: float = 0.5,
        gradient_weight: float = 0.125,
        scales: int = 3,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = MidasHead(backbone.channels, features)
        self.min_depth, self.max_depth, self.alpha = min_depth, max_depth, alpha
        self.si_weight, self.si_lambda, self.gradient_weight, self.scales = (
            si_weight,
            si_lambda,
            gradient_weight,
            scales,
        )

    def loss(
        self, batch: dict[str, Tensor], state: BackboneState | None
    ) -> tuple[dict[str, Tensor], BackboneState | None]:
        """Losses of a step; the head sees the labelled segments alone, all at once.

        Args:
            batch: histograms (B, T, 2 * bins, H, W), fresh (B,) bool, label_place (L, 2) int64 lane and segment of
                each label, labels (L, H, W) float32 in m, NaN where there is none.
            state: what the step before returned, None at the start.

        Returns:
            "loss" and its summands "loss_si" and "loss_gradient", and the detached state. Labels without a depth that
            counts cost nothing.
        """
        features, state = self.backbone(batch["histograms"], reset(state, batch["fresh"]))
        place, labels, empty = stand_in(batch["label_place"], batch["labels"], math.nan)
        # Parameters without use get gradients of zero, as distributed training wants them.
        nothing = sum((parameter.sum() * 0.0 for parameter in self.head.unused()), features[-1].float().sum() * 0.0)
        if not len(labels):
            return {"loss": nothing, "loss_si": nothing.detach(), "loss_gradient": nothing.detach()}, detach(state)
        with silenced(empty):
            return self._losses(pick(features, place), labels, nothing), detach(state)

    @in_fp32
    def _losses(self, features: list[Tensor], labels: Tensor, nothing: Tensor) -> dict[str, Tensor]:
        # The head as well: rounded to 8 bits, its depths have steps where the gradient loss looks for slopes.
        predicted = self._normalised(features, labels.shape[-2:])
        valid = torch.isfinite(labels) & (labels >= self.min_depth) & (labels <= self.max_depth)
        truth = torch.log(torch.where(valid, labels, self.max_depth) / self.max_depth) / self.alpha + 1
        difference = predicted - truth
        si = scale_invariant_loss(difference, valid, self.si_lambda)
        gradient = gradient_loss(difference, valid, self.scales)
        loss = self.si_weight * si + self.gradient_weight * gradient + nothing
        return {"loss": loss, "loss_si": si, "loss_gradient": gradient}

    def predict(
        self, histograms: Tensor, state: BackboneState | None = None, label_place: Tensor | None = None
    ) -> tuple[Tensor, BackboneState | None]:
        """Depth in m of segments of histograms (B, T, 2 * bins, H, W), and the state.

        Args:
            histograms: of all segments.
            state: what the call before returned, None at the start.
            label_place: (L, 2) int64 lane and segment of those that reach the head; None: all of them.

        Returns:
            (L, H, W), or (B, T, H, W) of all segments; and the state. Nothing is clipped.
        """
        features, state = self.backbone(histograms, state)
        size = histograms.shape[-2:]
        if label_place is not None:
            return self._metres(self._normalised(pick(features, label_place), size)), state
        depth = self._metres(self._normalised([feature.flatten(0, 1) for feature in features], size))
        return depth.unflatten(0, histograms.shape[:2]), state

    def advance(self, histograms: Tensor, state: BackboneState | None = None) -> BackboneState | None:
        """The state after segments (B, T, 2 * bins, H, W) that nothing is predicted for."""
        return self.backbone(histograms, state)[1]

    def step(self, histogram: Tensor, state: BackboneState | None = None) -> tuple[Tensor, BackboneState | None]:
        """Depth (B, H, W) in m of one segment (B, 2 * bins, H, W), and the state."""
        depth, state = self.predict(histogram.unsqueeze(1), state)
        return depth.squeeze(1), state

    def _normalised(self, features: list[Tensor], size: torch.Size) -> Tensor:
        return crop(self.head(features), (size[0], size[1]))

    def _metres(self, normalised: Tensor) -> Tensor:
        # Beyond e^20 the exponential of a wild prediction would not be a number any more.
        exponent = (self.alpha * (normalised.float() - 1)).clamp(-20, 20)
        return torch.exp(exponent + math.log(self.max_depth))
