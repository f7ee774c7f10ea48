"""TESPEC's objective: rebuild a video where the events of a whole sequence are hidden."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import tespec.pretraining.decoder  # noqa: F401  # registers the decoders
from tespec.errors import UserError
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.models.backbone import BackboneState
from tespec.models.event_swin import PATCH, EventSwin
from tespec.models.padding import STRIDE, crop
from tespec.models.state import detach, reset
from tespec.pretraining.masking import MaskPatch, replace_hidden
from tespec.pretraining.patches import normalise_patches, patchify, pixels_inside, unpatchify
from tespec.processes import averaged
from tespec.registry import MODELS

ObjectiveState = tuple[BackboneState | None, Tensor]
TARGETS = ("intensity", "high_pass", "uniform_decay", "histograms")


class Reconstruction(NamedTuple):
    """What a step had to draw and what it drew, for pictures; all of the size of the unpadded image."""

    video: Tensor
    """(B, T, H, W) the target before normalisation; of histograms, positive minus negative counts."""
    target: Tensor
    """(B, T, H, W) target, normalised patch by patch."""
    mask: Tensor
    """(B, H, W) bool, True where the events were hidden."""
    prediction: Tensor
    """(B, T, H, W) prediction, with the mean and the deviation of the target's patches put back."""


class _Patches(NamedTuple):
    """Target (B, T, rows, cols, planes * unit * unit), what undoes its normalisation, and prediction, shaped alike."""

    target: Tensor
    mean: Tensor
    deviation: Tensor
    prediction: Tensor


@MODELS.register_module()
class MaskedReconstruction(nn.Module):
    """Mean squared error between the decoder's image and the patch-normalised target video.

    The target is the intensity video by Eq. 7 or by Eq. 6, or the input's own histograms (paper, table "Reconstruction
    Target"). The state of a lane is the backbone's state and the target's, as `estimate_intensity` or
    `estimate_high_pass` carry it, which is empty for histograms; both go from step to step.

    Args:
        backbone: what is pre-trained.
        decoder: "type" and settings of a registered decoder, which is built with the backbone's `channels` and
            `img_size`.
        target: "intensity" (Eq. 7), "high_pass" (Eq. 6), "uniform_decay" (Eq. 7 without n / N) or "histograms".
        mask_unit: side of a mask unit and of a target patch in px: 4, 8, 16 or 32.
        alpha: decay of the intensity, 1/s.
        norm_events: N, events per frame for which it decays with alpha.
        contrast: C, intensity step of one event.
        bin_seconds: duration of a bin.
        patch_norm: normalise the target patch by patch.
        eps: added to a patch's variance, in units of C squared.
        visible_weight: weight of the error on visible patches; 0 in the paper.
        autoencoding: nothing is hidden, and the loss is on all patches (paper, table "Masking Ratio", 0 %).
        shared_over_channels: one mask patch for all channels.

    Raises:
        UserError: a mask unit or a target that is none of those.
    """

    def __init__(
        self,
        backbone: EventSwin,
        decoder: Mapping[str, Any],
        target: str = "intensity",
        mask_unit: int = 32,
        alpha: float = 5.0,
        norm_events: float = 5000.0,
        contrast: float = 1.0,
        bin_seconds: float = 0.005,
        patch_norm: bool = True,
        eps: float = 1e-6,
        visible_weight: float = 0.0,
        autoencoding: bool = False,
        shared_over_channels: bool = True,
    ) -> None:
        super().__init__()
        if mask_unit % PATCH or mask_unit <= 0 or STRIDE % mask_unit:
            raise UserError(
                "objective.mask.unit", f"{mask_unit} px is not made of whole tokens", "choose 4, 8, 16 or 32"
            )
        if target not in TARGETS:
            raise UserError("objective.target.kind", f"unknown value {target!r}", f"choose from {', '.join(TARGETS)}")
        self.backbone = backbone
        self.target = target
        planes = 2 * backbone.bins if target == "histograms" else 1
        made_for = {"channels": backbone.channels, "img_size": backbone.img_size, "planes": planes}
        self.decoder = MODELS.build({**decoder, **made_for, "_scope_": MODELS.scope})
        self.mask_patch = MaskPatch(mask_unit, 2 * backbone.bins, shared_over_channels)
        self.mask_unit = mask_unit
        self.patch_norm = patch_norm
        self.eps = eps * contrast**2
        self.visible_weight = visible_weight
        self.autoencoding = autoencoding
        constants: dict[str, Any] = {"alpha": alpha, "contrast": contrast, "bin_seconds": bin_seconds}
        self._estimate = (
            partial(estimate_high_pass, **constants)
            if target == "high_pass"
            else partial(estimate_intensity, **constants, norm_events=norm_events if target == "intensity" else None)
        )

    def loss(self, batch: dict[str, Tensor], state: ObjectiveState | None) -> tuple[dict[str, Tensor], ObjectiveState]:
        """Losses of a step; pixels outside of the image count in none.

        Args:
            batch: histograms (B, T, 2 * bins, H, W), fresh (B,) bool, mask (B, ceil(H / unit), ceil(W / unit)) bool.
            state: what the step before returned, None at the start.

        Returns:
            "loss", which is "loss_masked" + visible_weight * "loss_visible", and "loss_zero", what predicting zero
            costs on the hidden pixels; of an autoencoder "loss", which is "loss_all", and "loss_zero" on all pixels;
            and the detached state.

        Raises:
            ValueError: a mask of another size.
        """
        video, patches, state = self._run(batch, state)
        pixels = self._inside(video).sum(-1)
        error = (patches.prediction - patches.target).square().sum(-1)
        zero = patches.target.square().sum(-1)
        hidden = batch["mask"].unsqueeze(1)
        if self.autoencoding:
            everywhere = pixels.expand_as(hidden)
            loss = _mean(error, everywhere)
            return {"loss": loss, "loss_all": loss, "loss_zero": _mean(zero, everywhere)}, detach(state)
        masked = _mean(error, pixels * hidden)
        visible = _mean(error, pixels * ~hidden)
        losses = {
            "loss": masked + self.visible_weight * visible,
            "loss_masked": masked,
            "loss_visible": visible,
            "loss_zero": _mean(zero, pixels * hidden),
        }
        return losses, detach(state)

    @torch.no_grad()
    def reconstruct(
        self, batch: dict[str, Tensor], state: ObjectiveState | None
    ) -> tuple[Reconstruction, ObjectiveState]:
        """Target and prediction of a step as images; arguments as for `loss`."""
        video, patches, state = self._run(batch, state)
        pixel_mask = batch["mask"].unsqueeze(-1).expand(-1, -1, -1, self.mask_unit**2)
        reconstruction = Reconstruction(
            video=_image(video),
            target=_image(self._maps(patches.target, video)),
            mask=unpatchify(pixel_mask, self.mask_unit, _size(video)),
            prediction=_image(self._maps(patches.prediction * patches.deviation + patches.mean, video)),
        )
        return reconstruction, state

    def _run(self, batch: dict[str, Tensor], state: ObjectiveState | None) -> tuple[Tensor, _Patches, ObjectiveState]:
        """Target video (B, T, planes, H, W), its patches and the predicted ones, and the state after the step."""
        backbone_state, target_state = (None, None) if state is None else reset(state, batch["fresh"])
        histograms, mask = batch["histograms"], batch["mask"]
        units = tuple(-(-side // self.mask_unit) for side in histograms.shape[-2:])
        if mask.shape[1:] != units:
            raise ValueError(f"a mask of {tuple(mask.shape[1:])} units does not cover an image of {units}")
        video, target_state = self._target(histograms, target_state)
        tokens = replace_hidden(self.backbone.embed(histograms), mask, self.backbone.embed_patches(self.mask_patch()))
        features, backbone_state = self.backbone.encode(tokens, backbone_state)
        prediction = self._patches(crop(self.decoder(features), _size(video)).float())
        return video, _Patches(*self._normalised(video), prediction), (backbone_state, target_state)

    def _target(self, histograms: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.target == "histograms":
            return histograms.float(), histograms.new_zeros(len(histograms), 0, dtype=torch.float32)
        with torch.autocast(histograms.device.type, enabled=False):  # counts leave the range of half precision
            video, state = self._estimate(histograms, state)
        return video.unsqueeze(2), state

    def _normalised(self, video: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Target patches, mean and deviation."""
        patches = self._patches(video)
        if not self.patch_norm:
            return patches, patches.new_zeros(()), patches.new_ones(())
        return normalise_patches(patches, self._inside(video), self.eps)

    def _patches(self, video: Tensor) -> Tensor:
        """(B, T, planes, H, W) as (B, T, rows, cols, planes * unit * unit)."""
        return patchify(video, self.mask_unit).movedim(2, -2).flatten(-2)

    def _maps(self, patches: Tensor, video: Tensor) -> Tensor:
        """What `_patches` was given, of the size of `video`."""
        planes = patches.unflatten(-1, (video.shape[2], -1)).movedim(-2, 2)
        return unpatchify(planes, self.mask_unit, _size(video))

    def _inside(self, video: Tensor) -> Tensor:
        """(rows, cols, planes * unit * unit): 1 for a pixel of the image, 0 for one that fills a patch up."""
        return pixels_inside(_size(video), self.mask_unit, video.device).repeat(1, 1, video.shape[2])


def _image(video: Tensor) -> Tensor:
    """(B, T, H, W) of planes (B, T, planes, H, W): the only one, or positive minus negative counts."""
    bins = video.shape[2] // 2
    return video[:, :, bins:].sum(2) - video[:, :, :bins].sum(2)


def _size(video: Tensor) -> tuple[int, int]:
    return video.shape[-2], video.shape[-1]


def _mean(sums: Tensor, pixels: Tensor) -> Tensor:
    """Mean per pixel, given sums per patch (B, T, rows, cols) and the pixels that count in each (B, 1, rows, cols)."""
    return averaged((sums * (pixels > 0)).sum(), pixels.sum() * sums.shape[1])
