"""Masked modelling: random masks, the learnable mask patch, and decoders that reconstruct an image."""

import math
from collections.abc import Mapping
from typing import Any

import tespec.core.compat  # noqa: F401  # before timm

import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, gelu, interpolate, pixel_shuffle

from tespec.core.distributed import shard_slice
from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.models.backbone import Backbone, BackboneState
from tespec.models.event_swin import PATCH, WINDOW
from tespec.models.layers import STRIDE, crop, pad_to
from tespec.registry import MODELS, find_registered

INITIAL_DEVIATION = 0.02
ASPECT = 0.3  # minimum of a block's height over width, and of its inverse (BEiT, and MEM's code)
ATTEMPTS = 10  # at placing a block; same sources


class MaskPatch(nn.Module):
    """The learnable patch of `unit` px that replaces every masked unit; all channels share it (the paper has 32x32)."""

    def __init__(self, unit: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.pixels = nn.Parameter(INITIAL_DEVIATION * torch.randn(1, unit, unit))

    def forward(self) -> Tensor:
        """The patch as a frame (1, channels, unit, unit)."""
        return self.pixels.expand(self.channels, -1, -1).unsqueeze(0)

    def encode(
        self, backbone: Backbone, frames: Tensor, mask: Tensor, state: BackboneState = None
    ) -> tuple[list[Tensor], BackboneState]:
        """Encode frames (B, T, C, H, W), with the patch at masked units, by `backbone`; return features and state."""
        tokens = replace_masked(backbone.embed(frames), mask, backbone.embed_patches(self()))
        return backbone.encode(tokens, state)


def replace_masked(tokens: Tensor, mask: Tensor, patch: Tensor) -> Tensor:
    """Replace the tokens (B, T, h, w, C) of units masked in `mask` (B, rows, cols) by those of `patch` (1, n, n, C).

    Each token depends only on its own pixels and each unit is a block of complete tokens, so this
    equals replacing the pixels before the embedding, but never stores (or differentiates) the
    pixels of masked frames. All segments have the same mask, which may be smaller than the padded
    frame.
    """
    (height, width), side = tokens.shape[2:4], patch.shape[1]
    masked = pad_to(pixel_maps(mask, side, (height, width)), (height, width))
    stand_ins = patch.repeat(1, -(-height // side), -(-width // side), 1)[:, :height, :width]
    return torch.where(masked[:, None, :, :, None], stand_ins.unsqueeze(1), tokens)


def pixel_maps(patches: Tensor, unit: int, size: Size) -> Tensor:
    """Expand patches (..., rows, cols) of `unit` px to maps (..., *size) with the patch's value at each pixel."""
    return crop(patches.repeat_interleave(unit, dim=-2).repeat_interleave(unit, dim=-1), size)


def draw_blocks(lanes: int, rows: int, columns: int, ratio: float, smallest: int) -> Tensor:
    """Draw this micro-batch's masks (lanes, rows, columns) bool on the CPU, see `block_mask`, seeded for each lane.

    Shares without a masked patch, and grids with a single row or column, are refused.
    """
    most = round(ratio * rows * columns)
    if not most or min(rows, columns) < 2:
        raise UserError(
            "masks",
            f"{rows} x {columns} patches are too few for blocks",
            "mask more or smaller patches",
        )
    everything, own = shard_slice(lanes)
    seeds = torch.randint(1 << 31, (everything,))[own].tolist()
    masks = [
        block_mask(np.random.default_rng(seed), rows, columns, most, smallest) for seed in seeds
    ]
    return torch.from_numpy(np.stack(masks))


def block_mask(
    generator: np.random.Generator, rows: int, columns: int, most: int, smallest: int
) -> NDArray[np.bool_]:
    """Mask `most` of rows * columns units, or fewer if no more fit, by rectangles of random area and aspect ratio.

    Areas range from `smallest`, or `most` if that is less, to the number of units left to mask
    (microsoft/unilm, beit/masking_generator.py, in the version of tum-vision/mem).
    """
    mask, smallest = np.zeros((rows, columns), bool), min(smallest, most)
    while (left := most - int(mask.sum())) > 0:
        for _ in range(ATTEMPTS):
            area, aspect = (
                smallest + generator.random() * (left - smallest),
                ASPECT ** generator.uniform(-1, 1),
            )
            height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if not (height < rows and width < columns):
                continue
            top, first = (
                generator.integers(rows - height + 1),
                generator.integers(columns - width + 1),
            )
            block = mask[top : top + height, first : first + width]
            if 0 < block.size - block.sum() <= left:
                block[:] = True
                break
        else:
            break
    return mask


class PatchTokens(nn.Module):
    """Tokens of `unit` px and `width` channels from the "last" stage, or the sum over "all" stages.

    A position of a coarser stage yields all tokens inside it.
    """

    def __init__(self, channels: tuple[int, ...], unit: int, width: int, features: str) -> None:
        super().__init__()
        laterals = []
        for stage in range(0 if features == "all" else 3, 4):
            finer = max(1, unit // (PATCH << stage))
            coarser = max(1, (PATCH << stage) // unit)
            lateral = nn.Conv2d(channels[stage], width * coarser**2, 1)
            laterals.append(nn.Sequential(nn.AvgPool2d(finer), lateral, nn.PixelShuffle(coarser)))
        self.laterals = nn.ModuleList(laterals)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Tokens (B * T, h * w, width), row by row, of features (B, T, C, H, W) of four stages."""
        used = zip(self.laterals, features[-len(self.laterals) :], strict=True)
        maps = torch.stack([lateral(stage.flatten(0, 1)) for lateral, stage in used]).sum(0)
        return maps.flatten(2).transpose(1, 2)


def build_decoder(settings: Mapping[str, Any], backbone: Backbone, planes: int) -> nn.Module:
    """Build a decoder, given its `type` and arguments, from a backbone's features to an image of `planes` planes."""
    kind = find_registered(MODELS, str(settings.get("type", "")), "objective.decoder.type")
    made_for = {"channels": backbone.channels, "img_size": backbone.img_size, "planes": planes}
    try:
        return kind(
            **{name: value for name, value in settings.items() if name != "type"} | made_for
        )
    except (TypeError, ValueError, AssertionError) as error:
        what = f"{kind.__name__} cannot be built ({error})"
        raise UserError("objective.decoder", what, "correct its settings") from error


@MODELS.register_module()
class LastStageDecoder(nn.Module):
    """Projection, one Swin block and a 1x1 convolution: each last-stage token predicts its 32x32 px.

    The paper (appendix, "Architecture" and the table of sizes) specifies a Swin block with windows
    of 7, a convolution and 3.7 M parameters. Several layouts fit; this one has 3.74 M for Swin-T.

    Args:
        channels: widths of the backbone's stages, of which the last is decoded.
        img_size: (H, W) of the padded input in px.
        planes: planes of the image.
        width: channels of the Swin block.
        heads: attention heads of the Swin block.
    """

    def __init__(
        self,
        channels: tuple[int, ...],
        img_size: Size,
        planes: int = 1,
        width: int = 488,
        heads: int = 8,
    ) -> None:
        super().__init__()
        self.project = nn.Linear(channels[-1], width)
        size = img_size[0] // STRIDE, img_size[1] // STRIDE
        self.block = SwinTransformerBlock(width, size, num_heads=heads, window_size=WINDOW)
        # a 1x1 convolution on maps with channels last
        self.draw = nn.Linear(width, planes * STRIDE * STRIDE)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Decode features (B, T, C, h, w) to an image (B, T, planes, H, W) at `img_size`."""
        last = features[-1]
        pixels = self.draw(self.block(self.project(last.flatten(0, 1).permute(0, 2, 3, 1))))
        return pixel_shuffle(pixels.permute(0, 3, 1, 2), STRIDE).unflatten(0, last.shape[:2])


@MODELS.register_module()
class AllStagesDecoder(nn.Module):
    """All four stages, projected to one width and summed at stride 8, then two convolutions.

    Small backbones need it: with the last stage alone, they do not leave the plateau of predicting
    zero.
    """

    STRIDE = 8

    def __init__(
        self, channels: tuple[int, ...], img_size: Size, planes: int = 1, width: int = 64
    ) -> None:
        super().__init__()
        self.size = (img_size[0] // self.STRIDE, img_size[1] // self.STRIDE)
        self.laterals = nn.ModuleList(nn.Conv2d(each, width, kernel_size=1) for each in channels)
        self.mix = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.draw = nn.Conv2d(width, planes * self.STRIDE * self.STRIDE, kernel_size=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        first, *deeper = (feature.flatten(0, 1) for feature in features)
        maps = self.laterals[0](avg_pool2d(first, 2))
        for lateral, feature in zip(self.laterals[1:], deeper, strict=True):
            maps = maps + interpolate(
                lateral(feature), size=self.size, mode="bilinear", align_corners=False
            )
        return pixel_shuffle(self.draw(gelu(self.mix(gelu(maps)))), self.STRIDE).unflatten(
            0, features[0].shape[:2]
        )


def random_masks(lanes: int, rows: int, columns: int, ratio: float) -> Tensor:
    """Draw this micro-batch's random masks on the CPU, from torch's generator.

    Args:
        lanes: number of masks.
        rows: patches in a column of the frame.
        columns: patches in a row of the frame.
        ratio: fraction of masked patches.

    Returns:
        (lanes, rows, columns) bool, each with round(ratio * rows * columns) masked patches.
    """
    global_batch, local_rows = shard_slice(lanes)
    ranks = torch.rand(global_batch, rows * columns)[local_rows].argsort(1).argsort(1)
    return (ranks < round(ratio * rows * columns)).unflatten(1, (rows, columns))
