"""The recurrent backbone as peers run it: timm's stages and a ConvLSTM with channels first, frame by frame.

Structure of uzh-rpg/RVT, models/layers/rnn.py and models/detection/recurrent_backbone/maxvit_rnn.py: each frame passes
all stages before the next one, and a 1x1 convolution over the joined map and hidden state gives the gates.
"""

from __future__ import annotations

from typing import cast

import torch
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

from tespec.models import EventSwin
from tespec.models.event_swin import ARCHITECTURES, PATCH, WINDOW


class PlainNetwork(nn.Module):
    """An `EventSwin` with the same weights; takes frames of its `img_size`."""

    def __init__(self, backbone: EventSwin) -> None:
        super().__init__()
        width, depths, heads = ARCHITECTURES[backbone.arch]
        self.swin = SwinTransformer(
            img_size=backbone.img_size,
            patch_size=PATCH,
            in_chans=backbone.in_channels,
            num_classes=0,
            embed_dim=width,
            depths=depths,
            num_heads=heads,
            window_size=WINDOW,
            drop_path_rate=0.0,
        )
        self.swin.norm = nn.Identity()
        self.swin.load_state_dict(backbone.swin.state_dict())
        self.gates = nn.ModuleList()
        for channels, lstm in zip(backbone.channels, backbone.lstms, strict=True):
            gates = nn.Conv2d(2 * channels, 4 * channels, kernel_size=1)
            gates.load_state_dict(cast("nn.Module", lstm.gates).state_dict())
            self.gates.append(gates)

    def forward(self, histograms: Tensor) -> list[Tensor]:
        """Features (B, T, C, h, w) of the four stages, of histograms (B, T, 2 * bins, H, W) as bytes."""
        states: list[tuple[Tensor, Tensor] | None] = [None] * len(self.gates)
        frames: list[list[Tensor]] = [[] for _ in self.gates]
        for segment in range(histograms.shape[1]):
            maps = self.swin.patch_embed(histograms[:, segment].float())
            for index, (stage, gates) in enumerate(zip(self.swin.layers, self.gates, strict=True)):
                state = _lstm(gates, stage(maps).permute(0, 3, 1, 2), states[index])
                states[index] = state
                frames[index].append(state[0])
                maps = state[0].permute(0, 2, 3, 1)
        return [torch.stack(each, dim=1) for each in frames]


def _lstm(gates: nn.Module, maps: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    hidden, cell = state or (torch.zeros_like(maps), torch.zeros_like(maps))
    sums = gates(torch.cat((maps, hidden), dim=1))
    forget, write, output, candidate = sums.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + write.sigmoid() * candidate.tanh()
    return output.sigmoid() * cell.tanh(), cell
