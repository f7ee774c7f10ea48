"""TESPEC: masked reconstruction of an intensity video (Mohammadi et al., ICCV 2025)."""

import math
from dataclasses import field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import avg_pool2d
from typing_extensions import Self

from tespec.core.distributed import global_mean
from tespec.core.errors import UserError
from tespec.core.settings import (
    Augmentation,
    Downsample,
    Flag,
    GradientClipping,
    Mask,
    NonNegativeFloat,
    Optimisation,
    PositiveFloat,
    Pretraining,
)
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.models import EventSwin
from tespec.models.backbone import Backbone, BackboneState, detach, reset
from tespec.models.layers import crop, in_fp32, to_device
from tespec.pretraining.data import Batch, Losses, PretrainData
from tespec.pretraining.masking import MaskPatch, build_decoder, grid_size, pixel_maps, random_masks
from tespec.pretraining.method import EventMethod, TableRow
from tespec.registry import METHODS


@dataclass(frozen=True)
class Target:
    """Reconstruction target and constants of the intensity estimate (paper, Sec. 4.1)."""

    # by Eq. 7, by Eq. 6, or the input itself
    kind: Literal["intensity", "high_pass", "histograms"] = "intensity"
    alpha: NonNegativeFloat = 5.0  # 1/s; decay of the intensity
    # N: with this many events per frame, the intensity decays with alpha. The n of Eq. 7 counts
    # events in the network's input: after downsampling (which keeps one event in four), flip, zoom
    # and clipping at 10. The paper: "the number of events n triggered during the entire dt". See
    # docs/pretraining.md.
    norm_events: PositiveFloat = 5000.0
    # C, the log-intensity step of one event. Patch normalisation cancels it, and the paper
    # specifies no value.
    contrast: PositiveFloat = 1.0


@dataclass(frozen=True)
class TespecSettings:
    """Settings of masks, target, decoder and loss; defaults of the paper, Sec. 4.1."""

    # Ratio 0: nothing is masked, and the loss is on all pixels (paper, table "Masking Ratio").
    mask: Mask = Mask(32, 0.5)
    target: Target = Target()
    # Type and arguments. The paper gives 3.7 M parameters, but not the layout; see
    # docs/pretraining.md, Fidelity.
    decoder: dict[str, Any] = field(default_factory=lambda: {"type": "LastStageDecoder"})
    patch_norm: Flag = True  # normalise the target patch by patch
    # added to a patch's variance, in C squared; the reference MAE code's
    patch_eps: NonNegativeFloat = 1.0e-6
    counts_eps: NonNegativeFloat = 1.0e-6  # the same for histogram targets, in squared counts
    visible_weight: NonNegativeFloat = 0.0  # weight of the error on visible pixels


def normalise_patches(video: Tensor, unit: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each patch to mean 0 and variance 1, as in facebookresearch/mae.

    (x - mean) / sqrt(variance + eps), with the unbiased variance.

    Args:
        video: (B, T, planes, H, W); a patch spans all planes.
        unit: side of a patch in px; patches at the right and the bottom may be smaller.
        eps: in squared units of `video`, 1e-6 in MAE; it keeps the noise of nearly constant
            patches small.

    Returns:
        The normalised video, and mean and deviation (B, T, 1, H, W) of each pixel's patch.
    """
    size = video.shape[-2:]

    def patch_sums(maps: Tensor) -> Tensor:  # (B, T, planes, H, W) -> (B, T, 1, rows, columns)
        return avg_pool2d(maps.sum(2), unit, ceil_mode=True, divisor_override=1).unsqueeze(2)

    count = patch_sums(torch.ones_like(video[:1, :1]))
    mean = pixel_maps(patch_sums(video) / count, unit, size)
    centred = video - mean
    variance = patch_sums(centred.square()) / (count - 1).clamp(min=1)
    deviation = pixel_maps((variance + eps).sqrt(), unit, size)
    return centred / deviation, mean, deviation


State = tuple[BackboneState, Tensor]


class Reconstruction(NamedTuple):
    """Target and prediction of a step."""

    video: Tensor  # (B, T, planes, H, W) target before normalisation
    target: Tensor  # (B, T, planes, H, W) target, normalised patch by patch
    mean: Tensor  # of each pixel's patch; mean and deviation undo the normalisation
    deviation: Tensor
    prediction: Tensor  # (B, T, planes, H, W) prediction of the normalised target
    masked: Tensor  # (B, 1, 1, H, W) bool, True where the events were masked


@METHODS.register_module(name="tespec")
class Tespec(EventMethod):
    """Reconstruct the patch-normalised target video in masked patches, by mean squared error.

    Patches are masked over a complete sequence. The target is the intensity video of all events by
    Eq. 7 or Eq. 6, or the input histograms (paper, table "Reconstruction Target"). The state of a
    lane consists of the backbone's state and the target's state (empty for histograms), both
    carried from step to step.
    """

    row = TableRow(
        title="TESPEC",
        group="TESPEC",
        pretraining_data="1Mpx",
        citation="Mohammadi, Wu, Gilitschenski: TESPEC, ICCV 2025",
        summary=(
            "Masks patches of the event histograms over a complete sequence; a recurrent backbone "
            "reconstructs the intensity video in these patches (Eq. 7), which requires memory."
        ),
    )
    version = 2
    backbone_type = EventSwin
    # Paper, appendix table "TESPEC pre-training stage" and, for the loss, Sec. 4.1, unless a
    # comment says otherwise.
    # The main text has a peak learning rate of 1e-4 and 1.5k warm-up steps; the appendix table
    # (2e-4, 2k) is used.
    recipe = Pretraining(
        objective=TespecSettings(),
        dataset="1mpx",
        recurrent=True,
        segments=15,
        batch_size=8,
        # 1Mpx 720x1280 -> 360x640 as in RVT's archives, keeping one event in four; narrower sensors
        # keep their size
        downsample=Downsample("auto", "nearest", 640),
        # "We sequentially sample the same event stream in consecutive training steps" (paper, Sec.
        # 4.1); its appendix names RVT's loading, where half of the lanes play random clips: mixed.
        sampling="stream",
        optimisation=Optimisation(
            optimizer="Adam",
            peak_lr=2.0e-4,
            schedule="linear",
            start_divisor=25,
            end_divisor=1000,
            steps=400000,
            warmup_steps=2000,
            # as RVT does (config/general.yaml); the paper is silent
            clip=GradientClipping("value", 1.0),
            # No weight decay: the paper is silent; RVT's 0 (config/general.yaml).
        ),
        augmentation=Augmentation(flip=0.5, zoom=0.8),
    )

    def __init__(self, cfg: TespecSettings, backbone: Backbone, bin_seconds: float = 0.005) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        self.bin_seconds = bin_seconds
        planes = 2 * backbone.bins if cfg.target.kind == "histograms" else 1
        self.decoder = build_decoder(cfg.decoder, backbone, planes)
        self.mask_patch = MaskPatch(cfg.mask.unit, backbone)

    @classmethod
    def from_data(cls, data: PretrainData) -> Self:
        mask = data.cfg.mask
        patches = math.prod(grid_size(data.size, mask.unit))
        if mask.ratio and round(mask.ratio * patches) == 0:
            raise UserError(
                "objective.mask.ratio",
                f"{mask.ratio:g} masks none of {patches} patches",
                f"set it to {1 / patches:.3g} or more, or 0 for an autoencoder",
            )
        bin_seconds = data.settings.window_ms / 1000 / data.settings.bins
        return cls(data.cfg, cls.new_backbone(data), bin_seconds)

    def loss(self, batch: Batch, state: State | None) -> tuple[Losses, State]:
        """Compute the losses of a step, with masks drawn anew.

        Returns:
            Losses and state as of `masked_losses`.
        """
        return self.masked_losses(batch, state, self.draw_mask(batch["histograms"]))

    def val_losses(self, batch: Batch, state: State | None) -> tuple[Losses, State]:
        """Compare the losses with the backbone's state carried along a recording or zeroed.

        The target's state is carried in both cases, so the targets are the same. The gap between
        the two losses is the network's gain from its memory.

        Returns:
            The loss with the state carried ("..._carried") and reset at each batch ("..._zeroed"),
            the error of predicting zero ("loss_zero"), and the state.
        """
        mask = self.draw_mask(batch["histograms"])
        zeroed_state = None if state is None else (None, state[1])
        zeroed, _ = self.masked_losses(batch, zeroed_state, mask)
        carried, state = self.masked_losses(batch, state, mask)
        name = self.val_loss
        losses = {f"{name}_carried": carried[name], f"{name}_zeroed": zeroed[name]}
        return losses | {"loss_zero": carried["loss_zero"]}, state

    @property
    def val_loss(self) -> str:
        """Name of the validated loss: of masked pixels, or of all for an autoencoder."""
        return "loss_masked" if self.cfg.mask.ratio else "loss_all"

    def draw_mask(self, histograms: Tensor) -> Tensor:
        """Draw masks (B, rows, columns) bool for histograms (B, T, 2 * bins, H, W)."""
        rows, columns = grid_size(histograms.shape[-2:], self.cfg.mask.unit)
        masks = random_masks(len(histograms), rows, columns, self.cfg.mask.ratio)
        return to_device(masks, histograms.device)

    def masked_losses(
        self, batch: Batch, state: State | None, mask: Tensor
    ) -> tuple[Losses, State]:
        """Compute the losses of a step with a given mask.

        Args:
            batch: "histograms" (B, T, 2 * bins, H, W) uint8 and "is_first" (B,) bool.
            state: of the step before.
            mask: (B, rows, columns) bool, True where patches are masked.

        Returns:
            "loss", which is "loss_masked" + visible_weight * "loss_visible", and "loss_zero", the
            error of predicting zero on the masked pixels; for an autoencoder, "loss" is
            "loss_all", and "loss_zero" is on all pixels. And the detached state.
        """
        step, state = self.reconstruct(batch, state, mask)
        error = (step.prediction - step.target).square()
        scored = step.masked if self.cfg.mask.ratio else ~step.masked
        loss = masked_mean(error, scored)  # first: weighs micro-batches, see `global_mean`
        losses = {"loss": loss, self.val_loss: loss}
        if self.cfg.mask.ratio:
            losses["loss_visible"] = masked_mean(error, ~step.masked)
            losses["loss"] = loss + self.cfg.visible_weight * losses["loss_visible"]
        losses["loss_zero"] = masked_mean(step.target.square(), scored)
        return losses, detach(state)

    def reconstruct(
        self, batch: Batch, state: State | None, mask: Tensor
    ) -> tuple[Reconstruction, State]:
        """Compute target and prediction of a step.

        The arguments are those of `masked_losses`.

        Returns:
            Target and prediction, and the state after the step.
        """
        cfg = self.cfg
        histograms = batch["histograms"]  # (B, T, 2 * bins, H, W)
        size = histograms.shape[-2:]
        backbone_state, target_state = reset(state or (None, None), batch["is_first"])
        video, target_state = self.target(histograms, target_state)
        normalised = (video, video.new_zeros(()), video.new_ones(()))  # target, mean, deviation
        if cfg.patch_norm:
            eps = cfg.patch_eps * cfg.target.contrast**2
            if cfg.target.kind == "histograms":
                eps = cfg.counts_eps
            normalised = normalise_patches(video, cfg.mask.unit, eps)
        features, backbone_state = self.mask_patch.encode(
            self.backbone, histograms, mask, backbone_state
        )
        prediction = crop(self.decoder(features), size).float()
        masked = pixel_maps(mask, cfg.mask.unit, size)[:, None, None]  # (B, 1, 1, H, W)
        step = Reconstruction(video, *normalised, prediction, masked)
        return step, (backbone_state, target_state)

    def target(
        self, histograms: Tensor, state: Tensor | None, kind: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the target before normalisation.

        Args:
            histograms: (B, T, 2 * bins, H, W) uint8.
            state: of the target after the step before.
            kind: overrides the setting `target.kind`.

        Returns:
            The video (B, T, planes, H, W) float32, and the state after it.
        """
        cfg = self.cfg.target
        kind = kind or cfg.kind
        if kind == "histograms":
            return histograms.float(), histograms.new_zeros(len(histograms), 0, dtype=torch.float32)
        estimates: dict[str, Any] = {
            "intensity": partial(estimate_intensity, norm_events=cfg.norm_events),
            "high_pass": estimate_high_pass,
        }
        video, state = in_fp32(estimates[kind])(  # counts exceed half precision
            histograms, state, alpha=cfg.alpha, contrast=cfg.contrast, bin_seconds=self.bin_seconds
        )
        return video.unsqueeze(2), state


def masked_mean(values: Tensor, pixels: Tensor) -> Tensor:
    """Average values over pixels, on all ranks.

    Args:
        values: (B, T, planes, H, W).
        pixels: (B, 1, 1, H, W) bool, True where a pixel counts.
    """
    return global_mean((values * pixels).sum(), pixels.sum() * values.shape[1] * values.shape[2])
