"""TESPEC: masked reconstruction of an intensity video by a recurrent backbone.

Patches of the event histograms are hidden over a whole sequence, and the backbone, which carries its state from step to
step, rebuilds the video of all events there (Mohammadi, Wu, Gilitschenski: TESPEC, ICCV 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import pad

import tespec.pretraining.decoder  # noqa: F401  # registers the decoders
from tespec.core.description import read_description
from tespec.core.distributed import global_mean
from tespec.core.errors import UserError
from tespec.core.registry import METHODS, MODELS, find_registered
from tespec.core.settings import (
    Augmentation,
    Clip,
    Downsample,
    Flag,
    Mask,
    NonNegativeFloat,
    Optimisation,
    PositiveFloat,
    Pretraining,
)
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.models.backbone import BackboneState, detach, reset
from tespec.models.event_swin import EventSwin
from tespec.models.layers import crop, in_fp32
from tespec.pretraining.held_out import draw_held_out, held_out_losses
from tespec.pretraining.masking import MaskPatch, check_mask_unit, replace_hidden
from tespec.pretraining.method import EventMethod


@dataclass(frozen=True)
class Target:
    """What is rebuilt, and the constants of the intensity."""

    # By Eq. 7, by Eq. 6, by Eq. 7 without n / N, or the input itself.
    kind: Literal["intensity", "high_pass", "uniform_decay", "histograms"]
    alpha: NonNegativeFloat  # 1/s; decay of the intensity
    norm_events: PositiveFloat  # N, events per frame for which it decays with alpha
    contrast: PositiveFloat  # C, log intensity; step of one event


@dataclass(frozen=True)
class TespecSettings:
    """Settings of what is hidden, what is rebuilt, and by what.

    Raises:
        UserError: a mask unit that is not made of whole tokens.
    """

    mask: Mask  # ratio 0: nothing is hidden, and the loss is on all patches (paper, table "Masking Ratio")
    target: Target
    decoder: dict[str, Any]  # "type" and settings of a registered decoder
    patch_norm: Flag  # normalise the target patch by patch
    patch_eps: NonNegativeFloat  # C squared; added to a patch's variance
    counts_eps: NonNegativeFloat  # the same where the target is histograms, in squared counts
    visible_weight: NonNegativeFloat  # of the error on visible patches; 0 in the paper

    def __post_init__(self) -> None:
        check_mask_unit(self.mask)

    @property
    def autoencoding(self) -> bool:
        """Whether nothing is hidden."""
        return self.mask.ratio == 0


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


@METHODS.register_module(name="tespec")
class Tespec(EventMethod):
    """Mean squared error between the decoder's image and the patch-normalised target video.

    The target is the intensity video by Eq. 7 or by Eq. 6, or the input's own histograms (paper, table "Reconstruction
    Target"). The state of a lane is the backbone's state and the target's, as `estimate_intensity` or
    `estimate_high_pass` carry it, which is empty for histograms; both go from step to step.

    Args:
        own: its settings.
        backbone: what is pre-trained.
        bin_seconds: duration of a bin.
    """

    title = "TESPEC"
    group = "TESPEC"
    pretraining_data = "1Mpx"
    citation = "Mohammadi, Wu, Gilitschenski: TESPEC, ICCV 2025"
    summary = (
        "Patches of the event histograms are hidden over a whole sequence and a recurrent backbone rebuilds the "
        "intensity video there (Eq. 7), so that it must remember what it saw."
    )
    loss_is = "mean squared error of the rebuilt target"
    masks_patches = True
    # Paper, appendix table "TESPEC pre-training stage" and, of the loss, Sec. 4.1, unless a comment says otherwise.
    # The main text says a peak learning rate of 1e-4 and 1.5k warm-up steps; the appendix table (2e-4, 2k) wins.
    recipe = Pretraining(
        objective=TespecSettings(
            mask=Mask(32, 0.5),
            # Contrast cancels in the patch normalisation, the paper gives no value. n of Eq. 7 counts the events of the
            # network's input: after downsampling, which keeps one event of four, after flip and zoom, after clipping
            # at 10. The paper: "the number of events n triggered during the entire dt". See docs/pretraining.md.
            target=Target("intensity", alpha=5.0, norm_events=5000.0, contrast=1.0),
            decoder={"type": "LastStageDecoder"},
            patch_norm=True,
            patch_eps=1.0e-6,  # the reference MAE code's
            counts_eps=1.0e-6,  # likewise
            visible_weight=0.0,
        ),
        dataset="1mpx",
        recurrent=True,
        segments=15,
        batch_size=8,
        # 1Mpx 720x1280 -> 360x640 as in RVT's archives: of four events one is kept; narrower sensors stay whole
        downsample=Downsample("auto", "nearest", 640),
        # "We sequentially sample the same event stream in consecutive training steps" (paper, Sec. 4.1); its appendix
        # names RVT's loading, of which half of the lanes play random clips: mixed.
        sampling="streams",
        drop_path=0.0,  # the paper is silent, RVT has none (config/model/maxvit_yolox/default.yaml)
        optimisation=Optimisation(
            optimizer="Adam",
            peak_lr=2.0e-4,
            schedule="linear",
            start_divisor=25,
            end_divisor=1000,
            steps=400000,
            warmup_steps=2000,
            clip=Clip("value", 1.0),  # as RVT does (config/general.yaml); the paper is silent
            # No weight decay: the paper is silent; RVT's 0 (config/general.yaml).
        ),
        augmentation=Augmentation(flip=0.5, zoom=0.8),
    )
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sample": {
            "objective": {
                "mask": {"unit": 16},
                "target": {"norm_events": 3000.0},
                "decoder": {"type": "AllStagesDecoder"},
                "patch_eps": 0.05,
                "counts_eps": 1.0e-4,  # of the patches' variance as much as 0.05 is of intensity's
                "visible_weight": 0.5,
            },
        },
        "small": {"optimisation": {"peak_lr": 2.5e-4}},  # the best of four by validation loss
    }

    def __init__(self, own: TespecSettings, backbone: EventSwin, bin_seconds: float = 0.005) -> None:
        super().__init__()
        self.own = own
        self.backbone = backbone
        target = own.target
        planes = 2 * backbone.bins if target.kind == "histograms" else 1
        made_for = {"channels": backbone.channels, "img_size": backbone.img_size, "planes": planes}
        self.decoder = MODELS.build({**own.decoder, **made_for, "_scope_": MODELS.scope})
        self.mask_patch = MaskPatch(own.mask.unit, 2 * backbone.bins)
        constants: dict[str, Any] = {"alpha": target.alpha, "contrast": target.contrast, "bin_seconds": bin_seconds}
        norm_events = target.norm_events if target.kind == "intensity" else None
        self._estimate = (
            partial(estimate_high_pass, **constants)
            if target.kind == "high_pass"
            else partial(estimate_intensity, **constants, norm_events=norm_events)
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
        error, zero, pixels, state = self._errors(batch, state)
        hidden = batch["mask"].unsqueeze(1)
        if self.own.autoencoding:
            everywhere = pixels.expand_as(hidden)
            loss = _mean(error, everywhere)
            return {"loss": loss, "loss_all": loss, "loss_zero": _mean(zero, everywhere)}, detach(state)
        masked = _mean(error, pixels * hidden)
        visible = _mean(error, pixels * ~hidden)
        losses = {
            "loss": masked + self.own.visible_weight * visible,
            "loss_masked": masked,
            "loss_visible": visible,
            "loss_zero": _mean(zero, pixels * hidden),
        }
        return losses, detach(state)

    def _errors(
        self, batch: dict[str, Tensor], state: ObjectiveState | None
    ) -> tuple[Tensor, Tensor, Tensor, ObjectiveState]:
        """Squared errors of prediction and zero (B, T, rows, cols), pixels of each patch (rows, cols), the state."""
        video, patches, state = self._run(batch, state)
        error = (patches.prediction - patches.target).square().sum(-1)
        return error, patches.target.square().sum(-1), self._inside(video).sum(-1), state

    @torch.no_grad()
    def reconstruct(
        self, batch: dict[str, Tensor], state: ObjectiveState | None
    ) -> tuple[Reconstruction, ObjectiveState]:
        """Target and prediction of a step as images; arguments as for `loss`."""
        video, patches, state = self._run(batch, state)
        pixel_mask = batch["mask"].unsqueeze(-1).expand(-1, -1, -1, self.own.mask.unit**2)
        reconstruction = Reconstruction(
            video=_image(video),
            target=_image(self._maps(patches.target, video)),
            mask=unpatchify(pixel_mask, self.own.mask.unit, _size(video)),
            prediction=_image(self._maps(patches.prediction * patches.deviation + patches.mean, video)),
        )
        return reconstruction, state

    def _run(self, batch: dict[str, Tensor], state: ObjectiveState | None) -> tuple[Tensor, _Patches, ObjectiveState]:
        """Target video (B, T, planes, H, W), its patches and the predicted ones, and the state after the step."""
        backbone_state, target_state = (None, None) if state is None else reset(state, batch["fresh"])
        histograms, mask = batch["histograms"], batch["mask"]
        units = tuple(-(-side // self.own.mask.unit) for side in histograms.shape[-2:])
        if mask.shape[1:] != units:
            raise ValueError(f"a mask of {tuple(mask.shape[1:])} units does not cover an image of {units}")
        video, target_state = self._target(histograms, target_state)
        tokens = replace_hidden(self.backbone.embed(histograms), mask, self.backbone.embed_patches(self.mask_patch()))
        features, backbone_state = self.backbone.encode(tokens, backbone_state)
        prediction = self._patches(crop(self.decoder(features), _size(video)).float())
        return video, _Patches(*self._normalised(video), prediction), (backbone_state, target_state)

    def _target(self, histograms: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.own.target.kind == "histograms":
            return histograms.float(), histograms.new_zeros(len(histograms), 0, dtype=torch.float32)
        video, state = in_fp32(self._estimate)(histograms, state)  # counts leave the range of half precision
        return video.unsqueeze(2), state

    def _normalised(self, video: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Target patches, mean and deviation."""
        patches = self._patches(video)
        if not self.own.patch_norm:
            return patches, patches.new_zeros(()), patches.new_ones(())
        own = self.own
        eps = own.counts_eps if own.target.kind == "histograms" else own.patch_eps * own.target.contrast**2
        return normalise_patches(patches, self._inside(video), eps)

    def _patches(self, video: Tensor) -> Tensor:
        """(B, T, planes, H, W) as (B, T, rows, cols, planes * unit * unit)."""
        return patchify(video, self.own.mask.unit).movedim(2, -2).flatten(-2)

    def _maps(self, patches: Tensor, video: Tensor) -> Tensor:
        """What `_patches` was given, of the size of `video`."""
        planes = patches.unflatten(-1, (video.shape[2], -1)).movedim(-2, 2)
        return unpatchify(planes, self.own.mask.unit, _size(video))

    def _inside(self, video: Tensor) -> Tensor:
        """(rows, cols, planes * unit * unit): 1 for a pixel of the image, 0 for one that fills a patch up."""
        return pixels_inside(_size(video), self.own.mask.unit, video.device).repeat(1, 1, video.shape[2])

    @classmethod
    def mask(cls, own: TespecSettings) -> Mask:
        """How masks are drawn."""
        return own.mask

    @classmethod
    def from_settings(cls, own: TespecSettings, settings: Pretraining, data: Any) -> Self:
        """The method with a randomly initialised backbone.

        Raises:
            UserError: an unknown decoder, or a share of patches that masks none.
        """
        find_registered(MODELS, str(own.decoder.get("type", "")), "objective.decoder.type")
        units = math.prod(-(-side // own.mask.unit) for side in data.size)
        if not own.autoencoding and round(own.mask.ratio * units) == 0:
            what = f"{own.mask.ratio:g} of {units} patches is none"
            raise UserError("objective.mask.ratio", what, f"give {1 / units:.3g} or more, or 0 for an autoencoder")
        backbone: Any = cls.new_backbone(settings, data)
        return cls(own, backbone, settings.window_ms / 1000 / settings.bins)

    @property
    def _scored(self) -> str:
        return "loss_all" if self.own.autoencoding else "loss_masked"

    def protocol(self, data: Any) -> dict[str, str]:
        """What the validation metrics mean, in words."""
        own = self.own
        rebuilt = f"{own.target.kind} target{', normalised patch by patch' if own.patch_norm else ''}"
        where = "all patches: nothing is hidden" if own.autoencoding else "the hidden patches"
        if own.visible_weight and not own.autoencoding:
            where += f", plus {own.visible_weight:g} times that on the visible ones"
        return super().protocol(data) | {
            "loss": f"mean squared error of the {rebuilt}, on {where}",
            f"{self._scored}_carried": "backbone state carried from chunk to chunk",
            f"{self._scored}_zeroed": "backbone state zeroed at each chunk, the target's state carried",
            "loss_zero": "zero predicted everywhere",
        }

    def validate(self, data: Any, device: torch.device) -> dict[str, float]:
        """Loss with and without the carried state, and feature metrics."""
        losses = held_out_losses(self, data.chunks(device), self._scored)
        return losses | self.validation_metrics(data, device, scored=False)

    def draw(self, data: Any, device: torch.device, path: Path) -> None:
        """Two moments of the validation recordings."""
        sample = data.root.is_dir() and read_description(data.root).data == "sample"
        titles = ("moving", "standing") if sample else ("busy", "quiet")
        draw_held_out(self, data.chunks(device), path, titles)


def _image(video: Tensor) -> Tensor:
    """(B, T, H, W) of planes (B, T, planes, H, W): the only one, or positive minus negative counts."""
    bins = video.shape[2] // 2
    return video[:, :, bins:].sum(2) - video[:, :, :bins].sum(2)


def _size(video: Tensor) -> tuple[int, int]:
    return video.shape[-2], video.shape[-1]


def _mean(sums: Tensor, pixels: Tensor) -> Tensor:
    """Mean per pixel, given sums per patch (B, T, rows, cols) and the pixels that count in each (B, 1, rows, cols)."""
    return global_mean((sums * (pixels > 0)).sum(), pixels.sum() * sums.shape[1])
