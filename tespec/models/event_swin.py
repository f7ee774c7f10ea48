"""Swin Transformer for event histograms, optionally with a ConvLSTM after each stage."""

import math
import re
from collections.abc import Mapping
from typing import cast

import torch
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tespec.models.backbone import Backbone
from tespec.models.layers import compute_dtype
from tespec.registry import BACKBONES

PATCH = 4  # px
WINDOW = 7  # tokens
# Width of the first stage, and blocks and attention heads per stage.
VARIANTS = {
    "swin_tiny": (96, (2, 2, 6, 2), (3, 6, 12, 24)),  # Swin-T
    "swin_micro": (24, (2, 2, 2, 2), (1, 2, 4, 8)),  # for CPUs
}
TABLE = re.compile(r"swin\.layers\.([0-3])\..*relative_position_bias_table")


@BACKBONES.register_module()
class EventSwin(Backbone):
    """Swin backbone; the hidden state of stage i's ConvLSTM is both feature i and the input of stage i + 1.

    The input is counts without normalisation. Windows and their shifts depend on `img_size`: a
    network built for another size computes another function with the same parameters.
    """

    variants = tuple(VARIANTS)
    stem = "swin.patch_embed.proj.weight"
    position_tables = ("relative_position_bias_table",)

    def build(self, drop_path: float) -> None:
        width, depths, heads = VARIANTS[self.name]
        self.channels = (width, 2 * width, 4 * width, 8 * width)
        self.swin = SwinTransformer(
            img_size=self.img_size,
            patch_size=PATCH,
            in_chans=self.in_channels,
            num_classes=0,
            embed_dim=width,
            depths=depths,
            num_heads=heads,
            window_size=WINDOW,
            drop_path_rate=drop_path,
        )
        self.swin.norm = nn.Identity()  # belongs to the classifier, as its head does

    def stage_modules(self) -> list[nn.Module]:
        return list(self.swin.layers)

    def take_any_size(self) -> None:
        """Allow frames of any size that is a multiple of 32 px, with the windows of `img_size`."""
        for block in self.modules():
            if isinstance(block, SwinTransformerBlock):
                block.dynamic_mask = True

    def embed_patches(self, frames: Tensor) -> Tensor:
        """Tokens (N, h, w, channels[0]) of frames (N, 2 * bins, 4 h, 4 w); each depends only on its own 4x4 px."""
        embedding = self.swin.patch_embed
        project, norm = cast("nn.Conv2d", embedding.proj), cast("nn.Module", embedding.norm)
        # Reordering is cheapest while counts are bytes; the tokens are then already channels last.
        frames = frames.contiguous(memory_format=torch.channels_last).to(
            compute_dtype(project.weight)
        )
        return norm(project(frames).permute(0, 2, 3, 1))

    def resize(
        self, tensors: Mapping[str, Tensor], built_for: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Interpolate the position bias tables of a state dict to the windows of `img_size`.

        A table whose size does not match `built_for` is treated as one of square windows, if
        possible, or kept.
        """
        resized = dict(tensors)
        for name, table in tensors.items():
            found = TABLE.fullmatch(name)
            if found is None or table.ndim != 2 or not table.is_floating_point():
                continue
            old, new = (window_of(size, int(found[1])) for size in (built_for, self.img_size))
            side = (math.isqrt(len(table)) + 1) // 2
            for rows, columns in (old, (side, side)):
                if rows <= WINDOW and (2 * rows - 1) * (2 * columns - 1) == len(table):
                    resized[name] = resize_table(table, (rows, columns), new)
                    break
        return resized


def window_of(img_size: tuple[int, int], stage: int) -> tuple[int, int]:
    """Size of a stage's windows as (rows, columns) in tokens: 7, or that of the map if smaller (timm)."""
    # Not timm's `always_partition`: padding maps of 3x5 tokens to 7x7 makes steps at 160 px 12 to
    # 31 % slower.
    rows, columns = (min(WINDOW, side // (PATCH << stage)) for side in img_size)
    return rows, columns


def resize_table(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Resize a bias table ((2h-1)(2w-1), heads) of windows `old` (h, w) to windows `new`, bicubically over offsets."""
    if old == new:
        return table
    rows, columns, wanted_rows, wanted_columns = (2 * side - 1 for side in (*old, *new))
    offsets = table.float().T.reshape(1, -1, rows, columns)
    resized = interpolate(
        offsets, size=(wanted_rows, wanted_columns), mode="bicubic", align_corners=False
    )
    return resized.flatten(2)[0].T.contiguous()
