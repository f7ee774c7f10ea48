"""TESPEC: masked reconstruction of an intensity video by a recurrent backbone (Mohammadi et al., ICCV 2025)."""

import math
from dataclasses import field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import avg_pool2d
from typing_extensions import Self

from tespec.core import settings as cfg
from tespec.core.distributed import global_mean
from tespec.core.errors import UserError
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.models.backbone import Backbone, BackboneState, detach, reset
from tespec.models.layers import crop, in_fp32
from tespec.pretraining.masking import MaskPatch, build_decoder, pixel_maps
from tespec.pretraining.method import EventMethod
from tespec.registry import METHODS

BUSY, QUIET = 0.8, 0.1  # quantiles of events per segment, for the figure


@dataclass(frozen=True)
class Target:
    """Reconstruction target and constants of the intensity estimate; defaults of the paper, Sec. 4.1."""

    # by Eq. 7, by Eq. 6, or the input itself
    kind: Literal["intensity", "high_pass", "histograms"] = "intensity"
    alpha: cfg.NonNegativeFloat = 5.0  # 1/s; decay of the intensity
    # N: with this many events per frame, the intensity decays with alpha. The n of Eq. 7 counts
    # events in the network's input: after downsampling (which keeps one event in four), flip, zoom
    # and clipping at 10. The paper: "the number of events n triggered during the entire dt". See
    # docs/pretraining.md.
    norm_events: cfg.PositiveFloat = 5000.0
    # C, the log-intensity step of one event. Patch normalisation cancels it, and the paper
    # specifies no value.
    contrast: cfg.PositiveFloat = 1.0


@dataclass(frozen=True)
class TespecSettings:
    """Settings of masks, target, decoder and loss; defaults of the paper, Sec. 4.1."""

    # Ratio 0: nothing is masked, and the loss is on all pixels (paper, table "Masking Ratio").
    mask: cfg.Mask = cfg.Mask(32, 0.5)
    target: Target = Target()
    # Type and arguments. The paper gives 3.7 M parameters, but not the layout; see
    # docs/pretraining.md, Fidelity.
    decoder: dict[str, Any] = field(default_factory=lambda: {"type": "LastStageDecoder"})
    patch_norm: cfg.Flag = True  # normalise the target patch by patch
    # added to a patch's variance, in C squared; the reference MAE code's
    patch_eps: cfg.NonNegativeFloat = 1.0e-6
    counts_eps: cfg.NonNegativeFloat = 1.0e-6  # the same for histogram targets, in squared counts
    visible_weight: cfg.NonNegativeFloat = 0.0  # weight of the error on visible pixels


def normalise_patches(video: Tensor, unit: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each patch to mean 0 and variance 1: (x - mean) / sqrt(variance + eps), with the unbiased variance.

    As in facebookresearch/mae; `eps`, in squared units of `video` (1e-6 there), keeps the noise of
    nearly constant patches small. A patch of `unit` px spans all planes of the video (B, T, planes,
    H, W); patches at the right and the bottom may be smaller. Returns also mean and deviation (B,
    T, 1, H, W) of each pixel's patch.
    """
    size, planes = (video.shape[-2], video.shape[-1]), video.shape[2]

    def patch_sums(maps: Tensor) -> Tensor:
        return avg_pool2d(maps.sum(2), unit, ceil_mode=True, divisor_override=1).unsqueeze(2)

    count = patch_sums(torch.ones(1, 1, planes, *size, device=video.device))
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
    """Mean squared error between the decoder's image and the patch-normalised target video, in masked patches.

    Patches are masked over a complete sequence. The target is the intensity video of all events by
    Eq. 7 or Eq. 6, or the input histograms (paper, table "Reconstruction Target"). A lane's state
    consists of the backbone's state and the target's state (empty for histograms), both carried
    from step to step.
    """

    title = "TESPEC"
    group = "TESPEC"
    pretraining_data = "1Mpx"
    citation = "Mohammadi, Wu, Gilitschenski: TESPEC, ICCV 2025"
    summary = (
        "Masks patches of the event histograms over a complete sequence; a recurrent backbone reconstructs the "
        "intensity video in these patches (Eq. 7), which requires memory."
    )
    masks_patches = True
    # Paper, appendix table "TESPEC pre-training stage" and, for the loss, Sec. 4.1, unless a
    # comment says otherwise.
    # The main text has a peak learning rate of 1e-4 and 1.5k warm-up steps; the appendix table
    # (2e-4, 2k) is used.
    recipe = cfg.Pretraining(
        objective=TespecSettings(),
        dataset="1mpx",
        recurrent=True,
        segments=15,
        batch_size=8,
        # 1Mpx 720x1280 -> 360x640 as in RVT's archives, keeping one event in four; narrower sensors
        # keep their size
        downsample=cfg.Downsample("auto", "nearest", 640),
        # "We sequentially sample the same event stream in consecutive training steps" (paper, Sec.
        # 4.1); its appendix names RVT's loading, where half of the lanes play random clips: mixed.
        sampling="stream",
        optimisation=cfg.Optimisation(
            optimizer="Adam",
            peak_lr=2.0e-4,
            schedule="linear",
            start_divisor=25,
            end_divisor=1000,
            steps=400000,
            warmup_steps=2000,
            clip=cfg.Clip("value", 1.0),  # as RVT does (config/general.yaml); the paper is silent
            # No weight decay: the paper is silent; RVT's 0 (config/general.yaml).
        ),
        augmentation=cfg.Augmentation(flip=0.5, zoom=0.8),
    )

    def __init__(self, own: TespecSettings, backbone: Backbone, bin_seconds: float = 0.005) -> None:
        super().__init__()
        self.own, self.backbone, self.bin_seconds = own, backbone, bin_seconds
        planes = 2 * backbone.bins if own.target.kind == "histograms" else 1
        self.decoder = build_decoder(own.decoder, backbone, planes)
        self.mask_patch = MaskPatch(own.mask.unit, 2 * backbone.bins)

    def loss(
        self, batch: dict[str, Tensor], state: State | None
    ) -> tuple[dict[str, Tensor], State]:
        """Losses of a step, and the detached state.

        "loss" is "loss_masked" + visible_weight * "loss_visible"; "loss_zero" is the error of
        predicting zero on the masked pixels. For an autoencoder, "loss" is "loss_all", and
        "loss_zero" is on all pixels.
        """
        step, state = self.reconstruct(batch, state)
        error, zero = (step.prediction - step.target).square(), step.target.square()
        if self.own.mask.ratio == 0:
            loss = _mean(error, ~step.masked)
            return {"loss": loss, "loss_all": loss, "loss_zero": _mean(zero, ~step.masked)}, detach(
                state
            )
        masked, visible = _mean(error, step.masked), _mean(error, ~step.masked)
        loss = masked + self.own.visible_weight * visible
        named = {
            "loss_masked": masked,
            "loss_visible": visible,
            "loss_zero": _mean(zero, step.masked),
        }
        return {"loss": loss, **named}, detach(state)

    def reconstruct(
        self, batch: dict[str, Tensor], state: State | None
    ) -> tuple[Reconstruction, State]:
        """Compute target and prediction of a step, and the state after it."""
        own, histograms, mask = self.own, batch["histograms"], batch["mask"]
        backbone_state, target_state = (
            (None, None) if state is None else reset(state, batch["fresh"])
        )
        size = (histograms.shape[-2], histograms.shape[-1])
        video, target_state = self.target(histograms, target_state)
        target, mean, deviation = video, video.new_zeros(()), video.new_ones(())
        if own.patch_norm:
            eps = (
                own.counts_eps
                if own.target.kind == "histograms"
                else own.patch_eps * own.target.contrast**2
            )
            target, mean, deviation = normalise_patches(video, own.mask.unit, eps)
        features, backbone_state = self.mask_patch.encode(
            self.backbone, histograms, mask, backbone_state
        )
        prediction = crop(self.decoder(features), size).float()
        masked = pixel_maps(mask, own.mask.unit, size)[:, None, None]
        step = Reconstruction(video, target, mean, deviation, prediction, masked)
        return step, (backbone_state, target_state)

    def target(
        self, histograms: Tensor, state: Tensor | None, kind: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Target (B, T, planes, H, W) of histograms (B, T, 2 * bins, H, W), before normalisation, and its state.

        `kind` overrides the setting.
        """
        own = self.own.target
        kind = kind or own.kind
        if kind == "histograms":
            return histograms.float(), histograms.new_zeros(len(histograms), 0, dtype=torch.float32)
        intensity = partial(estimate_intensity, norm_events=own.norm_events)
        # counts exceed half precision
        estimate = in_fp32(intensity if kind == "intensity" else estimate_high_pass)
        video, state = estimate(
            histograms, state, alpha=own.alpha, contrast=own.contrast, bin_seconds=self.bin_seconds
        )
        return video.unsqueeze(2), state

    @classmethod
    def mask(cls, own: TespecSettings) -> cfg.Mask:
        return own.mask

    @classmethod
    def from_settings(cls, own: TespecSettings, settings: cfg.Pretraining, data: Any) -> Self:
        """Build the method with a randomly initialised backbone; a ratio above 0 that masks no patch is refused."""
        units = math.prod(-(-side // own.mask.unit) for side in data.size)
        if own.mask.ratio and round(own.mask.ratio * units) == 0:
            raise UserError(
                "objective.mask.ratio",
                f"{own.mask.ratio:g} masks none of {units} patches",
                f"set it to {1 / units:.3g} or more, or 0 for an autoencoder",
            )
        return cls(own, cls.new_backbone(settings, data), settings.window_ms / 1000 / settings.bins)

    def val_losses(
        self, batch: dict[str, Tensor], state: State | None
    ) -> tuple[dict[str, Tensor], State]:
        """Losses with the backbone's state carried along a recording or reset at each chunk, and of predicting zero.

        The target's state is carried in both cases, so the targets are the same. The gap between
        the two losses is the network's gain from its memory.
        """
        zeroed, _ = self.loss(batch, None if state is None else (None, state[1]))
        carried, state = self.loss(batch, state)
        name, zero = "loss_masked" if self.own.mask.ratio else "loss_all", carried["loss_zero"]
        return {
            f"{name}_carried": carried[name],
            f"{name}_zeroed": zeroed[name],
            "loss_zero": zero,
        }, state

    @torch.no_grad()
    def draw(self, data: Any, device: torch.device, path: Path) -> None:
        """Draw a busy and a quiet moment of the validation recordings, with the state carried from their start."""
        # importing matplotlib takes half a second
        from tespec.pictures import ReconstructedSegment, draw_segments

        self.eval()
        moments = self._moments(data, device)
        rows: dict[str, ReconstructedSegment] = {}
        state: Any = None
        filtered: Tensor | None = None
        for number, batch in enumerate(data.val_batches(device)):
            step, state = self.reconstruct(batch, state)
            high_pass, filtered = self.target(
                batch["histograms"], reset(filtered, batch["fresh"]), "high_pass"
            )
            videos = (high_pass, step.video, step.prediction * step.deviation + step.mean)
            for title, (events, _, place, segment) in moments.items():
                if place == number:
                    filtered_image, target, reconstruction = (
                        _grey(each[0, segment]).cpu().numpy() for each in videos
                    )
                    rows[title] = ReconstructedSegment(
                        title=f"{title}, {events:,} events",
                        histogram=batch["histograms"][0, segment].cpu().numpy(),
                        high_pass=filtered_image,
                        target=target,
                        mask=step.masked[0, 0, 0].cpu().numpy(),
                        reconstruction=reconstruction,
                    )
        draw_segments([rows[title] for title in moments], path, self.own.target.kind)

    def _moments(self, data: Any, device: torch.device) -> dict[str, tuple[int, float, int, int]]:
        """Number of events, contrast of the target, batch and segment of a "busy" and a "quiet" moment.

        The busy one is at the 80th percentile of events. The quiet one has the highest contrast of
        the target among the
        tenth of the segments with the fewest events: there, the network must rely on its memory.
        """
        moments: list[tuple[int, float, int, int]] = []
        state: Tensor | None = None
        for number, batch in enumerate(data.val_batches(device)):
            video, state = self.target(batch["histograms"], reset(state, batch["fresh"]))
            for segment, (histogram, planes) in enumerate(
                zip(batch["histograms"][0], video[0], strict=True)
            ):
                moments.append((int(histogram.sum()), float(_grey(planes).std()), number, segment))
        moments.sort(key=itemgetter(0))
        quiet = moments[: max(1, int(QUIET * len(moments)))]
        return {
            "busy": moments[int(BUSY * (len(moments) - 1))],
            "quiet": max(quiet, key=itemgetter(1)),
        }


def _grey(planes: Tensor) -> Tensor:
    """Grey image (H, W) of planes (planes, H, W): the only plane, or positive minus negative counts."""
    bins = len(planes) // 2
    return planes[bins:].sum(0) - planes[:bins].sum(0)


def _mean(values: Tensor, pixels: Tensor) -> Tensor:
    """Mean of values (B, T, planes, H, W) over the pixels where (B, 1, 1, H, W) is True."""
    return global_mean((values * pixels).sum(), pixels.sum() * values.shape[1] * values.shape[2])
