"""Monocular depth: MiDaS head, scale-invariant and gradient losses, and errors in metres."""

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
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Width,
    build,
)
from tespec.datasets.batches import stack_depths
from tespec.datasets.recording import LabelledRecording
from tespec.metrics.depth import SCORES, DepthScorer
from tespec.models import Backbone
from tespec.models.layers import crop, in_fp32, to_device
from tespec.registry import TASKS
from tespec.tasks.base import Network, Task, dummy_labels, select_labelled

SOBEL = ((1.0, 0.0, -1.0), (2.0, 0.0, -2.0), (1.0, 0.0, -1.0))


def scale_invariant_loss(difference: Tensor, valid: Tensor, share: float) -> Tensor:
    """Scale-invariant loss: mean over the maps of mean(d^2) - share * mean(d)^2.

    Args:
        difference: d, prediction minus truth, (L, H, W), finite everywhere.
        valid: (L, H, W) bool, pixels that count; a map without any has the loss 0.
        share: 0.5 in HMNet, 1 (the variance) in RAMNet.

    Returns:
        a scalar, averaged over all ranks.
    """
    count = valid.flatten(1).sum(1).clamp(min=1)  # (L,)
    masked = torch.where(valid, difference, 0.0).flatten(1)  # (L, H * W)
    mean = masked.sum(1) / count
    losses = masked.square().sum(1) / count - share * mean.square()
    return global_mean(losses.sum(), 0 if has_no_labels() else len(losses))


def gradient_loss(difference: Tensor, valid: Tensor, scales: int) -> Tensor:
    """Mean absolute Sobel gradient of the difference at 1, 1/2, 1/4 ... of its size.

    Args:
        difference: prediction minus truth, (L, H, W), finite everywhere.
        valid: (L, H, W) bool; the difference is 0 at other pixels.
        scales: number of sizes; those with fewer than 3 rows or columns are skipped.

    Returns:
        a scalar, averaged over all ranks.
    """
    image = torch.where(valid, difference, 0.0).unsqueeze(1)  # (L, 1, H, W)
    kernel = torch.tensor(SOBEL, dtype=image.dtype)
    kernels = to_device(torch.stack([kernel, kernel.T]).unsqueeze(1), image.device)  # (2, 1, 3, 3)
    total = image.sum() * 0.0
    count = 0
    for scale in range(scales):
        pooled = avg_pool2d(image, 2**scale) if scale else image
        if min(pooled.shape[-2:]) < 3:
            break
        gradients = conv2d(pooled, kernels)  # (L, 2, h - 2, w - 2)
        total = total + gradients.abs().sum()
        count += gradients[:, 0].numel()
    return global_mean(total, 0 if has_no_labels() else count)


class ResidualConvUnit(nn.Module):
    """Two 3x3 convolutions, each after a ReLU, added to the input after its ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        # MiDaS's first ReLU works in place, so the input is added after it (isl-org/MiDaS,
        # midas/blocks.py).
        maps = relu(maps)
        return maps + self.conv2(relu(self.conv1(maps)))


class Fusion(nn.Module):
    """Add a stage's maps to the coarser ones, refine the sum, and double its size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.skip = ResidualConvUnit(channels)
        self.out = ResidualConvUnit(channels)

    def forward(self, coarser: Tensor | None, stage: Tensor) -> Tensor:
        """Fuse the maps of a stage with the coarser ones.

        Args:
            coarser: (L, C, h, w), output of the next fusion; None at the deepest stage.
            stage: (L, C, h, w).

        Returns:
            (L, C, 2h, 2w).
        """
        fused = stage if coarser is None else coarser + self.skip(stage)
        return _double(self.out(fused))


class MidasHead(nn.Module):
    """MiDaS decoder of four stages to one full-resolution map.

    Fusions are those of isl-org/MiDaS, midas/midas_net.py (`FeatureFusionBlock`), and the output
    module that of midas/dpt_depth.py: only together do they have the published number of
    parameters, 4,112,513 for Swin-T and 128 features, which includes the first unit of the deepest
    fusion, though it is never used.

    Args:
        in_channels: channels of the stages, the finest first.
        features: channels of the fusions.
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
        """Decode four stages, (L, C, H/4, W/4) to (L, C, H/32, W/32), into a map (L, H, W)."""
        maps = None
        stages = list(zip(self.project, self.fuse, features, strict=True))
        for project, fuse, stage in reversed(stages):
            maps = fuse(maps, project(stage))  # (L, C, 2h, 2w)
        maps = _double(self.narrow(maps))  # (L, features / 2, H, W)
        return self.predict(relu(self.refine(maps))).squeeze(1)


def _double(maps: Tensor) -> Tensor:
    return interpolate(maps, scale_factor=2, mode="bilinear", align_corners=True)


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class DepthHead:
    """Settings of the MiDaS head, of the range of valid depths, and of the losses."""

    channels: Width = 128
    min_depth: PositiveFloat  # m; minimum of valid ground truth
    # m; maximum of valid ground truth, where the normalised log depth is 1
    max_depth: PositiveFloat
    alpha: PositiveFloat = 3.7  # normalised log depth is ln(d / max_depth) / alpha + 1
    si_weight: NonNegativeFloat = 1.0  # of the scale-invariant loss
    si_lambda: Fraction = 0.5  # fraction of the squared mean that it subtracts
    gradient_weight: NonNegativeFloat = 0.125  # of the gradient-matching loss
    gradient_scales: PositiveInt = 3  # number of its scales

    def __post_init__(self) -> None:
        if not self.min_depth < self.max_depth:
            what = f"{self.min_depth:g} m is not below head.max_depth, {self.max_depth:g} m"
            raise UserError("head.min_depth", what, "set it below head.max_depth")


class DepthModel(Network):
    """Backbone and MiDaS head, which predicts log depth n = ln(d / max_depth) / alpha + 1."""

    def __init__(self, backbone: Backbone, settings: DepthHead) -> None:
        super().__init__(backbone)
        self.settings = settings
        self.head = MidasHead(backbone.channels, settings.channels)

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the losses; labels (L, H, W) float32 are in m, NaN where the depth is unknown.

        Returns:
            "loss", "loss_si" and "loss_gradient"; labels without a valid depth contribute nothing.
        """
        index, labels, empty = dummy_labels(batch["label_position"], batch["labels"], math.nan)
        with rank_computes(unlabelled=empty):
            return self._losses(select_labelled(features, index), labels)

    @in_fp32
    def _losses(self, features: list[Tensor], labels: Tensor) -> dict[str, Tensor]:
        # The head is in float32 too: rounded to 8 bits, depth would have steps that dominate the
        # gradient loss.
        cfg = self.settings
        predicted = crop(self.head(features), labels.shape[-2:])  # (L, H, W)
        valid = torch.isfinite(labels) & (labels >= cfg.min_depth) & (labels <= cfg.max_depth)
        depth = torch.where(valid, labels, cfg.max_depth)
        difference = predicted - (torch.log(depth / cfg.max_depth) / cfg.alpha + 1)
        si = scale_invariant_loss(difference, valid, cfg.si_lambda)
        gradient = gradient_loss(difference, valid, cfg.gradient_scales)
        # Unused parameters get gradients of zero, which distributed training requires.
        unused = self.head.fuse[-1].get_submodule("skip").parameters()
        zero: Any = sum(parameter.sum() * 0.0 for parameter in unused)
        total = cfg.si_weight * si + cfg.gradient_weight * gradient + zero
        return {"loss": total, "loss_si": si, "loss_gradient": gradient}

    @in_fp32
    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Tensor:
        """Predict depth.

        Returns:
            (L, H, W) in m, not clipped.
        """
        return to_metres(crop(self.head(features), size), self.settings)


def to_metres(normalised: Tensor, head: DepthHead) -> Tensor:
    """Convert normalised log depth to depth.

    Args:
        normalised: of any shape.
        head: settings of the normalisation.

    Returns:
        depth in m, float32, of the same shape.
    """
    # The exponential of an extreme prediction would not be finite.
    exponent = (head.alpha * (normalised.float() - 1)).clamp(-20, 20)
    return torch.exp(exponent + math.log(head.max_depth))


@TASKS.register_module(name="depth")
class DepthTask(Task):
    """Task on a data set with depth maps; see `Task`."""

    collate = stack_depths
    head = DepthHead
    content = "a pixel from head.min_depth to head.max_depth"
    scores: ClassVar = SCORES

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> DepthModel:
        return DepthModel(backbone, build(DepthHead, settings.head, "head"))

    def has_target(self, recording: LabelledRecording, label: int) -> bool:
        head = self.head_settings
        depth = recording.labels[label]
        return bool(((depth >= head.min_depth) & (depth <= head.max_depth)).any())

    def scorer(self) -> DepthScorer:
        return DepthScorer(self.head_settings.min_depth, self.head_settings.max_depth)
