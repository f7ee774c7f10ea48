"""Swin Transformer over event histograms, with a ConvLSTM after each stage."""

from __future__ import annotations

from typing import NamedTuple, cast

import tespec.core.compat  # noqa: F401  # before timm

import torch
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from torch import Tensor, nn

from tespec.core.errors import UserError
from tespec.core.registry import BACKBONES
from tespec.models.backbone import Backbone, BackboneState, run_stages
from tespec.models.convlstm import ConvLstm
from tespec.models.layers import STRIDE, pad_to

PATCH = 4  # px
WINDOW = 7  # tokens


class Architecture(NamedTuple):
    """Width of the first stage, and blocks and attention heads per stage."""

    width: int
    depths: tuple[int, int, int, int]
    heads: tuple[int, int, int, int]


ARCHITECTURES: dict[str, Architecture] = {
    "tiny": Architecture(96, (2, 2, 6, 2), (3, 6, 12, 24)),  # Swin-T
    "micro": Architecture(24, (2, 2, 2, 2), (1, 2, 4, 8)),  # for CPUs
}


@BACKBONES.register_module()
class EventSwin(Backbone):
    """Swin backbone whose stage i hands the hidden state of its ConvLSTM to stage i + 1 and out as feature i.

    Counts go in as they are, without normalisation. A sequence runs stage by stage: each stage takes all its segments
    as one batch, then its ConvLSTM runs over time.

    Args:
        arch: a key of `ARCHITECTURES`.
        recurrent: False leaves the ConvLSTMs out; the state is then always None.
        bins: time bins per segment; a histogram has 2 * bins channels.
        img_size: (H, W) in px of the padded input. Windows and their shifts follow from it, so that a network built
            for another size is another function with the same parameters.
        in_channels: of the input, where it is no histogram: 1 or 3 of an image.
        drop_path: rate of stochastic depth in the last block.

    Raises:
        UserError: unknown arch, or an img_size that is no multiple of 32.
    """

    architectures = tuple(ARCHITECTURES)
    stem = "swin.patch_embed.proj.weight"
    position_tables = ("relative_position_bias_table",)

    def __init__(
        self,
        arch: str = "tiny",
        recurrent: bool = True,
        bins: int = 10,
        img_size: tuple[int, int] = (256, 320),
        in_channels: int | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if arch not in ARCHITECTURES:
            raise UserError("arch", f"unknown value {arch!r}", f"choose from {', '.join(ARCHITECTURES)}")
        if any(side % STRIDE or side <= 0 for side in img_size):
            raise UserError("img_size", f"{tuple(img_size)} is not made of multiples of {STRIDE}", "pad the input")
        width, depths, heads = ARCHITECTURES[arch]
        self.arch = arch
        self.recurrent = recurrent
        self.bins = bins
        self.in_channels = in_channels or 2 * bins
        self.img_size = (int(img_size[0]), int(img_size[1]))
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
        self.lstms = nn.ModuleList(ConvLstm(width) for width in self.channels if recurrent)

    def forward(
        self, histograms: Tensor, state: BackboneState | None = None
    ) -> tuple[list[Tensor], BackboneState | None]:
        """Features of a sequence.

        Args:
            histograms: (B, T, 2 * bins, H, W) counts of any dtype, `img_size` or smaller.
            state: what an earlier call returned; None starts from zeros.

        Returns:
            four features (B, T, channels[i], h, w) at strides 4, 8, 16 and 32 of `img_size`, and the state: per stage
            hidden and cell (B, channels[i], h, w) float32; None for a feed-forward network.
        """
        return self.encode(self.embed(histograms), state)

    def stage_modules(self) -> list[nn.Module]:
        """Swin's layers."""
        return list(self.swin.layers)

    def take_any_size(self) -> None:
        """Let `embed_patches` and `encode` run on frames of any size of whole 32 px, with the windows of `img_size`."""
        for block in self.modules():
            if isinstance(block, SwinTransformerBlock):
                block.dynamic_mask = True

    def embed(self, histograms: Tensor) -> Tensor:
        """Tokens (B, T, H/4, W/4, channels[0]) of histograms (B, T, 2 * bins, H, W), padded to `img_size`."""
        tokens = self.embed_patches(pad_to(histograms, self.img_size).flatten(0, 1))
        return tokens.unflatten(0, histograms.shape[:2])

    def embed_patches(self, frames: Tensor) -> Tensor:
        """Tokens (N, h, w, channels[0]) of frames (N, 2 * bins, 4 h, 4 w); each sees its own 4x4 px alone."""
        embedding = self.swin.patch_embed
        project, norm = cast("nn.Conv2d", embedding.proj), cast("nn.Module", embedding.norm)
        # Reordering is cheapest while counts are bytes, and the tokens then need none.
        frames = frames.contiguous(memory_format=torch.channels_last).to(project.weight.dtype)
        return norm(project(frames).permute(0, 2, 3, 1))

    def encode(self, tokens: Tensor, state: BackboneState | None = None) -> tuple[list[Tensor], BackboneState | None]:
        """Features and state, as `forward` gives them, of tokens (B, T, H/4, W/4, channels[0])."""
        return run_stages(list(self.swin.layers), self.lstms, tokens, state, self._recomputes)
