"""Masked autoencoders of two inputs: decoders, fusion and reconstruction loss of CM3AE.

Files in parentheses are those of Event-AHU/CM3AE.
"""

import math
from typing import Any

import tespec.core.compat  # noqa: F401  # before timm

import torch
from timm.layers import LayerNorm, LayerNorm2d, build_sincos2d_pos_embed
from timm.models.vision_transformer import Block, init_weights_vit_jax
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle

from tespec.core.distributed import global_mean
from tespec.models.backbone import Backbone
from tespec.models.layers import STRIDE, crop, in_fp32
from tespec.pretraining.masking import MaskPatch, PatchTokens, grid_size, pixel_maps

MLP_SCALE = 1e-5  # initial; models/mae.py, init_values


@in_fp32
def masked_mse(prediction: Tensor, target: Tensor, mask: Tensor, unit: int) -> Tensor:
    """Compute the mean squared error over masked patches (models/mae.py, forward_loss).

    Args:
        prediction: (B, 1, planes, H', W'), at least as large as the target.
        target: normalised images (B, 1, planes, H, W).
        mask: (B, rows, cols) bool, True at masked patches.
        unit: side of a patch in px.
    """
    size = target.shape[-2:]
    errors = (crop(prediction, size) - target).square().mean((1, 2))  # (B, H, W)
    pixels = pixel_maps(mask, unit, size)
    return global_mean((errors * pixels).sum(), pixels.sum())


def position_embedding(grid: tuple[int, int], width: int) -> Tensor:
    """Compute sine-cosine embeddings of a grid's positions, columns first (pos_embed.py).

    Args:
        grid: rows and columns, (h, w).
        width: channels of an embedding.

    Returns:
        Embeddings (h * w, width).
    """
    return build_sincos2d_pos_embed(list(grid), width, interleave_sin_cos=True).roll(width // 2, 1)


class MaskedDecoder(nn.Module):
    """Mask and encode one of the inputs, and reconstruct it (models/mae.py).

    The tokens of all patches attend to each other, and a token predicts its patch. Their learned
    sum is the embedding of the contrastive loss.

    Args:
        backbone: of the input.
        planes: planes of the reconstruction.
        unit: side of a patch in px.
        features: stages to decode: "last", or the sum over "all".
        width: channels of the decoder.
        depth: number of its blocks.
        heads: attention heads of a block.
    """

    positions: Tensor

    def __init__(
        self,
        backbone: Backbone,
        planes: int,
        *,
        unit: int,
        features: str,
        width: int,
        depth: int,
        heads: int,
    ) -> None:
        super().__init__()
        self.unit = unit
        self.grid = grid_size(backbone.img_size, unit)
        self.mask_patch = MaskPatch(unit, backbone)
        self.encoder_norm = LayerNorm2d(backbone.channels[-1])  # epsilon 1e-6, as all norms here
        self.patch_tokens = PatchTokens(backbone.channels, unit, width, features)
        self.register_buffer("positions", position_embedding(self.grid, width), persistent=False)
        self.blocks = nn.Sequential(*(Block(width, heads, qkv_bias=True) for _ in range(depth)))
        self.norm = LayerNorm(width)
        self.to_pixels = nn.Linear(width, planes * unit**2)
        self.sum = nn.Linear(math.prod(self.grid), 1)
        self.apply(init_weights_vit_jax)  # Xavier's in linear layers, with biases of 0

    def encode(self, backbone: Backbone, frames: Tensor, mask: Tensor) -> list[Tensor]:
        """Encode masked frames.

        Args:
            backbone: of the input.
            frames: (B, 1, C, H, W).
            mask: (B, rows, cols) bool, True at masked patches.

        Returns:
            The features (B, 1, C, h, w) of the four stages, the last of them normalised.
        """
        features, _ = self.mask_patch.encode(backbone, frames, mask)
        return [*features[:-1], self.encoder_norm(features[-1].squeeze(1)).unsqueeze(1)]

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Decode features to images (B, 1, planes, H, W) and embeddings (B, D)."""
        tokens = self.norm(self.blocks(self.patch_tokens(features) + self.positions))  # (B, N, D)
        patches = self.to_pixels(tokens).mT.unflatten(2, self.grid)
        embeddings = in_fp32(self.sum)(tokens.mT).squeeze(2)
        return pixel_shuffle(patches, self.unit).unsqueeze(1), embeddings


class Fusion(nn.Module):
    """Joint attention over the last features of frame and events.

    Args:
        width: channels of either features.
        heads: attention heads.
        img_size: (H, W) of the padded input in px.
    """

    positions: Tensor

    def __init__(self, width: int, heads: int, img_size: tuple[int, int]) -> None:
        super().__init__()
        self.block = Block(width, heads, qkv_bias=True, norm_layer=nn.LayerNorm)  # epsilon 1e-5
        self.scale = nn.Parameter(torch.full((width,), MLP_SCALE))
        positions = position_embedding(grid_size(img_size, STRIDE), width)
        self.register_buffer("positions", positions, persistent=False)
        self.apply(init_weights_vit_jax)  # Xavier's in linear layers, with biases of 0

    def forward(self, frame: Tensor, events: Tensor) -> Tensor:
        """Fuse features of frame and events, and return the frame's part.

        Args:
            frame: (B, 1, C, h, w).
            events: (B, 1, C, h, w).

        Returns:
            Features (B, 1, C, h, w).
        """
        block: Any = self.block
        tokens = [maps.squeeze(1).flatten(2).mT + self.positions for maps in (frame, events)]
        x = torch.cat(tokens, 1)  # (B, 2 * h * w, C)
        # models/mae.py, feature_fuse_two: the MLP's skip connection starts after its norm, and only
        # the MLP is scaled.
        x = block.norm2(x + block.attn(block.norm1(x)))
        x = x + self.scale * block.mlp(x)
        return x[:, : len(self.positions)].mT.unflatten(2, frame.shape[-2:]).unsqueeze(1)
