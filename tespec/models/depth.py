"""Monocular depth: an event backbone with a MiDaS head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, interpolate, relu

from tespec.core.distributed import global_mean, has_no_labels, rank_without_labels
from tespec.core.registry import MODELS
from tespec.models.backbone import Backbone, BackboneState, detach, reset
from tespec.models.labelled import pick, stand_in
from tespec.models.layers import crop, in_fp32

SOBEL = ((1.0, 0.0, -1.0), (2.0, 0.0, -2.0), (1.0, 0.0, -1.0))


def scale_invariant_loss(difference: Tensor, valid: Tensor, share: float) -> Tensor:
    """Mean over the maps of mean(d^2) - share * mean(d)^2.

    Args:
        difference: (L, H, W) prediction minus truth, finite everywhere.
        valid: (L, H, W) bool, pixels that count; a map without any counts as 0.
        share: of the squared mean that is taken off: 0.5 in HMNet, 1 (the variance) in RAMNet.
    """
    count = valid.flatten(1).sum(1).clamp(min=1)
    kept = torch.where(valid, difference, 0.0).flatten(1)
    mean = kept.sum(1) / count
    losses = kept.square().sum(1) / count - share * mean.square()
    return global_mean(losses.sum(), 0 if has_no_labels() else len(losses))


def gradient_loss(difference: Tensor, valid: Tensor, scales: int) -> Tensor:
    """Mean of the absolute Sobel gradients of the difference at 1, 1/2, 1/4 ... of its size.

    Args:
        difference: (L, H, W) prediction minus truth, finite everywhere; pixels that do not count are taken as 0.
        valid: (L, H, W) bool, pixels that count.
        scales: number of sizes; those with fewer than 3 rows or columns are left out.
    """
    image = torch.where(valid, difference, 0.0).unsqueeze(1)
    kernel = torch.tensor(SOBEL, dtype=image.dtype, device=image.device)
    kernels = torch.stack([kernel, kernel.T]).unsqueeze(1)
    total, places = image.sum() * 0.0, 0
    for scale in range(scales):
        pooled = avg_pool2d(image, 2**scale) if scale else image
        if min(pooled.shape[-2:]) < 3:
            break
        gradients = conv2d(pooled, kernels)
        total = total + gradients.abs().sum()
        places += gradients[:, 0].numel()
    return global_mean(total, 0 if has_no_labels() else places)


class ResidualConvUnit(nn.Module):
    """Two 3x3 convolutions, each after a ReLU, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (L, C, h, w) of the same shape."""
        return maps + self.conv2(relu(self.conv1(relu(maps))))


class Fusion(nn.Module):
    """Adds a stage's maps to those from below, refines the sum, and doubles its size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.skip = ResidualConvUnit(channels)
        self.out = ResidualConvUnit(channels)

    def forward(self, below: Tensor | None, stage: Tensor) -> Tensor:
        """Maps (L, C, 2h, 2w) of those from below and the stage's (L, C, h, w); the deepest stage has none below."""
        maps = stage if below is None else below + self.skip(stage)
        return _doubled(self.out(maps))


class MidasHead(nn.Module):
    """Four stages to one map at full resolution; 4,112,513 parameters with Swin-T's channels and 128 features.

    The first unit of the deepest fusion is never used, but belongs to the published count.

    Args:
        in_channels: of the four stages, the finest first.
        features: width.
    """

    def __init__(self, in_channels: Sequence[int], features: int = 128) -> None:
        super().__init__()
        self.project = nn.ModuleList(
            nn.Conv2d(channels, features, 3, padding=1, bias=False) for channels in in_channels
        )
        self.fuse = nn.ModuleList(Fusion(features) for _ in in_channels)
        self.narrow = nn.Conv2d(features, features // 2, 3, padding=1)
        self.refine = nn.Conv2d(features // 2, 32, 3, padding=1)
        self.predict = nn.Conv2d(32, 1, 1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Map (L, H, W) of four stages (L, C, H/4, W/4) to (L, C, H/32, W/32); no range is imposed on it."""
        maps: Tensor | None = None
        for project, fuse, stage in reversed(list(zip(self.project, self.fuse, features, strict=True))):
            maps = fuse(maps, project(stage))
        assert maps is not None
        return self.predict(relu(self.refine(_doubled(self.narrow(maps))))).squeeze(1)

    def unused(self) -> list[nn.Parameter]:
        """Parameters that no output depends on."""
        deepest = self.fuse[-1]
        assert isinstance(deepest, Fusion)
        return list(deepest.skip.parameters())


def _doubled(maps: Tensor) -> Tensor:
    return interpolate(maps, scale_factor=2, mode="bilinear", align_corners=True)


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
        with rank_without_labels(empty):
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
