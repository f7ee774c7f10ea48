"""Monocular depth: MiDaS head on the backbone, scale-invariant and gradient losses, and errors in metres."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, interpolate, relu

from tespec.core.distributed import global_mean, has_no_labels, rank_computes
from tespec.core.errors import UserError
from tespec.core.settings import (
    Finetuning,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Share,
    Width,
    build,
)
from tespec.datasets.batches import stack_depths
from tespec.datasets.recording import LabelledRecording
from tespec.metrics.depth import SCORES, DepthScorer
from tespec.models import Backbone
from tespec.models.layers import crop, in_fp32, sent
from tespec.registry import TASKS
from tespec.tasks.base import Network, Task, dummy_labels, select_labelled

SOBEL = ((1.0, 0.0, -1.0), (2.0, 0.0, -2.0), (1.0, 0.0, -1.0))


def scale_invariant_loss(difference: Tensor, valid: Tensor, share: float) -> Tensor:
    """Mean over the maps of mean(d^2) - share * mean(d)^2; the share is 0.5 in HMNet, 1 (the variance) in RAMNet.

    The difference d (L, H, W) is prediction minus truth, finite everywhere; `valid` (L, H, W) bool
    marks what counts. A map without any valid pixel has the loss 0.
    """
    count = valid.flatten(1).sum(1).clamp(min=1)
    kept = torch.where(valid, difference, 0.0).flatten(1)
    mean = kept.sum(1) / count
    losses = kept.square().sum(1) / count - share * mean.square()
    return global_mean(losses.sum(), 0 if has_no_labels() else len(losses))


def gradient_loss(difference: Tensor, valid: Tensor, scales: int) -> Tensor:
    """Mean absolute Sobel gradient of the difference (L, H, W), 0 at invalid pixels, at 1, 1/2, 1/4 ... of its size.

    `valid` is (L, H, W) bool. Sizes with fewer than 3 rows or columns are skipped.
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


class ResidualConvUnit(nn.Module):
    """Two 3x3 convolutions, each after a ReLU, added to the input after its ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        # MiDaS's first ReLU works in place, so what it adds is not the input (isl-org/MiDaS,
        # midas/blocks.py).
        maps = relu(maps)
        return maps + self.conv2(relu(self.conv1(maps)))


class Fusion(nn.Module):
    """Add a stage's maps to the coarser ones, refine the sum, and double its size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.skip, self.out = ResidualConvUnit(channels), ResidualConvUnit(channels)

    def forward(self, below: Tensor | None, stage: Tensor) -> Tensor:
        """Fuse maps (L, C, h, w) of `below`, None at the deepest stage, and `stage` to (L, C, 2h, 2w)."""
        return _doubled(self.out(stage if below is None else below + self.skip(stage)))


class MidasHead(nn.Module):
    """MiDaS decoder of four stages to one full-resolution map; 4,112,513 parameters for Swin-T and 128 features.

    `in_channels` are those of the stages, the finest first. Fusions are those of isl-org/MiDaS,
    midas/midas_net.py (`FeatureFusionBlock`), and the output module that of midas/dpt_depth.py:
    only together do they have the published number of parameters, which includes the first unit of
    the deepest fusion, though it is never used.
    """

    def __init__(self, in_channels: Sequence[int], features: int = 128) -> None:
        super().__init__()
        self.project = nn.ModuleList(
            nn.Conv2d(width, features, 3, padding=1, bias=False) for width in in_channels
        )
        self.fuse = nn.ModuleList(Fusion(features) for _ in in_channels)
        self.narrow = nn.Conv2d(features, features // 2, 3, padding=1)
        self.refine = nn.Conv2d(features // 2, 32, 3, padding=1)
        self.predict = nn.Conv2d(32, 1, 1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Decode four stages (L, C, H/4, W/4) to (L, C, H/32, W/32) into a map (L, H, W) of unrestricted range."""
        maps = None
        for project, fuse, stage in reversed(
            list(zip(self.project, self.fuse, features, strict=True))
        ):
            maps = fuse(maps, project(stage))
        return self.predict(relu(self.refine(_doubled(self.narrow(maps))))).squeeze(1)


def _doubled(maps: Tensor) -> Tensor:
    return interpolate(maps, scale_factor=2, mode="bilinear", align_corners=True)


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class DepthHead:
    """Settings of the MiDaS head, of the range of depths, which must not be empty, and of the losses."""

    channels: Width = 128
    min_depth: PositiveFloat  # m; minimum of valid ground truth
    # m; maximum of valid ground truth, where the normalised log depth is 1
    max_depth: PositiveFloat
    alpha: PositiveFloat = 3.7  # normalised log depth is ln(d / max_depth) / alpha + 1
    si_weight: NonNegativeFloat = 1.0  # of the scale-invariant loss
    si_lambda: Share = 0.5  # share of the squared mean that it subtracts
    gradient_weight: NonNegativeFloat = 0.125  # of the gradient-matching loss
    gradient_scales: PositiveInt = 3  # number of its scales

    def __post_init__(self) -> None:
        if not self.min_depth < self.max_depth:
            what = f"{self.min_depth:g} m is not below head.max_depth, {self.max_depth:g} m"
            raise UserError("head.min_depth", what, "set it below head.max_depth")


class DepthModel(Network):
    """Backbone and `MidasHead`, which predicts normalised log depth n = ln(d / max_depth) / alpha + 1."""

    def __init__(self, backbone: Backbone, settings: DepthHead) -> None:
        super().__init__(backbone)
        self.head, self.settings = MidasHead(backbone.channels, settings.channels), settings

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses "loss", "loss_si" and "loss_gradient"; labels without a valid depth contribute nothing.

        Labels are (L, H, W) float32 in m, NaN where the depth is unknown.
        """
        place, labels, empty = dummy_labels(batch["label_place"], batch["labels"], math.nan)
        with rank_computes(unlabelled=empty):
            return self._losses(select_labelled(features, place), labels)

    @in_fp32
    def _losses(self, features: list[Tensor], labels: Tensor) -> dict[str, Tensor]:
        # The head is in float32 too: rounded to 8 bits, depth would have steps that dominate the
        # gradient loss.
        own = self.settings
        predicted = crop(self.head(features), labels.shape[-2:])
        valid = torch.isfinite(labels) & (labels >= own.min_depth) & (labels <= own.max_depth)
        truth = torch.log(torch.where(valid, labels, own.max_depth) / own.max_depth) / own.alpha + 1
        difference = predicted - truth
        si = scale_invariant_loss(difference, valid, own.si_lambda)
        gradient = gradient_loss(difference, valid, own.gradient_scales)
        # Unused parameters get gradients of zero, which distributed training requires.
        zero: Any = sum(
            each.sum() * 0.0 for each in self.head.fuse[-1].get_submodule("skip").parameters()
        )
        total = own.si_weight * si + own.gradient_weight * gradient + zero
        return {"loss": total, "loss_si": si, "loss_gradient": gradient}

    @in_fp32
    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Tensor:
        """Depth (L, H, W) in m, not clipped."""
        return to_metres(crop(self.head(features), size), self.settings)


def to_metres(normalised: Tensor, head: DepthHead) -> Tensor:
    """Convert normalised log depth to depth in m."""
    # The exponential of an extreme prediction would not be finite.
    exponent = (head.alpha * (normalised.float() - 1)).clamp(-20, 20)
    return torch.exp(exponent + math.log(head.max_depth))


@TASKS.register_module(name="depth")
class DepthTask(Task):
    """Task on a data set with depth maps; see `Task`."""

    collate, head = stack_depths, DepthHead
    content = "a pixel from head.min_depth to head.max_depth"
    scores: ClassVar = SCORES

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> DepthModel:
        return DepthModel(backbone, build(DepthHead, settings.head, "head"))

    def is_learned(self, recording: LabelledRecording, label: int) -> bool:
        head, depth = build(DepthHead, self.settings.head, "head"), recording.labels[label]
        return bool(((depth >= head.min_depth) & (depth <= head.max_depth)).any())

    def scorer(self) -> DepthScorer:
        head = build(DepthHead, self.settings.head, "head")
        return DepthScorer(head.min_depth, head.max_depth)
