"""Swin Transformer over event histograms, with a ConvLSTM after each stage."""

from __future__ import annotations

from typing import NamedTuple, cast

import tespec.compat  # noqa: F401  # before timm

import torch
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

from tespec.errors import UserError
from tespec.models.convlstm import ConvLstm
from tespec.models.padding import STRIDE, pad_to
from tespec.registry import MODELS

PATCH = 4  # px
WINDOW = 7  # tokens

LstmState = tuple[Tensor, Tensor]
BackboneState = tuple[LstmState, ...]


class Architecture(NamedTuple):
    """Width of the first stage, and blocks and attention heads per stage."""

    width: int
    depths: tuple[int, int, int, int]
    heads: tuple[int, int, int, int]


ARCHITECTURES = {
    "tiny": Architecture(96, (2, 2, 6, 2), (3, 6, 12, 24)),  # Swin-T
    "micro": Architecture(24, (2, 2, 2, 2), (1, 2, 4, 8)),  # for CPUs
}


@MODELS.register_module()
class EventSwin(nn.Module):
    """Swin backbone whose stage i hands the hidden state of its ConvLSTM to stage i + 1 and out as feature i.

    Counts go in as they are, without normalisation. A sequence runs stage by stage: each stage takes all its segments
    as one batch, then its ConvLSTM runs over time.

    Args:
        arch: a key of `ARCHITECTURES`.
        recurrent: False leaves the ConvLSTMs out; the state is then always None.
        bins: time bins per segment; a histogram has 2 * bins channels.
        img_size: (H, W) in px of the padded input. Windows and their shifts follow from it, so that a network built
            for another size is another function with the same parameters.
        drop_path: highest rate of stochastic depth.

    Attributes:
        channels: widths of the four features.

    Raises:
        UserError: unknown arch, or an img_size that is no multiple of 32.
    """

    def __init__(
        self,
        arch: str = "tiny",
        recurrent: bool = True,
        bins: int = 10,
        img_size: tuple[int, int] = (256, 320),
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
        self.img_size = (int(img_size[0]), int(img_size[1]))
        self.channels = (width, 2 * width, 4 * width, 8 * width)
        self.swin = SwinTransformer(
            img_size=self.img_size,
            patch_size=PATCH,
            in_chans=2 * bins,
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

    def step(self, histogram: Tensor, state: BackboneState | None = None) -> tuple[list[Tensor], BackboneState | None]:
        """Features (B, channels[i], h, w) of one segment (B, 2 * bins, H, W); the streaming form of `forward`."""
        features, state = self(histogram.unsqueeze(1), state)
        return [feature.squeeze(1) for feature in features], state

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
        lanes, segments = tokens.shape[:2]
        maps = tokens.transpose(0, 1).flatten(0, 1)  # time first: what the recurrence reads at one time is contiguous
        features, states = [], []
        for index, stage in enumerate(self.swin.layers):
            maps = stage(maps)
            if self.recurrent:
                hidden, cell = _start(maps, lanes) if state is None else _channels_last(state[index])
                sequence, hidden, cell = self.lstms[index](maps.unflatten(0, (segments, lanes)), hidden, cell)
                states.append((hidden.permute(0, 3, 1, 2), cell.permute(0, 3, 1, 2)))
                maps = sequence.flatten(0, 1)
            features.append(maps.unflatten(0, (segments, lanes)).permute(1, 0, 4, 2, 3))
        return features, tuple(states) if self.recurrent else None


def _start(maps: Tensor, lanes: int) -> LstmState:
    zeros = torch.zeros(lanes, *maps.shape[1:], device=maps.device)
    return zeros, zeros


def _channels_last(state: LstmState) -> LstmState:
    hidden, cell = state
    return hidden.permute(0, 2, 3, 1), cell.permute(0, 2, 3, 1)
