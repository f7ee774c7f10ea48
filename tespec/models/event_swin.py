"""Swin Transformer for event histograms, optionally with a ConvLSTM after each stage."""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tespec.core.settings import Size
from tespec.models.backbone import PatchBackbone
from tespec.models.layers import compute_dtype
from tespec.registry import BACKBONES

PATCH_SIZE = 4  # px
WINDOW = 7  # tokens
# Width of the first stage, and blocks and attention heads per stage.
SIZES = {
    "swin_tiny": (96, (2, 2, 6, 2), (3, 6, 12, 24)),  # Swin-T
    "swin_micro": (24, (2, 2, 2, 2), (1, 2, 4, 8)),  # for CPUs
    # ECDDP's, with a norm for each feature (model/network/swin_transformer.py)
    "swin_tiny_ecddp": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
}
ECDDP_EPS = 1e-6  # of its norms
BIAS_TABLE = re.compile(r"swin\.layers\.([0-3])\..*relative_position_bias_table")


@BACKBONES.register_module()
class EventSwin(PatchBackbone):
    """Swin Transformer, by default with a ConvLSTM after each stage; see `Backbone` for arguments.

    The hidden state of stage i's ConvLSTM is both feature i and the input of stage i + 1. The input
    is counts without normalisation. Windows and their shifts depend on `img_size`: a network built
    for another size computes another function with the same parameters. Source: Liu et al., "Swin
    Transformer" (ICCV 2021), in timm's implementation.

    Example:
        >>> import torch
        >>> backbone = EventSwin("swin_micro", bins=2, img_size=(64, 96)).eval()
        >>> histograms = torch.ones(1, 3, 4, 60, 90, dtype=torch.uint8)  # (B, T, 2 * bins, H, W)
        >>> features, state = backbone(histograms)
        >>> [tuple(feature.shape) for feature in features[:2]]
        [(1, 3, 24, 16, 24), (1, 3, 48, 8, 12)]
        >>> features, state = backbone.step(histograms[:, 0], state)  # one more segment
        >>> tuple(features[3].shape)
        (1, 192, 2, 3)
    """

    sizes = tuple(SIZES)
    patch_size = PATCH_SIZE
    stem = "swin.patch_embed.proj.weight"
    position_tables = ("relative_position_bias_table",)

    def build(self, drop_path: float) -> None:
        width, depths, heads = SIZES[self.name]
        has_norms = self.name == "swin_tiny_ecddp"
        self.channels = (width, 2 * width, 4 * width, 8 * width)
        norm_layer: Any = partial(nn.LayerNorm, eps=ECDDP_EPS if has_norms else 1e-5)
        self.swin = SwinTransformer(
            img_size=self.img_size,
            patch_size=PATCH_SIZE,
            in_chans=self.in_channels,
            num_classes=0,
            embed_dim=width,
            depths=depths,
            num_heads=heads,
            window_size=WINDOW,
            drop_path_rate=drop_path,
            norm_layer=norm_layer,
        )
        self.swin.norm = nn.Identity()  # belongs to the classifier, like its head
        if has_norms:
            self.hierarchical = False
            self.necks = nn.ModuleList(
                nn.LayerNorm(channels, eps=ECDDP_EPS) for channels in self.channels
            )

    def stage_modules(self) -> list[nn.Module]:
        return list(self.swin.layers)

    def neck(self, stage: int, output: Tensor) -> Tensor:
        return output if self.hierarchical else self.necks[stage](output)

    def allow_any_size(self) -> None:
        """Allow frames of any size that is a multiple of 32 px, with the windows of `img_size`."""
        for block in self.modules():
            if isinstance(block, SwinTransformerBlock):
                block.dynamic_mask = True

    def embed_patches(self, frames: Tensor) -> Tensor:
        """Embed frames (N, in_channels, 4 h, 4 w) as tokens (N, h, w, channels[0])."""
        embedding: Any = self.swin.patch_embed
        dtype = compute_dtype(embedding.proj.weight)
        # Reordering is cheapest while counts are bytes; the tokens are then already channels last.
        frames = frames.contiguous(memory_format=torch.channels_last).to(dtype)
        return embedding.norm(embedding.proj(frames).permute(0, 2, 3, 1))

    def resize(self, tensors: Mapping[str, Tensor], built_for: Size) -> dict[str, Tensor]:
        """Interpolate the position bias tables of a state dict to the windows of `img_size`.

        A table whose size does not match `built_for` is treated as one of square windows, if
        possible; else it stays as it is.

        Args:
            tensors: state dict of a Swin Transformer.
            built_for: its input size (H, W) in px.

        Returns:
            The state dict with resized tables.
        """
        resized = dict(tensors)
        for name, table in tensors.items():
            match = BIAS_TABLE.fullmatch(name)
            if match and table.ndim == 2 and len(table) <= count_offsets((WINDOW, WINDOW)):
                old, new = (window_of(size, int(match[1])) for size in (built_for, self.img_size))
                resized[name] = resize_table(table, old, new)
        return resized


def window_of(img_size: Size, stage: int) -> Size:
    """Compute the size of a stage's windows: 7 tokens, or the size of the map if smaller (timm).

    Args:
        img_size: input size (H, W) in px.
        stage: 0 to 3.

    Returns:
        (rows, columns) in tokens.
    """
    # Not timm's `always_partition`: padding maps of 3x5 tokens to 7x7 makes steps at 160 px 12 to
    # 31 % slower.
    rows, columns = (min(WINDOW, side // (PATCH_SIZE << stage)) for side in img_size)
    return rows, columns


def resize_table(table: Tensor, known: Size, new: Size) -> Tensor:
    """Resize a position bias table to a grid of another size, bicubically over offsets.

    Args:
        table: ((2h-1)(2w-1), heads) for a grid of (h, w) tokens: the known or a square one.
        known: (h, w).
        new: target (rows, columns) in tokens.

    Returns:
        ((2 rows - 1)(2 columns - 1), heads); `table` itself if the sizes are equal, or if it has
        neither size or is quantised.
    """
    old = find_grid(len(table), known, count_offsets)
    if old is None or old == new or not table.is_floating_point():
        return table
    maps = table.float().T.reshape(1, -1, 2 * old[0] - 1, 2 * old[1] - 1)  # (1, heads, rows, cols)
    size = (2 * new[0] - 1, 2 * new[1] - 1)
    resized = interpolate(maps, size=size, mode="bicubic", align_corners=False)
    return resized.flatten(2)[0].T.contiguous()


def count_offsets(grid: Size) -> int:
    """Count the offsets between the tokens of a grid of (rows, columns)."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1)


def find_grid(count: int, known: Size, entries: Callable[[Size], int]) -> Size | None:
    """Find the grid that a table of positions or offsets was made for.

    Args:
        count: entries of the table.
        known: (rows, columns) of the grid, if the table was not made for a square one.
        entries: returns the entries of a grid's table.

    Returns:
        the known or a square grid with as many entries, None if there is none.
    """
    squares = ((side, side) for side in range(1, math.isqrt(count) + 1))
    return next((grid for grid in (known, *squares) if entries(grid) == count), None)
