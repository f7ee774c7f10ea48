"""CM3AE: masked frames and events are reconstructed, alone and together (Wu et al., ACM MM 2025)."""

import math
from dataclasses import field
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from timm.layers import build_sincos2d_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from typing_extensions import Self

from baselines import COUNTS
from tespec.core import settings as cfg
from tespec.core.distributed import all_gather_rows, global_mean, shard_slice
from tespec.core.errors import UserError
from tespec.datasets.images import GREY_DEVIATION, GREY_MEAN, as_input
from tespec.models.backbone import Backbone
from tespec.models.layers import STRIDE, crop, in_fp32, sent
from tespec.pretraining.contrast import Projector, info_nce, pooled
from tespec.pretraining.data import PretrainData
from tespec.pretraining.masking import MaskPatch, build_decoder, pixel_maps
from tespec.pretraining.method import PairMethod
from tespec.pretraining.views import random_views
from tespec.registry import METHODS

MLP_SCALE = 1e-5  # models/mae.py, init_values


@dataclass(frozen=True)
class Cm3aeSettings:
    """Settings of masks, decoders, contrast and loss weights (those of CM3AELoss)."""

    mask: cfg.Mask = cfg.Mask(32, 0.75)  # of both inputs; mask_ratio, on Swin's last tokens instead of ViT's 16 px
    decoder: dict[str, Any] = field(default_factory=lambda: {"type": "LastStageDecoder"})  # with its settings
    heads: cfg.PositiveInt = 4  # of the fusion attention; models/mae.py, num_heads_att
    out: cfg.PositiveInt = 512  # embedding width of the contrast; models/mae.py, decoder_embed_dim
    logit_scale: cfg.PositiveFloat = math.log(1 / 0.07)  # initial, learned factor of the cosines; models/mae.py
    scale: tuple[cfg.Share, cfg.Share] = (0.2, 1.0)  # minimum and maximum share of the frame in a crop
    frame_weight: cfg.NonNegativeFloat = 4.0  # frame reconstructed from itself
    events_weight: cfg.NonNegativeFloat = 0.5  # events reconstructed from themselves
    fused_weight: cfg.NonNegativeFloat = 0.5  # frame reconstructed from fused features
    contrast_weight: cfg.NonNegativeFloat = 0.1

    def kept(self, units: int) -> int:
        """Number of visible patches among `units`."""
        return units - round(self.mask.ratio * units)


@METHODS.register_module(name="cm3ae")
class Cm3ae(PairMethod):
    """Each network reconstructs its masked patches, the fused features the frame; a contrast matches the two inputs."""

    title = "CM3AE"
    version = 3
    group = "Beyond the paper"
    pretraining_data = "REV2M"
    citation = "Wu et al.: CM3AE: A Unified RGB Frame and Event-Voxel/-Frame Pre-training Framework, ACM MM 2025"
    licence = "unknown (Event-AHU/CM3AE)"
    weights = "the checkpoint of Event-AHU/CM3AE, a plain ViT-B/16, which no backbone here can load"
    summary = "Reconstructs masked patches of events and frame, and contrasts both; ConvLSTMs are randomly initialised."
    masks_patches = True
    deviations = (  # from Event-AHU/CM3AE, models/mae.py
        "CM3AE's voxels are omitted, as are the frame reconstruction and the contrastive loss that use them",
        "CM3AE's backbones are Swins, which see a learned patch where ViTs drop patches",
        f"CM3AE's {COUNTS}, and the target is a binary map per polarity, instead of an image of both",
        "CM3AE's decoders are TESPEC's (one block, or convolutions), instead of eight blocks",
        "CM3AE's fusion joins all tokens of the last stage, instead of the frame's and half of the visible events' "
        "tokens, and the fused tokens are decoded at the frame's positions, where the published code decodes them at "
        "the events' positions",
        "CM3AE's contrastive loss uses the encoders' pooled last stages, instead of learned sums over decoder tokens",
        "CM3AE's contrastive loss is over the global batch, instead of the 128 pairs of each GPU",
    )
    # Values from Event-AHU/CM3AE, main.py, unless another file is named; 4 GPUs as in the command of README.md.
    recipe = cfg.Pretraining(
        objective=Cm3aeSettings(),
        dataset="ddd17",
        batch_size=512,  # batch_size_per_gpu 128
        drop_path=0.0,  # the model is built without main.py's 0.1
        optimisation=cfg.Optimisation(
            peak_lr=4.0e-4,  # lr 2e-4 * 512 / 256
            start_divisor=1.0e6,  # from 0; utils.py
            end_divisor=400,  # to min_lr 1e-6
            steps=990400,  # 200 epochs of 2,535,759 pairs (README.md)
            warmup_steps=49520,  # 10 epochs
            clip=cfg.Clip("parameter", 3.0),  # utils.py, clip_gradients: each parameter separately
            weight_decay=cfg.Decay(0.04, 0.4, ("vectors",)),  # utils.py, get_params_groups
        ),
        deviations=(
            "CM3AE is trained on recordings with grey frames, instead of REV2M's pairs in colour; crops are bilinear, "
            "instead of bicubic",
        ),
    )

    def __init__(self, own: Cm3aeSettings, backbone: Backbone, images: Backbone) -> None:
        super().__init__()
        self.own, self.backbone, self.images = own, backbone, images
        unit, width = own.mask.unit, backbone.channels[-1]
        self.events_patch, self.frame_patch = MaskPatch(unit, backbone.in_channels), MaskPatch(unit, images.in_channels)
        self.fusion = Fusion(width, own.heads, backbone.img_size)
        self.draw_events = build_decoder(own.decoder, backbone, 2)
        self.draw_frame = build_decoder(own.decoder, images, images.in_channels)
        self.of_events, self.of_frame = (Projector(nn.Linear(width, own.out)) for _ in range(2))
        self.logit_scale = nn.Parameter(torch.tensor(own.logit_scale))

    @classmethod
    def from_settings(cls, own: Cm3aeSettings, settings: cfg.Pretraining, data: PretrainData) -> Self:
        units = math.prod(-(-side // own.mask.unit) for side in data.size)
        if not 0 < own.kept(units) < units:
            what = f"{own.mask.ratio:g} leaves none of {units} patches {'masked' if own.kept(units) else 'visible'}"
            raise UserError("objective.mask.ratio", what, f"choose from {1 / units:.3g} to {1 - 1 / units:.3g}")
        return super().from_settings(own, settings, data)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Return "loss", the weighted sum of four losses, and "found", the share of events matched with their frame."""
        own, histograms, frame = self.own, batch["histograms"], as_input(batch["images"])
        target = event_frame(histograms)
        if self.training:
            parts = (histograms, target, frame)
            (crops,), _ = random_views(torch.cat(parts, 2), 1, (frame.shape[-2], frame.shape[-1]), own.scale)
            histograms, target, frame = crops.split([each.shape[2] for each in parts], 2)
        events_mask, frame_mask = (sent(mask, frame.device) for mask in self._masks(histograms))
        of_events, _ = self.events_patch.encode(self.backbone, histograms, events_mask)
        of_frame, _ = self.frame_patch.encode(self.images, frame, frame_mask)
        of_both = [*of_frame[:-1], self.fusion(of_frame[-1], of_events[-1])]
        drawn = _error(self.draw_events(of_events), target, events_mask, own.mask.unit)
        alone = _error(self.draw_frame(of_frame), frame, frame_mask, own.mask.unit)
        fused = _error(self.draw_frame(of_both), frame, frame_mask, own.mask.unit)
        events = all_gather_rows(self.of_events(pooled(of_events[-1])))
        frames = all_gather_rows(self.of_frame(pooled(of_frame[-1])))
        forth, found = info_nce(events, frames, 1 / self.logit_scale)
        back, _ = info_nce(frames, events, 1 / self.logit_scale)
        contrast = (forth + back) / 2
        reconstruction = own.frame_weight * alone + own.events_weight * drawn + own.fused_weight * fused
        named = {"loss_frame": alone, "loss_events": drawn, "loss_fused": fused, "loss_contrast": contrast}
        return {"loss": reconstruction + own.contrast_weight * contrast, **named, "found": found}, None

    def _masks(self, histograms: Tensor) -> list[Tensor]:
        """Draw masks (B, rows, cols) bool of events and frames, on the CPU."""
        rows, cols = (-(-side // self.own.mask.unit) for side in histograms.shape[-2:])
        whole, own = shard_slice(len(histograms))
        masks = draw_masks(torch.rand(2, whole, rows * cols)[:, own], self.own.kept(rows * cols))
        return [mask.unflatten(1, (rows, cols)) for mask in masks]


def draw_masks(draws: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Convert uniform draws (2, B, N) from 0 to 1 into masks (B, N) bool of events and of frames.

    `kept` patches of each stay visible. Half of the visible event patches are masked in the frame, as long as it has
    others to show: there the events know more than the frame.
    """
    place = draws[0].argsort(1).argsort(1)
    theirs_alone = place < kept // 2
    frame = (draws[1] + theirs_alone).argsort(1).argsort(1)
    return place >= kept, frame >= kept


def event_frame(histograms: Tensor) -> Tensor:
    """Binary maps (B, 1, 2, H, W) of pixels with events of each polarity, normalised like a grey frame."""
    there = histograms.unflatten(2, (2, -1)).amax(3) > 0
    return (there.float() - GREY_MEAN) / GREY_DEVIATION


@in_fp32
def _error(drawn: Tensor, wanted: Tensor, mask: Tensor, unit: int) -> Tensor:
    """Mean squared error over the masked patches of images (B, 1, planes, H, W)."""
    size = (wanted.shape[-2], wanted.shape[-1])
    squares, pixels = (crop(drawn, size) - wanted).square().mean((1, 2)), pixel_maps(mask, unit, size)
    return global_mean((squares * pixels).sum(), pixels.sum())


class Fusion(nn.Module):
    """Joint attention over the last features of frame and events, `width` channels each; returns the frame's part."""

    positions: Tensor

    def __init__(self, width: int, heads: int, img_size: tuple[int, int]) -> None:
        super().__init__()
        if width % heads:
            what = f"{heads} does not divide the last stage's width of {width}"
            raise UserError("objective.heads", what, "set it to a divisor")
        self.block = Block(width, heads, qkv_bias=True)
        self.scale = nn.Parameter(torch.full((width,), MLP_SCALE))
        places = build_sincos2d_pos_embed([side // STRIDE for side in img_size], width, interleave_sin_cos=True)
        self.register_buffer("positions", places, persistent=False)

    def forward(self, frame: Tensor, events: Tensor) -> Tensor:
        """Fuse features (B, 1, C, h, w) of frame and events into features of the same shape."""
        tokens = torch.cat([each.flatten(3).squeeze(1).transpose(1, 2) + self.positions for each in (frame, events)], 1)
        block: Any = self.block
        # models/mae.py, feature_fuse_two: the MLP's skip connection starts after its norm, and only the MLP is scaled.
        normal = block.norm2(tokens + block.attn(block.norm1(tokens)))
        joined = (normal + self.scale * block.mlp(normal))[:, : len(self.positions)]
        return joined.transpose(1, 2).unflatten(2, frame.shape[-2:]).unsqueeze(1)
