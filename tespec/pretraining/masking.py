"""What may be hidden, and the learnable patch that stands where a mask hides pixels."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tespec.core.distributed import shard_slice
from tespec.core.errors import UserError
from tespec.core.settings import Mask
from tespec.models.event_swin import PATCH
from tespec.models.layers import STRIDE, crop

INITIAL_DEVIATION = 0.02
ASPECT = 0.3  # of a block, its least height over width, and the other way round (BEiT, and MEM's code)
ATTEMPTS = 10  # at a block, likewise


def check_mask_unit(mask: Mask) -> None:
    """Refuse units that tokens of a Swin do not fill.

    Raises:
        UserError: the mask's unit is one of those.
    """
    if mask.unit % PATCH or STRIDE % mask.unit:
        raise UserError("objective.mask.unit", f"{mask.unit} px is not made of whole tokens", "choose 4, 8, 16 or 32")


class MaskPatch(nn.Module):
    """The learnable patch that replaces every hidden unit.

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


def replace_hidden(tokens: Tensor, mask: Tensor, patch: Tensor) -> Tensor:
    """Tokens of a frame whose hidden units are `patch`.

    As no token sees beyond its own pixels and units are made of whole tokens, this equals replacing the pixels before
    they are embedded, without ever holding (or differentiating) the pixels of the masked frames.

    Args:
        tokens: (B, T, h, w, C) of the frames as they are.
        mask: (B, rows, cols) bool, True where hidden, the same for all T; may end before the (padded) frame does.
        patch: (1, n, n, C) tokens of one hidden unit.
    """
    side = patch.shape[1]
    height, width = (side * units for units in mask.shape[1:])
    hidden = mask.repeat_interleave(side, dim=1).repeat_interleave(side, dim=2)
    hidden = nn.functional.pad(hidden, (0, tokens.shape[3] - width, 0, tokens.shape[2] - height))
    rows, cols = -(-tokens.shape[2] // side), -(-tokens.shape[3] // side)
    stand_ins = patch.repeat(1, rows, cols, 1)[:, : tokens.shape[2], : tokens.shape[3]]
    return torch.where(hidden[:, None, :, :, None], stand_ins.unsqueeze(1), tokens)


def patch_sums(maps: Tensor, unit: int) -> Tensor:
    """Sum (..., ceil(H / unit), ceil(W / unit)) of maps (..., H, W) over each patch of `unit` px."""
    maps = nn.functional.pad(maps, (0, -maps.shape[-1] % unit, 0, -maps.shape[-2] % unit))
    return maps.unflatten(-1, (-1, unit)).unflatten(-3, (-1, unit)).sum((-3, -1))


def pixel_maps(patches: Tensor, unit: int, size: tuple[int, int]) -> Tensor:
    """Maps (..., *size) that have at each pixel the value of its patch of `unit` px, of patches (..., rows, cols)."""
    return crop(patches.repeat_interleave(unit, dim=-2).repeat_interleave(unit, dim=-1), size)


def draw_blocks(lanes: int, rows: int, columns: int, ratio: float, smallest: int) -> Tensor:
    """Masks (lanes, rows, columns) bool of blocks, drawn for the lanes of all processes; on the CPU.

    See `block_mask`; each lane has a generator of its own, whose seed is drawn from torch's.

    Raises:
        UserError: a share that hides nothing, or a frame of a single row or column of patches.
    """
    most = round(ratio * rows * columns)
    if not most or min(rows, columns) < 2:
        raise UserError("masks", f"{rows} x {columns} patches leave no room for blocks", "hide more, or finer patches")
    everything, own = shard_slice(lanes)
    seeds = torch.randint(1 << 31, (everything,))[own].tolist()
    masks = [block_mask(np.random.default_rng(seed), rows, columns, most, smallest) for seed in seeds]
    return torch.from_numpy(np.stack(masks))


def block_mask(generator: np.random.Generator, rows: int, columns: int, most: int, smallest: int) -> NDArray[np.bool_]:
    """Rectangles of random area and aspect that hide `most` of rows * columns units, or fewer where no more fit.

    Areas lie between `smallest`, or `most` where that is less, and what is left to hide (microsoft/unilm,
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
