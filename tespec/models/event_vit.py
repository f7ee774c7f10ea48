"""Plain vision transformers (ViTs) for event histograms, with features at four strides."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from timm.layers import LayerNorm, LayerNorm2d, resample_abs_pos_embed
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tespec.core.settings import Size
from tespec.models.backbone import PatchBackbone
from tespec.models.event_swin import find_grid, resize_table
from tespec.models.layers import STRIDE, compute_dtype, pad_to, padded_size
from tespec.registry import BACKBONES

STRIDES = (4, 8, 16, 32)  # of the four features, in px
TABLE = "relative_position_bias_table"  # of BEiT, for offsets in rows and columns
CLS_OFFSETS = 3  # further entries of such a table, for the class token


@dataclass(frozen=True)
class ViTSpec:
    """Specification of a ViT of timm, and of the features that are taken from it."""

    width: int  # channels of a token
    depth: int  # number of blocks
    heads: int  # attention heads of a block
    patch: int = 16  # side of a patch in px
    blocks: tuple[int, int, int, int] = (2, 5, 8, 11)  # whose outputs are the features
    norm: bool = True  # whether the features pass the final norm
    network: type[Any] = VisionTransformer  # class of timm
    # further arguments of this class; positions belong to patches alone, not to the class token
    options: Mapping[str, Any] = field(default_factory=lambda: {"no_embed_class": True})


def norm_gelu(width: int, **options: Any) -> nn.Module:
    """Build the layers after EventPretrain's patch embedding."""
    return nn.Sequential(nn.LayerNorm(width, **options), nn.GELU())


DINOV2 = {"no_embed_class": True, "init_values": 1e-5}
DINOV2_REG = DINOV2 | {"reg_tokens": 4}
DINOV3 = {
    "num_reg_tokens": 4,
    "init_values": 1e-5,
    "norm_layer": partial(LayerNorm, eps=1e-5),
    "use_fc_norm": False,
    "use_abs_pos_emb": False,
    "use_rot_pos_emb": True,
    "rope_type": "dinov3",
    "rope_temperature": 100,
    "rope_rotate_half": True,
}
VITS = {
    "vit_small": ViTSpec(384, 12, 6),
    "vit_base": ViTSpec(768, 12, 12),
    "vit_micro": ViTSpec(64, 4, 4, patch=8, blocks=(0, 1, 2, 3)),  # for CPUs
    # networks of released weights; sources: `tespec.weights.released`
    "vit_small_ecdp": ViTSpec(384, 12, 12, options={"no_embed_class": True, "reg_tokens": 1}),
    "vit_base_mem": ViTSpec(
        768,
        12,
        12,
        blocks=(8, 9, 10, 11),
        norm=False,
        network=Beit,
        options={"use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1},
    ),
    "vit_small_gep": ViTSpec(384, 12, 6, patch=14, options=DINOV2_REG),
    "vit_base_gep": ViTSpec(768, 12, 12, patch=14, options=DINOV2_REG),
    "vit_small_depthanyevent": ViTSpec(384, 12, 6, patch=14, options=DINOV2),
    "vit_small_eventpretrain": ViTSpec(
        384,
        12,
        12,
        blocks=(3, 5, 7, 11),
        norm=False,
        options={"class_token": False, "no_embed_class": True, "embed_norm_layer": norm_gelu},
    ),
    "vit_small_scaleevent": ViTSpec(384, 12, 6, network=Eva, options=DINOV3),
    "vit_base_scaleevent": ViTSpec(768, 12, 12, network=Eva, options=DINOV3),
    "vit_large_scaleevent": ViTSpec(
        1024, 24, 16, blocks=(4, 11, 17, 23), network=Eva, options=DINOV3
    ),
}


class ViTStage(nn.Module):
    """Consecutive blocks of a ViT; the first stage adds positions and prepends other tokens.

    Args:
        vit: network of timm.
        blocks: indices of the blocks.
    """

    def __init__(self, vit: Any, blocks: range) -> None:
        super().__init__()
        self.vit = vit
        self.blocks = blocks

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute tokens (N, L, C), from patches (N, h, w, C) in the first stage."""
        vit = self.vit
        if self.blocks.start == 0:
            tokens = tokens.flatten(1, 2)  # (N, h * w, C)
            if vit.pos_embed is not None:
                tokens = tokens + vit.pos_embed
            others = [getattr(vit, name, None) for name in ("cls_token", "reg_token")]
            expanded = [other.expand(len(tokens), -1, -1) for other in others if other is not None]
            tokens = torch.cat([*expanded, tokens], dim=1)
        rope = getattr(vit, "rope", None)  # rotary positions
        positions = {} if rope is None else {"rope": rope.get_embed()}
        for index in self.blocks:
            tokens = vit.blocks[index](tokens, **positions)
        return tokens


def neck_layer(width: int, scale: float) -> nn.Module:
    """Build a layer that resizes maps.

    Args:
        width: channels of the maps (N, width, h, w).
        scale: factor on both sides: 4, 2, 1, 1/2 or 1/4.
    """
    double = partial(nn.ConvTranspose2d, width, width, kernel_size=2, stride=2)
    if scale == 4:
        return nn.Sequential(double(), LayerNorm2d(width), nn.GELU(), double())
    if scale == 2:
        return double()
    return nn.MaxPool2d(round(1 / scale)) if scale < 1 else nn.Identity()


@BACKBONES.register_module()
class EventViT(PatchBackbone):
    """A ViT of timm, whose features of four blocks are scaled to strides of 4 to 32 px.

    The neck is that of BEiT's segmentation (two transposed convolutions, one, none, max pooling),
    with ViTDet's layer norm instead of a batch norm. Patches that do not divide 32 px are first
    interpolated to a stride of 16 px. Published ViTs have no memory: a ConvLSTM after each level of
    the neck is an addition of this harness, which does not feed back into the blocks. Sources: Bao
    et al., "BEiT" (ICLR 2022); Li et al., "Exploring Plain Vision Transformer Backbones for Object
    Detection" (ECCV 2022).

    Example:
        >>> import torch
        >>> backbone = EventViT("vit_micro", recurrent=False, bins=2, img_size=(64, 96)).eval()
        >>> features, _ = backbone(torch.ones(1, 3, 4, 60, 90))  # (B, T, 2 * bins, H, W)
        >>> [tuple(feature.shape) for feature in features[:2]]
        [(1, 3, 64, 16, 24), (1, 3, 64, 8, 12)]
    """

    sizes = tuple(VITS)
    stem = "vit.patch_embed.proj.weight"
    position_tables = ("pos_embed", TABLE)
    hierarchical = False

    def build(self, drop_path: float) -> None:
        spec = VITS[self.name]
        self.channels = (spec.width,) * 4
        self.patch_size = spec.patch
        self.grid = self.grid_of(self.img_size)
        self.vit: Any = spec.network(
            img_size=padded_size(*self.img_size, spec.patch),
            patch_size=spec.patch,
            in_chans=self.in_channels,
            num_classes=0,
            global_pool="",
            embed_dim=spec.width,
            depth=spec.depth,
            num_heads=spec.heads,
            drop_path_rate=drop_path,
            **spec.options,
        )
        if not spec.norm:
            self.vit.norm = nn.Identity()
        starts = (0, *(block + 1 for block in spec.blocks[:-1]))
        # a list, since the blocks are modules of `vit`
        self.stages: list[nn.Module] = [
            ViTStage(self.vit, range(start, end + 1))
            for start, end in zip(starts, spec.blocks, strict=True)
        ]
        self.stride = spec.patch if STRIDE % spec.patch == 0 else 16  # of maps before the neck
        self.necks = nn.ModuleList(
            neck_layer(spec.width, self.stride / stride) for stride in STRIDES
        )

    def embed_patches(self, frames: Tensor) -> Tensor:
        """Embed frames (N, in_channels, H, W) as patches (N, h, w, C), without positions."""
        embedding = self.vit.patch_embed
        height, width = frames.shape[-2:]
        frames = pad_to(frames, padded_size(height, width, self.patch_size), self.empty_pixel)
        maps = embedding.proj(frames.to(compute_dtype(embedding.proj.weight)))  # (N, C, h, w)
        return embedding.norm(maps.permute(0, 2, 3, 1))

    def grid_of(self, size: Size) -> Size:
        """(rows, columns) of patches of an input of `size` (H, W) in px."""
        height, width = padded_size(*size, self.patch_size)
        return height // self.patch_size, width // self.patch_size

    def stage_modules(self) -> list[nn.Module]:
        return self.stages

    def neck(self, stage: int, output: Tensor) -> Tensor:
        patches = self.vit.norm(output)[:, -math.prod(self.grid) :]  # (N, h * w, C)
        maps = patches.mT.unflatten(2, self.grid)  # (N, C, h, w)
        if self.stride != self.patch_size:
            scale = self.patch_size / self.stride
            maps = interpolate(maps, scale_factor=scale, mode="bilinear", align_corners=False)
        return self.necks[stage](maps).permute(0, 2, 3, 1)

    def resize(self, tensors: Mapping[str, Tensor], built_for: Size) -> dict[str, Tensor]:
        """Interpolate the positions of a state dict bicubically to the patches of `img_size`.

        BEiT's own code spaces the offsets of its bias tables geometrically instead.

        Positions whose number does not match `built_for` are treated as those of a square image, if
        possible; else they stay as they are.

        Args:
            tensors: state dict of a ViT.
            built_for: its input size (H, W) in px.

        Returns:
            The state dict with resized positions.
        """
        resized = dict(tensors)
        known = self.grid_of(built_for)
        for name, tensor in tensors.items():
            if name == "vit.pos_embed" and tensor.ndim == 3:
                old = find_grid(tensor.shape[1], known, math.prod)
                if old and old != self.grid:
                    resized[name] = resample_abs_pos_embed(tensor, [*self.grid], [*old], 0)
            elif name.endswith(TABLE) and tensor.ndim == 2:
                table = tensor[:-CLS_OFFSETS]
                offsets = resize_table(table, known, self.grid)
                if offsets is not table:
                    resized[name] = torch.cat([offsets, tensor[-CLS_OFFSETS:]])
        return resized
