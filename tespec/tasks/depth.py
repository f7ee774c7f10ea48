"""Monocular depth: the MiDaS head on the backbone, scale-invariant and gradient losses, and errors in metres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

from tespec.core.distributed import global_mean, has_no_labels, rank_without_labels
from tespec.core.errors import UserError
from tespec.core.registry import TASKS
from tespec.core.settings import Count, Finetuning, FromZero, Positive, Share, Size, Width, build
from tespec.datasets.base import TEST
from tespec.datasets.batches import stack_depths
from tespec.metrics.depth import SCORES, DepthScorer
from tespec.models import Backbone
from tespec.models.layers import crop, in_fp32, sent
from tespec.models.midas import MidasHead
from tespec.tasks.base import Task
from tespec.tasks.network import Network, pick, stand_in

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
    kernel = torch.tensor(SOBEL, dtype=image.dtype)
    kernels = sent(torch.stack([kernel, kernel.T]).unsqueeze(1), image.device)
    total, places = image.sum() * 0.0, 0
    for scale in range(scales):
        pooled = avg_pool2d(image, 2**scale) if scale else image
        if min(pooled.shape[-2:]) < 3:
            break
        gradients = conv2d(pooled, kernels)
        total = total + gradients.abs().sum()
        places += gradients[:, 0].numel()
    return global_mean(total, 0 if has_no_labels() else places)


class DepthModel(Network):
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
        super().__init__(backbone)
        self.head = MidasHead(backbone.channels, features)
        self.min_depth, self.max_depth, self.alpha = min_depth, max_depth, alpha
        self.si_weight, self.si_lambda, self.gradient_weight, self.scales = (
            si_weight,
            si_lambda,
            gradient_weight,
            scales,
        )

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses "loss", "loss_si" and "loss_gradient"; labels without a depth that counts cost nothing.

        Labels are (L, H, W) float32 in m, NaN where there is none.
        """
        place, labels, empty = stand_in(batch["label_place"], batch["labels"], math.nan)
        # Parameters without use get gradients of zero, as distributed training wants them.
        nothing = sum((parameter.sum() * 0.0 for parameter in self.head.unused()), features[-1].float().sum() * 0.0)
        if not len(labels):
            return {"loss": nothing, "loss_si": nothing.detach(), "loss_gradient": nothing.detach()}
        with rank_without_labels(empty):
            return self._losses(pick(features, place), labels, nothing)

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

    @in_fp32
    def outputs(self, features: list[Tensor], size: tuple[int, int]) -> Tensor:
        """Depth (L, H, W) in m; nothing is clipped."""
        return self._metres(self._normalised(features, size))

    def _normalised(self, features: list[Tensor], size: Sequence[int]) -> Tensor:
        return crop(self.head(features), (size[0], size[1]))

    def _metres(self, normalised: Tensor) -> Tensor:
        # Beyond e^20 the exponential of a wild prediction would not be a number any more.
        exponent = (self.alpha * (normalised.float() - 1)).clamp(-20, 20)
        return torch.exp(exponent + math.log(self.max_depth))


@pydantic.dataclasses.dataclass(frozen=True)
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

    channels: Width
    min_depth: Positive
    max_depth: Positive
    alpha: Positive
    si_weight: FromZero
    si_lambda: Share
    gradient_weight: FromZero
    gradient_scales: Count


@TASKS.register_module(name="depth")
class DepthTask(Task):
    """A data set with depth; see `Task`."""

    collate = stack_depths
    scores: ClassVar = SCORES

    def __init__(self, settings: Finetuning, root: Path, split: str = TEST) -> None:
        self._head = head_of(settings)
        if settings.augmentation.zoom:
            raise UserError("augmentation.zoom", "zoom augmentation is not supported for depth", "set it to 0")
        super().__init__(settings, root, split)

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

    @classmethod
    def blank_labels(cls, settings: Finetuning, size: Size, count: int, device: torch.device) -> dict[str, Tensor]:
        """Depths of half the farthest."""
        return {"labels": torch.full((count, *size), head_of(settings).max_depth / 2, device=device)}

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
