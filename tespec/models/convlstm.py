"""ConvLSTM whose gates are one 1x1 convolution, over maps with channels last."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class ConvLstm(nn.Module):
    """LSTM at every pixel with shared weights; output and hidden state are one.

    Gates are in the order forget, input, output, cell input, and the convolution's input is (map, hidden), as in
    uzh-rpg/RVT, models/layers/rnn.py, without depthwise convolution. A 1x1 convolution is a matrix product per pixel,
    so the maps stay channels last, and the products with the input are taken for all segments at once.

    Args:
        channels: width d of the maps, the hidden state and the cell.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gates = nn.Conv2d(2 * channels, 4 * channels, kernel_size=1)

    def forward(self, maps: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over time.

        Args:
            maps: (T, B, h, w, d).
            hidden: (B, h, w, d) after the segment before.
            cell: (B, h, w, d) likewise, float32.

        Returns:
            hidden states (T, B, h, w, d), and hidden and cell (B, h, w, d) after the last segment.
        """
        of_map, of_hidden = self.gates.weight.flatten(1).split(self.channels, dim=1)
        outputs = []
        for from_map in linear(maps, of_map, self.gates.bias):
            sums = from_map + linear(hidden, of_hidden)
            forget, write, output = sums[..., : 3 * self.channels].sigmoid().chunk(3, dim=-1)
            cell = forget * cell + write * sums[..., 3 * self.channels :].tanh()
            hidden = output * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs), hidden, cell
