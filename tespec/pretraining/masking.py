"""Masked modelling: random block masks, the learnable mask patch, and image decoders."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

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
from tespec.models.backbone import Backbone, BackboneState, PatchBackbone
from tespec.models.event_swin import PATCH_SIZE, WINDOW
from tespec.models.layers import STRIDE, crop, pad_to
from tespec.registry import MODELS, find_registered

INITIAL_STD = 0.02  # of the mask patch
ASPECT = 0.3  # minimum of a block's height over width, and of its inverse (BEiT, and MEM's code)
ATTEMPTS = 10  # at fitting a block into the mask; same sources


class MaskPatch(nn.Module):
    """The learnable patch of pixels that replaces every masked unit (the paper has 32x32 px).

    Args:
        unit: side of the patch in px.
        backbone: whose input is masked; all its channels share the same pixels.

    Raises:
        UserError: a unit does not consist of complete patches of the backbone.
    """

    def __init__(self, unit: int, backbone: Backbone) -> None:
        super().__init__()
        patch = cast("PatchBackbone", backbone).patch_size
        if unit % patch:
            raise UserError(
                "unit of masks",
                f"{unit} px are no multiple of the {patch} px patches of {backbone.name}",
                "choose a multiple, or another --backbone",
            )
        self.channels = backbone.in_channels
        self.pixels = nn.Parameter(INITIAL_STD * torch.randn(1, unit, unit))

    def forward(self) -> Tensor:
        """Return the patch as a frame (1, channels, unit, unit)."""
        return self.pixels.expand(self.channels, -1, -1).unsqueeze(0)

    def encode(
        self, backbone: Backbone, frames: Tensor, mask: Tensor, state: BackboneState = None
    ) -> tuple[list[Tensor], BackboneState]:
        """Encode frames whose masked units are replaced by the patch.

        Args:
            backbone: that of the initialisation.
            frames: (B, T, C, H, W).
            mask: (B, rows, cols) bool, True at masked units.
            state: recurrent state of the backbone; None: zeros.

        Returns:
            The features of the four stages, and the next state.
        """
        tokens = replace_masked(backbone.embed(frames), mask, backbone.embed_patches(self()))
        return backbone.encode(tokens, state)


def replace_masked(tokens: Tensor, mask: Tensor, patch: Tensor) -> Tensor:
    """Replace the tokens of masked units by those of a patch, in all segments.

    A token depends only on its own pixels and a unit is a block of complete tokens, so this equals
    replacing the pixels before the embedding, but never stores (or differentiates) the pixels of
    masked frames.

    Args:
        tokens: (B, T, h, w, C).
        mask: (B, rows, cols) bool, True at masked units; it may be smaller than the padded frame.
        patch: tokens (1, n, n, C) of one unit.
    """
    height, width = tokens.shape[2:4]
    side = patch.shape[1]
    masked = pad_to(pixel_maps(mask, side, (height, width)), (height, width))
    patches = patch.repeat(1, *grid_size((height, width), side), 1)[:, :height, :width]
    return torch.where(masked[:, None, :, :, None], patches.unsqueeze(1), tokens)


def grid_size(size: Sequence[int], unit: int) -> tuple[int, int]:
    """Count the rows and columns of units that cover a frame.

    Args:
        size: height and width of the frame in px.
        unit: side of a unit in px.
    """
    return -(-size[0] // unit), -(-size[1] // unit)


def pixel_maps(patches: Tensor, unit: int, size: Sequence[int]) -> Tensor:
    """Repeat the value of a patch at each of its pixels.

    Args:
        patches: (..., rows, cols).
        unit: side of a patch in px.
        size: height and width to which the maps are cropped.

    Returns:
        Maps (..., *size).
    """
    return crop(patches.repeat_interleave(unit, dim=-2).repeat_interleave(unit, dim=-1), size)


def random_masks(lanes: int, rows: int, columns: int, ratio: float) -> Tensor:
    """Draw a mask of random patches for every lane of this micro-batch, on the CPU.

    Args:
        lanes: number of masks, B.
        rows: height of a mask in patches.
        columns: width of a mask in patches.
        ratio: fraction of masked patches.

    Returns:
        Masks (B, rows, columns) bool with round(ratio * rows * columns) True, the masked patches.
    """
    total, local = shard_slice(lanes)
    ranks = torch.rand(total, rows * columns)[local].argsort(1).argsort(1)
    return (ranks < round(ratio * rows * columns)).unflatten(1, (rows, columns))


def draw_blocks(lanes: int, rows: int, columns: int, ratio: float, min_area: int) -> Tensor:
    """Draw a mask of random blocks for every lane of this micro-batch, on the CPU.

    Args:
        lanes: number of masks, B.
        rows: height of a mask in patches.
        columns: width of a mask in patches.
        ratio: fraction of masked patches.
        min_area: minimum area of a block in patches; see `block_mask`.

    Returns:
        Masks (B, rows, columns) bool, True at masked patches.

    Raises:
        UserError: if no patch is masked, or the grid has a single row or column.
    """
    count = round(ratio * rows * columns)
    if not count or min(rows, columns) < 2:
        raise UserError(
            "masks",
            f"{rows} x {columns} patches are too few for blocks",
            "mask more or smaller patches",
        )
    total, local = shard_slice(lanes)
    seeds = torch.randint(1 << 31, (total,))[local].tolist()
    masks = [
        block_mask(np.random.default_rng(seed), rows, columns, count, min_area) for seed in seeds
    ]
    return torch.from_numpy(np.stack(masks))


def draw_spread_blocks(lanes: int, side: int, ratios: tuple[float, float], min_area: int) -> Tensor:
    """Draw masks of random blocks for half of two crops of every lane, on the CPU.

    The ratios of the global batch's masks are spread evenly.

    Args:
        lanes: number of lanes of this micro-batch, B.
        side: height and width of a mask in patches.
        ratios: minimum and maximum fraction of masked patches.
        min_area: minimum area of a block in patches; see `block_mask`.

    Returns:
        Masks (2, B, side, side) bool, True at masked patches; half of them are empty.
    """
    total, local = shard_slice(lanes)
    ranks = torch.randperm(2 * total).view(2, total)[:, local].flatten().tolist()
    seeds = torch.randint(2**31, (2, total))[:, local].flatten().tolist()
    low, high = ratios
    masks = []
    for rank, seed in zip(ranks, seeds, strict=True):
        rng = np.random.default_rng(seed)
        ratio = low + (high - low) * (rank + rng.random()) / total if rank < total else 0.0
        masks.append(block_mask(rng, side, side, int(ratio * side * side), min_area))
    return torch.from_numpy(np.stack(masks)).unflatten(0, (2, lanes))


def block_mask(
    rng: np.random.Generator, rows: int, columns: int, count: int, min_area: int
) -> NDArray[np.bool_]:
    """Mask random rectangles, as BEiT (microsoft/unilm, beit/masking_generator.py).

    The details are those of the version in tum-vision/mem.

    Args:
        rng: source of the blocks' areas, aspect ratios and positions.
        rows: height of the mask in units.
        columns: width of the mask in units.
        count: number of masked units; fewer are masked if no further block fits.
        min_area: minimum area of a block, at most `count`; the maximum is the number of units that
            are still to be masked.

    Returns:
        The mask (rows, columns), True at masked units.
    """
    mask = np.zeros((rows, columns), bool)
    min_area = min(min_area, count)
    attempts = 0  # since the last block
    while attempts < ATTEMPTS and (remaining := count - int(mask.sum())) > 0:
        attempts += 1
        area = min_area + rng.random() * (remaining - min_area)
        aspect = ASPECT ** rng.uniform(-1, 1)
        height = round(math.sqrt(area * aspect))
        width = round(math.sqrt(area / aspect))
        if height < rows and width < columns:
            top = rng.integers(rows - height + 1)
            left = rng.integers(columns - width + 1)
            block = mask[top : top + height, left : left + width]
            if 0 < block.size - block.sum() <= remaining:
                block[:] = True
                attempts = 0
    return mask


class PatchTokens(nn.Module):
    """Project backbone features to tokens of `unit` px.

    A position of a coarser stage yields all tokens inside it.

    Args:
        channels: of the four stages.
        unit: side of a token in px.
        width: channels of a token.
        features: "last" stage, or the sum over "all" stages.
    """

    def __init__(self, channels: tuple[int, ...], unit: int, width: int, features: str) -> None:
        super().__init__()
        self.laterals = nn.ModuleList()
        for stage in range(0 if features == "all" else 3, 4):
            finer = max(1, unit // (PATCH_SIZE << stage))
            coarser = max(1, (PATCH_SIZE << stage) // unit)
            lateral = nn.Conv2d(channels[stage], width * coarser**2, 1)
            self.laterals.append(
                nn.Sequential(nn.AvgPool2d(finer), lateral, nn.PixelShuffle(coarser))
            )

    def forward(self, features: list[Tensor]) -> Tensor:
        """Compute tokens (B * T, h * w, width), row by row, of features (B, T, C, H, W)."""
        selected = zip(self.laterals, features[-len(self.laterals) :], strict=True)
        maps = torch.stack([lateral(stage.flatten(0, 1)) for lateral, stage in selected]).sum(0)
        return maps.flatten(2).transpose(1, 2)


def build_decoder(settings: Mapping[str, Any], backbone: Backbone, planes: int) -> nn.Module:
    """Build a registered decoder from a backbone's features to an image.

    Args:
        settings: `type`, the decoder's registered name, and its arguments.
        backbone: its channels and input size are arguments too.
        planes: planes of the image.

    Raises:
        UserError: if the type is unknown, or the decoder refuses its arguments.
    """
    of_backbone = {"channels": backbone.channels, "img_size": backbone.img_size, "planes": planes}
    arguments = {**settings, **of_backbone}
    kind = find_registered(MODELS, str(arguments.pop("type", "")), "objective.decoder.type")
    try:
        return kind(**arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(
            "objective.decoder",
            f"{kind.__name__} cannot be built ({error})",
            "correct its settings",
        ) from error


@MODELS.register_module()
class LastStageDecoder(nn.Module):
    """Projection, one Swin block and a 1x1 convolution: a last-stage token predicts its 32x32 px.

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

    Args:
        channels: widths of the backbone's stages.
        img_size: (H, W) of the padded input in px.
        planes: planes of the image.
        width: channels of the sum.
    """

    STRIDE = 8

    def __init__(
        self, channels: tuple[int, ...], img_size: Size, planes: int = 1, width: int = 64
    ) -> None:
        super().__init__()
        self.size = (img_size[0] // self.STRIDE, img_size[1] // self.STRIDE)
        self.laterals = nn.ModuleList(
            nn.Conv2d(inputs, width, kernel_size=1) for inputs in channels
        )
        self.mix = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.draw = nn.Conv2d(width, planes * self.STRIDE * self.STRIDE, kernel_size=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Decode features (B, T, C, h, w) to an image (B, T, planes, H, W) at `img_size`."""
        maps = self.laterals[0](avg_pool2d(features[0].flatten(0, 1), 2))
        for lateral, feature in zip(self.laterals[1:], features[1:], strict=True):
            coarse = lateral(feature.flatten(0, 1))
            maps = maps + interpolate(coarse, self.size, mode="bilinear", align_corners=False)
        maps = gelu(self.mix(gelu(maps)))  # (B * T, width, H / 8, W / 8)
        return pixel_shuffle(self.draw(maps), self.STRIDE).unflatten(0, features[0].shape[:2])
