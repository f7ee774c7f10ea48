"""What may be hidden, and the learnable patch that stands where a mask hides pixels."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tespec.core.errors import UserError
from tespec.core.settings import Mask
from tespec.models.event_swin import PATCH
from tespec.models.layers import STRIDE

INITIAL_DEVIATION = 0.02
SMALLEST_BLOCK = 4  # units; as the next two, of BEiT's masks
ASPECT = 0.3  # of a block, its least height over width, and the other way round
TRIES = 10  # for a block that hides anything more


def check_mask_unit(mask: Mask) -> None:
    """Refuse units that tokens of a Swin do not fill.

    Raises:
        UserError: the mask's unit is one of those.
    """
    if mask.unit % PATCH or STRIDE % mask.unit:
        raise UserError("objective.mask.unit", f"{mask.unit} px is not made of whole tokens", "choose 4, 8, 16 or 32")


def draw_blocks(generator: np.random.Generator, side: int, count: int) -> NDArray[np.bool_]:
    """Mask (side, side) that hides at most `count` units, in blocks (BEiT, Alg. 1, as iBOT and ECDDP draw them).

    It hides fewer where `TRIES` blocks in a row do not fit.
    """
    mask = np.zeros((side, side), bool)
    tries = 0
    while tries < TRIES and (left := min(count - int(mask.sum()), side * side // 2)) > 0:
        tries += 1
        area = generator.uniform(*sorted((SMALLEST_BLOCK, left)))
        aspect = math.exp(generator.uniform(math.log(ASPECT), -math.log(ASPECT)))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height >= side or width >= side:
            continue
        top, first = generator.integers(side - height + 1), generator.integers(side - width + 1)
        block = mask[top : top + height, first : first + width]
        if 0 < block.size - block.sum() <= left:
            block[:] = True
            tries = 0
    return mask


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
