"""TESPEC's objective: rebuild a video where the events of a whole sequence are hidden."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

import tespec.pretraining.decoder  # noqa: F401  # registers the decoders
from tespec.core.distributed import global_mean
from tespec.core.errors import UserError
from tespec.core.registry import MODELS, OBJECTIVES, find_registered
from tespec.core.settings import Mask, Target
from tespec.datasets.description import read_description
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.models.backbone import BackboneState, detach, reset
from tespec.models.event_swin import PATCH, EventSwin
from tespec.models.layers import STRIDE, crop
from tespec.pictures.drawing import Moment, draw_moments
from tespec.pretraining.masking import MaskPatch, replace_hidden
from tespec.pretraining.objective import EventObjective, HeldOut, held_out_losses

__all__ = ["MaskedReconstruction", "Reconstruction"]


def patchify(maps: Tensor, unit: int) -> Tensor:
    """(..., H, W) as (..., rows, cols, unit * unit), filled up with zeros at the right and the bottom."""
    height, width = maps.shape[-2:]
    maps = pad(maps, (0, -width % unit, 0, -height % unit))
    return maps.unflatten(-1, (-1, unit)).unflatten(-3, (-1, unit)).transpose(-3, -2).flatten(-2)


def unpatchify(patches: Tensor, unit: int, size: tuple[int, int]) -> Tensor:
    """The (..., H, W) maps of `size` that `patchify` was given."""
    maps = patches.unflatten(-1, (unit, unit)).transpose(-3, -2).flatten(-4, -3).flatten(-2)
    return maps[..., : size[0], : size[1]]


def pixels_inside(size: tuple[int, int], unit: int, device: torch.device) -> Tensor:
    """(rows, cols, unit * unit) float32: 1 for a pixel of the (H, W) image, 0 for one that fills a patch up."""
    return patchify(torch.ones(size, device=device), unit)


def normalise_patches(patches: Tensor, inside: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Patches of mean 0 and variance 1: (x - mean) / sqrt(variance + eps), with the unbiased variance.

    As in the reference code of masked autoencoders, facebookresearch/mae, where eps is 1e-6. Pixels outside of the
    image neither count nor change.

    Args:
        patches: (..., rows, cols, P) float32, 0 outside of the image.
        inside: (rows, cols, P) of `pixels_inside`.
        eps: added to the variance, in squared units of `patches`; keeps the noise of almost constant patches small.

    Returns:
        normalised patches (..., rows, cols, P), and mean and deviation (..., rows, cols, 1) to undo it with.
    """
    count = inside.sum(-1, keepdim=True)
    mean = patches.sum(-1, keepdim=True) / count
    centred = (patches - mean) * inside
    variance = centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)
    deviation = (variance + eps).sqrt()
    return centred / deviation, mean, deviation


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
    return global_mean((sums * (pixels > 0)).sum(), pixels.sum() * sums.shape[1])


MOVING, QUIET = 0.8, 0.1  # quantiles of the number of events in a segment


class _Place(NamedTuple):
    """A segment of the chunks played, its number of events, and how much the target shows there."""

    chunk: int
    segment: int
    events: int
    contrast: float


def draw_held_out(
    model: Any,
    held_out: HeldOut,
    path: Path,
    target: Target,
    titles: tuple[str, str] = ("busy", "quiet"),
) -> None:
    """Draw a busy moment and a quiet one, the model's state carried from the start of their recordings.

    The busy one is the segment at the 80th percentile of events. The quiet one is, of the tenth of the segments with
    the fewest events, the one at which most was seen before.

    Args:
        model: an objective with `reconstruct`.
        held_out: recordings with at least one chunk.
        path: the PNG to write.
        target: what is rebuilt, and the constants of the intensity.
        titles: what the two rows are called.
    """
    model.eval()
    chosen = _choose(model, held_out)
    moments: dict[_Place, Moment] = {}
    state: Any = None
    filtered: torch.Tensor | None = None
    seconds = held_out.settings.window_ms / 1000 / held_out.settings.bins
    for number, chunk in enumerate(held_out):
        reconstruction, state = model.reconstruct(chunk.batch, state)
        high_pass, filtered = estimate_high_pass(
            chunk.batch["histograms"],
            reset(filtered, chunk.batch["fresh"]),
            alpha=target.alpha,
            contrast=target.contrast,
            bin_seconds=seconds,
        )
        for title, place in zip(titles, chosen, strict=True):
            if place.chunk == number:
                moments[place] = Moment(
                    title=f"{title}, {place.events:,} events",
                    histogram=chunk.batch["histograms"][0, place.segment].cpu().numpy(),
                    high_pass=_image_moments(high_pass[0, place.segment]),
                    target=_image_moments(reconstruction.video[0, place.segment]),
                    mask=reconstruction.mask[0].cpu().numpy(),
                    reconstruction=_image_moments(reconstruction.prediction[0, place.segment]),
                )
    draw_moments([moments[place] for place in chosen], path, target.kind)


def _choose(model: Any, held_out: HeldOut) -> tuple[_Place, _Place]:
    places = []
    state: Any = None
    for number, chunk in enumerate(held_out):
        reconstruction, state = model.reconstruct(chunk.batch, state)
        events = chunk.batch["histograms"][0].flatten(1).sum(-1, dtype=torch.int64).tolist()
        contrast = reconstruction.video[0].flatten(1).std(dim=1).tolist()
        places += [_Place(number, segment, *pair) for segment, pair in enumerate(zip(events, contrast, strict=True))]
    by_events = sorted(places, key=lambda place: place.events)
    quiet = by_events[: max(1, int(QUIET * len(by_events)))]
    return by_events[int(MOVING * (len(by_events) - 1))], max(quiet, key=lambda place: place.contrast)


def _image_moments(frame: torch.Tensor) -> NDArray[np.float32]:
    return frame.float().cpu().numpy()


@dataclass(frozen=True)
class MaskedSettings:
    """See `MaskedReconstruction`; `patch_eps` is in units of C squared."""

    mask: Mask
    target: Target
    decoder: dict[str, Any]
    patch_norm: bool
    patch_eps: float
    visible_weight: float


@OBJECTIVES.register_module(name="masked_reconstruction")
class MaskedReconstructionTask(EventObjective):
    """TESPEC's objective."""

    settings_type = MaskedSettings
    loss_is = "mean squared error of the rebuilt target"

    def masks(self) -> Mask:
        """How masks are drawn."""
        mask: Mask = self.own.mask
        return mask

    def network(self) -> MaskedReconstruction:
        """The objective with a fresh backbone."""
        own, settings = self.own, self.settings
        find_registered(MODELS, str(own.decoder.get("type", "")), "objective.decoder.type")
        network = MaskedReconstruction(
            self.swin(),
            own.decoder,
            target=own.target.kind,
            mask_unit=own.mask.unit,
            alpha=own.target.alpha,
            norm_events=own.target.norm_events,
            contrast=own.target.contrast,
            bin_seconds=settings.window_ms / 1000 / settings.bins,
            patch_norm=own.patch_norm,
            eps=own.patch_eps,
            visible_weight=own.visible_weight,
            autoencoding=self._autoencoding,
        )
        units = math.prod(-(-side // own.mask.unit) for side in self.size)
        if not self._autoencoding and round(own.mask.ratio * units) == 0:
            what = f"{own.mask.ratio:g} of {units} patches is none"
            raise UserError("objective.mask.ratio", what, f"give {1 / units:.3g} or more, or 0 for an autoencoder")
        return network

    @property
    def _autoencoding(self) -> bool:
        return bool(self.own.mask.ratio == 0)

    @property
    def _scored(self) -> str:
        return "loss_all" if self._autoencoding else "loss_masked"

    def protocol(self) -> dict[str, str]:
        """What the numbers mean, in words."""
        own = self.own
        rebuilt = f"{own.target.kind} target{', normalised patch by patch' if own.patch_norm else ''}"
        where = "all patches: nothing is hidden" if self._autoencoding else "the hidden patches"
        if own.visible_weight and not self._autoencoding:
            where += f", plus {own.visible_weight:g} times that on the visible ones"
        return super().protocol() | {
            "loss": f"mean squared error of the {rebuilt}, on {where}",
            f"{self._scored}_carried": "backbone state carried from chunk to chunk",
            f"{self._scored}_zeroed": "backbone state zeroed at each chunk, the target's state carried",
            "loss_zero": "zero predicted everywhere",
        }

    def evaluate(self, model: Any, device: torch.device) -> dict[str, float]:
        """What the state is worth, and how features spread."""
        spread = super().evaluate(model, device)
        return held_out_losses(model, self.chunks(device), self._scored) | {
            name: value for name, value in spread.items() if name != "loss"
        }

    def draw(self, model: Any, device: torch.device, path: Path) -> bool:
        """Two moments of the recordings held out."""
        sample = self.root.is_dir() and read_description(self.root).data == "sample"
        titles = ("moving", "standing") if sample else ("busy", "quiet")
        draw_held_out(model, self.chunks(device), path, self.own.target, titles)
        return True
