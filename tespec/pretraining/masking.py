"""Masked modelling: masks, the learnable patch that stands where pixels are masked, and decoders to an image."""

from __future__ import annotations

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
from tespec.models.backbone import Backbone, BackboneState
from tespec.models.event_swin import WINDOW, EventSwin
from tespec.models.layers import STRIDE, crop
from tespec.registry import MODELS, find_registered

INITIAL_DEVIATION = 0.02
ASPECT = 0.3  # of a block, its least height over width, and the other way round (BEiT, and MEM's code)
ATTEMPTS = 10  # at a block, likewise


class MaskPatch(nn.Module):
    """The learnable patch that replaces every masked unit.

    Args:
        unit: its side in px.
        channels: channels of the histograms; all show the one plane (the paper speaks of a 32x32 parameter).
    """

    def __init__(self, unit: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.pixels = nn.Parameter(INITIAL_DEVIATION * torch.randn(1, unit, unit))

    def forward(self) -> Tensor:
        """The patch as a frame (1, channels, unit, unit)."""
        return self.pixels.expand(self.channels, -1, -1).unsqueeze(0)

    def encode(
        self, backbone: Backbone, frames: Tensor, mask: Tensor, state: BackboneState | None = None
    ) -> tuple[list[Tensor], BackboneState | None]:
        """Features and state, as of `backbone`, of frames (B, T, C, H, W) that show the patch where masked."""
        tokens = replace_masked(backbone.embed(frames), mask, backbone.embed_patches(self()))
        return backbone.encode(tokens, state)


def replace_masked(tokens: Tensor, mask: Tensor, patch: Tensor) -> Tensor:
    """Tokens of a frame whose masked units are `patch`.

    As no token sees beyond its own pixels and units are made of whole tokens, this equals replacing the pixels before
    they are embedded, without ever holding (or differentiating) the pixels of the masked frames.

    Args:
        tokens: (B, T, h, w, C) of the frames as they are.
        mask: (B, rows, cols) bool, True where masked, the same for all T; may end before the (padded) frame does.
        patch: (1, n, n, C) tokens of one masked unit.
    """
    (height, width), side = tokens.shape[2:4], patch.shape[1]
    masked = mask.repeat_interleave(side, dim=1).repeat_interleave(side, dim=2)
    masked = nn.functional.pad(masked, (0, width - masked.shape[2], 0, height - masked.shape[1]))
    stand_ins = patch.repeat(1, -(-height // side), -(-width // side), 1)[:, :height, :width]
    return torch.where(masked[:, None, :, :, None], stand_ins.unsqueeze(1), tokens)


def pixel_maps(patches: Tensor, unit: int, size: tuple[int, int]) -> Tensor:
    """Maps (..., *size) that have at each pixel the value of its patch of `unit` px, of patches (..., rows, cols)."""
    return crop(patches.repeat_interleave(unit, dim=-2).repeat_interleave(unit, dim=-1), size)


def draw_blocks(lanes: int, rows: int, columns: int, ratio: float, smallest: int) -> Tensor:
    """Masks (lanes, rows, columns) bool of blocks, drawn for the lanes of all processes; on the CPU.

    See `block_mask`; each lane has a generator of its own, whose seed is drawn from torch's. A share that masks
    nothing, and a single row or column of patches, are refused.
    """
    most = round(ratio * rows * columns)
    if not most or min(rows, columns) < 2:
        raise UserError("masks", f"{rows} x {columns} patches leave no room for blocks", "mask more, or finer patches")
    everything, own = shard_slice(lanes)
    seeds = torch.randint(1 << 31, (everything,))[own].tolist()
    masks = [block_mask(np.random.default_rng(seed), rows, columns, most, smallest) for seed in seeds]
    return torch.from_numpy(np.stack(masks))


def block_mask(generator: np.random.Generator, rows: int, columns: int, most: int, smallest: int) -> NDArray[np.bool_]:
    """Rectangles of random area and aspect that mask `most` of rows * columns units, or fewer where no more fit.

    Areas lie between `smallest`, or `most` where that is less, and what is left to mask (microsoft/unilm,
    beit/masking_generator.py, as tum-vision/mem has it).
    """
    mask, smallest = np.zeros((rows, columns), bool), min(smallest, most)
    while (left := most - int(mask.sum())) > 0:
        for _ in range(ATTEMPTS):
            area, aspect = smallest + generator.random() * (left - smallest), ASPECT ** generator.uniform(-1, 1)
            height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if not (height < rows and width < columns):
                continue
            top, first = generator.integers(rows - height + 1), generator.integers(columns - width + 1)
            block = mask[top : top + height, first : first + width]
            if 0 < block.size - block.sum() <= left:
                block[:] = True
                break
        else:
            break
    return mask


def build_decoder(settings: Mapping[str, Any], backbone: EventSwin, planes: int) -> nn.Module:
    """A decoder, by its name as `type` and settings by name, of a backbone's features to an image of so many planes.

    It is dropped after pre-training. An unknown one is refused.
    """
    kind = find_registered(MODELS, str(settings.get("type", "")), "objective.decoder.type")
    made_for = {"channels": backbone.channels, "img_size": backbone.img_size, "planes": planes}
    try:
        decoder: nn.Module = kind(**{name: value for name, value in settings.items() if name != "type"} | made_for)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(
            "objective.decoder", f"{kind.__name__} cannot be built ({error})", "correct its settings"
        ) from error
    return decoder


@MODELS.register_module()
class LastStageDecoder(nn.Module):
    """One Swin block and a 1x1 convolution: each token of the last stage draws its 32x32 px.

    The paper gives a Swin block, a 1x1 convolution and 3.7 M parameters, but no width; several widths fit. This one
    has 3.74 M for Swin-T.

    Args:
        channels: widths of the backbone's features.
        img_size: (H, W) in px of the padded input.
        planes: of the image.
        width: of the block.
        heads: of its attention.
    """

    def __init__(
        self, channels: tuple[int, ...], img_size: tuple[int, int], planes: int = 1, width: int = 488, heads: int = 8
    ) -> None:
        super().__init__()
        self.project = nn.Linear(channels[-1], width)
        size = img_size[0] // STRIDE, img_size[1] // STRIDE
        self.block = SwinTransformerBlock(width, size, num_heads=heads, window_size=WINDOW)
        self.draw = nn.Linear(width, planes * STRIDE * STRIDE)  # a 1x1 convolution on maps with channels last

    def forward(self, features: list[Tensor]) -> Tensor:
        """Image (B, T, planes, H, W) at img_size of features (B, T, C, h, w)."""
        last = features[-1]
        pixels = self.draw(self.block(self.project(last.flatten(0, 1).permute(0, 2, 3, 1))))
        return pixel_shuffle(pixels.permute(0, 3, 1, 2), STRIDE).unflatten(0, last.shape[:2])


@MODELS.register_module()
class AllStagesDecoder(nn.Module):
    """All four stages, brought to one width and summed at stride 8, and two convolutions.

    Small backbones need it: fed by the last stage alone, they do not leave the plateau of predicting zero. Args as of
    `LastStageDecoder`, `width` being that of the sum.
    """

    STRIDE = 8

    def __init__(self, channels: tuple[int, ...], img_size: tuple[int, int], planes: int = 1, width: int = 64) -> None:
        super().__init__()
        self.size = (img_size[0] // self.STRIDE, img_size[1] // self.STRIDE)
        self.laterals = nn.ModuleList(nn.Conv2d(each, width, kernel_size=1) for each in channels)
        self.mix = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.draw = nn.Conv2d(width, planes * self.STRIDE * self.STRIDE, kernel_size=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Image (B, T, planes, H, W) at img_size of features (B, T, C, h, w)."""
        first, *deeper = (feature.flatten(0, 1) for feature in features)
        maps = self.laterals[0](avg_pool2d(first, 2))
        for lateral, feature in zip(self.laterals[1:], deeper, strict=True):
            maps = maps + interpolate(lateral(feature), size=self.size, mode="bilinear", align_corners=False)
        return pixel_shuffle(self.draw(gelu(self.mix(gelu(maps)))), self.STRIDE).unflatten(0, features[0].shape[:2])
