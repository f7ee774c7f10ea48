"""CM3AE: masked frames and events are reconstructed, alone and together (Wu et al., ACM MM 2025)."""

import math
from typing import Annotated, Any, Literal

import tespec.core.compat  # noqa: F401  # before timm and torchvision

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from timm.layers import LayerNorm, LayerNorm2d, build_sincos2d_pos_embed
from timm.models.vision_transformer import Block, init_weights_vit_jax
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle
from typing_extensions import Self

from baselines import COUNTS
from tespec.core import settings as cfg
from tespec.core.distributed import all_gather_rows, global_mean, shard_slice
from tespec.core.errors import UserError
from tespec.datasets.images import GREY_DEVIATION, GREY_MEAN
from tespec.models.backbone import Backbone
from tespec.models.layers import STRIDE, crop, in_fp32, sent
from tespec.pretraining.contrast import info_nce
from tespec.pretraining.data import PretrainData
from tespec.pretraining.masking import MaskPatch, PatchTokens, pixel_maps
from tespec.pretraining.method import PairMethod, TableRow
from tespec.pretraining.views import random_resized_crops
from tespec.registry import METHODS

MLP_SCALE = 1e-5  # models/mae.py, init_values


@dataclass(frozen=True)
class Cm3aeSettings:
    """Settings of masks, decoders, contrast and loss weights (those of CM3AELoss)."""

    mask: cfg.Mask = cfg.Mask(16, 0.75)  # of both inputs; patch_size and mask_ratio
    heads: cfg.PositiveInt = 4  # of the fusion attention; models/mae.py, num_heads_att
    features: Literal["last", "all"] = "last"  # decoded: last stage, or sum over all stages
    blocks: cfg.Depth = 8  # of each decoder; models/mae.py, decoder_depth
    decoder_heads: cfg.PositiveInt = 16  # models/mae.py, decoder_num_heads
    # Width of the decoders, and so of the contrast's embeddings; models/mae.py, decoder_embed_dim.
    out: Annotated[int, Field(strict=True, gt=0, multiple_of=4)] = 512
    contrast_pairs: Annotated[int, Field(strict=True, ge=2)] = 128  # compared; batch_size_per_gpu
    # initial, learned factor of the cosines; models/mae.py
    logit_scale: cfg.PositiveFloat = math.log(1 / 0.07)
    # minimum and maximum share of the frame in a crop
    scale: tuple[cfg.Share, cfg.Share] = (0.2, 1.0)
    frame_weight: cfg.NonNegativeFloat = 4.0  # frame reconstructed from itself
    events_weight: cfg.NonNegativeFloat = 0.5  # events reconstructed from themselves
    fused_weight: cfg.NonNegativeFloat = 0.5  # frame reconstructed from fused features
    contrast_weight: cfg.NonNegativeFloat = 0.1

    def kept(self, units: int) -> int:
        """Number of visible patches among `units`."""
        return int(units * (1 - self.mask.ratio))


@METHODS.register_module(name="cm3ae")
class Cm3ae(PairMethod):
    """Each network reconstructs its masked patches, the fused features the frame; a contrast matches the two inputs."""

    row = TableRow(
        title="CM3AE",
        group="Beyond the paper",
        pretraining_data="REV2M",
        citation=(
            "Wu et al.: CM3AE: A Unified RGB Frame and Event-Voxel/-Frame Pre-training Framework, "
            "ACM MM 2025"
        ),
        licence="unknown (Event-AHU/CM3AE)",
        weights=(
            "the checkpoint of Event-AHU/CM3AE, a plain ViT-B/16, which no backbone here can load"
        ),
        summary=(
            "Reconstructs masked patches of events and frame, and contrasts both; ConvLSTMs are "
            "randomly initialised."
        ),
    )
    version = 4
    masks_patches = True
    deviations = (  # from Event-AHU/CM3AE, models/mae.py
        "CM3AE's voxels are omitted, as are the frame reconstruction and the contrastive loss that "
        "use them: the code that extracts their features is not published",
        "CM3AE's encoders are Swins with their own initialisation, and see a learned patch where ViTs drop patches",
        f"CM3AE's {COUNTS}, and the target is a binary map per polarity, instead of an image of both",
        "CM3AE's decoders read tokens of 16 px from each position of a Swin's last stage (32 px), and no class token",
        "CM3AE's fusion joins all tokens of the last stage, which show masked and visible patches "
        "at once, instead of the frame's visible tokens and half of the events', and its output "
        "stays at the frame's positions, where the published code decodes it at the events'",
        "CM3AE's sine-cosine positions are added before the fusion, since Swins have none at their input",
    )
    # Values from Event-AHU/CM3AE, main.py, unless another file is named; 4 GPUs as in the command
    # of README.md.
    recipe = cfg.Pretraining(
        objective=Cm3aeSettings(),
        dataset="ddd17",
        batch_size=512,  # batch_size_per_gpu 128
        drop_path=0.0,  # the model is built without main.py's 0.1
        optimisation=cfg.Optimisation(
            peak_lr=4.0e-4,  # lr 2e-4 * 512 / 256
            schedule="cosine_dino",  # utils.py
            start_divisor=1.0e6,  # from 0; utils.py
            end_divisor=400,  # to min_lr 1e-6
            steps=990400,  # 200 epochs of 2,535,759 pairs (README.md)
            warmup_steps=49520,  # 10 epochs
            clip=cfg.Clip("parameter", 3.0),  # utils.py, clip_gradients: each parameter separately
            weight_decay=cfg.Decay(0.04, 0.4, ("vectors",)),  # utils.py, get_params_groups
        ),
        deviations=(
            "CM3AE is trained on recordings with grey frames, instead of REV2M's pairs in colour; "
            "crops are resized to the frame's size, instead of squares of 224 px",
        ),
    )

    def __init__(self, own: Cm3aeSettings, backbone: Backbone, images: Backbone) -> None:
        super().__init__()
        self.own, self.backbone, self.images = own, backbone, images
        fused = backbone.channels[-1]
        divided = {"heads": (own.heads, fused), "decoder_heads": (own.decoder_heads, own.out)}
        for name, (heads, width) in divided.items():
            if width % heads:
                what = f"{heads} does not divide the width of {width}"
                raise UserError(f"objective.{name}", what, "set it to a divisor")
        self.fusion = Fusion(fused, own.heads, backbone.img_size)
        self.event_decoder = MaskedDecoder(own, backbone, 2)
        self.frame_decoder = MaskedDecoder(own, images, 1)
        self.logit_scale = nn.Parameter(torch.tensor(own.logit_scale))

    @classmethod
    def from_settings(
        cls, own: Cm3aeSettings, settings: cfg.Pretraining, data: PretrainData
    ) -> Self:
        units = math.prod(-(-side // own.mask.unit) for side in data.size)
        if not 0 < own.kept(units) < units:
            what = f"{own.mask.ratio:g} leaves none of {units} patches {'masked' if own.kept(units) else 'visible'}"
            raise UserError(
                "objective.mask.ratio", what, f"choose from {1 / units:.3g} to {1 - 1 / units:.3g}"
            )
        return super().from_settings(own, settings, data)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Return "loss", a weighted sum of four losses, and "found", the share of correct matches."""
        own, histograms = self.own, batch["histograms"]
        pictures = torch.cat([event_frame(histograms), batch["images"]], 2)  # (B, 1, 3, H, W) uint8
        if self.training:
            crops = random_resized_crops(torch.cat([histograms, pictures], 2), own.scale)
            histograms, pictures = crops.split([histograms.shape[2], pictures.shape[2]], 2)
        pictures = (pictures.float().round() / 255 - GREY_MEAN) / GREY_DEVIATION
        target, frame = pictures.split([2, 1], 2)
        events_mask, frame_mask = (sent(mask, frame.device) for mask in self._masks(histograms))
        event_features = self.event_decoder.encode(self.backbone, histograms, events_mask)
        frame_features = self.frame_decoder.encode(self.images, frame, frame_mask)
        fused_features = [*frame_features[:-1], self.fusion(frame_features[-1], event_features[-1])]
        drawn_events, events = self.event_decoder(event_features)
        drawn_frame, frames = self.frame_decoder(frame_features)
        drawn_fused, _ = self.frame_decoder(fused_features)
        loss_events = masked_error(drawn_events, target, events_mask, own.mask.unit)
        loss_frame = masked_error(drawn_frame, frame, frame_mask, own.mask.unit)
        loss_fused = masked_error(drawn_fused, frame, frame_mask, own.mask.unit)
        pairs = all_gather_rows(events), all_gather_rows(frames)
        loss_contrast, found = contrast_in_groups(*pairs, self.logit_scale, own.contrast_pairs)
        loss = own.frame_weight * loss_frame + own.events_weight * loss_events
        loss = loss + own.fused_weight * loss_fused + own.contrast_weight * loss_contrast
        named = {"loss_frame": loss_frame, "loss_events": loss_events, "loss_fused": loss_fused}
        named |= {"loss_contrast": loss_contrast, "found": found}
        return {"loss": loss, **named}, None

    def _masks(self, histograms: Tensor) -> list[Tensor]:
        """Draw masks (B, rows, cols) bool of events and frames, on the CPU."""
        rows, cols = (-(-side // self.own.mask.unit) for side in histograms.shape[-2:])
        whole, own = shard_slice(len(histograms))
        masks = draw_masks(torch.rand(2, whole, rows * cols)[:, own], self.own.kept(rows * cols))
        return [mask.unflatten(1, (rows, cols)) for mask in masks]


def draw_masks(draws: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Convert uniform draws (2, B, N) from 0 to 1 into masks (B, N) bool of events and of frames.

    `kept` patches of each stay visible. Half of the visible event patches are masked in the frame,
    as long as it has others to show: there the events know more than the frame.
    """
    place = draws[0].argsort(1).argsort(1)
    theirs_alone = place < kept // 2
    frame = (draws[1] + theirs_alone).argsort(1).argsort(1)
    return place >= kept, frame >= kept


def event_frame(histograms: Tensor) -> Tensor:
    """Maps (B, 1, 2, H, W) uint8 of pixels with events of each polarity: 255 with, 0 without."""
    return (histograms.unflatten(2, (2, -1)).amax(3) > 0).to(torch.uint8) * 255


@in_fp32
def masked_error(drawn: Tensor, target: Tensor, mask: Tensor, unit: int) -> Tensor:
    """Mean squared error over masked patches (models/mae.py, forward_loss).

    Args:
        drawn: reconstruction (B, 1, planes, H', W'), at least as large as the target.
        target: normalised images (B, 1, planes, H, W).
        mask: masked patches (B, rows, cols) of `unit` px, bool.
        unit: side of a patch in px.
    """
    size = (target.shape[-2], target.shape[-1])
    squares, pixels = (
        (crop(drawn, size) - target).square().mean((1, 2)),
        pixel_maps(mask, unit, size),
    )
    return global_mean((squares * pixels).sum(), pixels.sum())


def contrast_in_groups(
    events: Tensor, frames: Tensor, scale: Tensor, pairs: int
) -> tuple[Tensor, Tensor]:
    """Contrast events with frames both ways in groups of about `pairs` pairs (mae.py, ClipLoss).

    Args:
        events: embeddings (N, D) of all ranks' events.
        frames: embeddings (N, D) of their frames.
        scale: factor of the cosines.
        pairs: size of a group, the batch of a GPU in the published training.

    Returns:
        the mean cross-entropy, and the share of correct matches.
    """
    count = max(1, round(len(events) / pairs))
    groups = zip(events.chunk(count), frames.chunk(count), strict=True)
    both_ways = [pair for one, other in groups for pair in ((one, other), (other, one))]
    losses, matched = zip(*(info_nce(*pair, 1 / scale) for pair in both_ways), strict=True)
    return torch.stack(losses).mean(), torch.stack(matched).mean()


def positions(grid: tuple[int, int], width: int) -> Tensor:
    """Sines and cosines (h * w, width) of a grid's positions; columns come first (pos_embed.py)."""
    return build_sincos2d_pos_embed(list(grid), width, interleave_sin_cos=True).roll(width // 2, 1)


class MaskedDecoder(nn.Module):
    """Masks and encodes one of the inputs, and reconstructs its `planes` planes (models/mae.py).

    Tokens of the masks' patches attend to each other, and each draws its patch. Their learned sum
    is the embedding of the contrastive loss.
    """

    positions: Tensor

    def __init__(self, own: Cm3aeSettings, backbone: Backbone, planes: int) -> None:
        super().__init__()
        self.unit, (height, width) = own.mask.unit, backbone.img_size
        self.grid = (height // self.unit, width // self.unit)
        self.mask_patch = MaskPatch(self.unit, backbone.in_channels)
        self.encoder_norm = LayerNorm2d(backbone.channels[-1])  # epsilon 1e-6, as all norms here
        self.patch_tokens = PatchTokens(backbone.channels, self.unit, own.out, own.features)
        self.register_buffer("positions", positions(self.grid, own.out), persistent=False)
        blocks = (Block(own.out, own.decoder_heads, qkv_bias=True) for _ in range(own.blocks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = LayerNorm(own.out)
        self.draw = nn.Linear(own.out, planes * self.unit**2)
        self.sum = nn.Linear(math.prod(self.grid), 1)
        self.apply(init_weights_vit_jax)  # Xavier's in linear layers, with biases of 0

    def encode(self, backbone: Backbone, frames: Tensor, mask: Tensor) -> list[Tensor]:
        """Encode frames (B, 1, C, H, W), masked at `mask` (B, rows, cols), to four features."""
        features, _ = self.mask_patch.encode(backbone, frames, mask)
        return [*features[:-1], self.encoder_norm(features[-1].squeeze(1)).unsqueeze(1)]

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Decode features to images (B, 1, planes, H, W) and embeddings (B, D)."""
        tokens = self.norm(self.blocks(self.patch_tokens(features) + self.positions))
        patches = self.draw(tokens).transpose(1, 2).unflatten(2, self.grid)
        embeddings = in_fp32(self.sum)(tokens.transpose(1, 2)).squeeze(2)
        return pixel_shuffle(patches, self.unit).unsqueeze(1), embeddings


class Fusion(nn.Module):
    """Joint attention over the last features of frame and events, `width` channels each; returns the frame's part."""

    positions: Tensor

    def __init__(self, width: int, heads: int, img_size: tuple[int, int]) -> None:
        super().__init__()
        self.block = Block(width, heads, qkv_bias=True, norm_layer=nn.LayerNorm)  # epsilon 1e-5
        self.scale = nn.Parameter(torch.full((width,), MLP_SCALE))
        grid = (img_size[0] // STRIDE, img_size[1] // STRIDE)
        self.register_buffer("positions", positions(grid, width), persistent=False)
        self.apply(init_weights_vit_jax)  # Xavier's in linear layers, with biases of 0

    def forward(self, frame: Tensor, events: Tensor) -> Tensor:
        """Fuse features (B, 1, C, h, w) of frame and events into features of the same shape."""
        tokens = torch.cat(
            [
                each.flatten(3).squeeze(1).transpose(1, 2) + self.positions
                for each in (frame, events)
            ],
            1,
        )
        block: Any = self.block
        # models/mae.py, feature_fuse_two: the MLP's skip connection starts after its norm, and only
        # the MLP is scaled.
        normal = block.norm2(tokens + block.attn(block.norm1(tokens)))
        joined = (normal + self.scale * block.mlp(normal))[:, : len(self.positions)]
        return joined.transpose(1, 2).unflatten(2, frame.shape[-2:]).unsqueeze(1)
