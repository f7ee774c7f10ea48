"""What every backbone for events is to heads, tasks and objectives: four stages, with a ConvLSTM after each or without.

A new kind is a class registered in `BACKBONES`: see docs/add_a_backbone.md.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from tespec.core.errors import UserError
from tespec.core.registry import BACKBONES
from tespec.models.layers import STRIDE, compute_dtype, pad_to, with_shared_draws

State = TypeVar("State")


def reset(state: State, fresh: Tensor) -> State:
    """Zeroes the lanes that start afresh and leaves the others as they are.

    Args:
        state: tensors (B, ...) in nested tuples, or None.
        fresh: (B,) bool.
    """
    if isinstance(state, Tensor):
        lanes = fresh.to(state.device).view(-1, *[1] * (state.ndim - 1))
        return cast("State", torch.where(lanes, torch.zeros_like(state), state))
    if isinstance(state, tuple):
        return cast("State", tuple(reset(part, fresh) for part in state))
    return state


def detach(state: State) -> State:
    """The same values cut off from the graph that made them."""
    if isinstance(state, Tensor):
        return cast("State", state.detach())
    if isinstance(state, tuple):
        return cast("State", tuple(detach(part) for part in state))
    return state


LstmState = tuple[Tensor, Tensor]
BackboneState = tuple[LstmState, ...]


class Backbone(nn.Module, ABC):
    """Four features at strides 4, 8, 16 and 32, with memory after each stage or without.

    A sequence runs stage by stage: each stage takes all its segments as one batch, then its ConvLSTM runs over time. A
    subclass sets `channels`, builds its stages, and ends with `self.lstms = self.memories()`.

    Args:
        arch: one of `architectures`.
        recurrent: whether it has memory; the state of a network without is always None.
        bins: time bins per segment; a histogram has 2 * bins channels.
        img_size: (H, W) in px of the padded input.
        in_channels: of the input, where it is no histogram: 1 or 3 of an image.

    Attributes:
        architectures: names of the sizes it comes in.
        stem: name of the kernel that sees the input's channels.
        position_tables: parts of the names of parameters that stand for positions.
        channels: widths of the four features.
        lstms: one for each stage; none without memory.
        recipe: settings of the training, where the backbone was loaded from a file that names them.
        recompute: whether the backward pass computes stages again; see `tespec.models.execution`.

    Raises:
        UserError: unknown arch, or an img_size that is no multiple of 32.
    """

    architectures: ClassVar[Sequence[str]] = ()
    stem: ClassVar[str] = ""
    position_tables: ClassVar[Sequence[str]] = ()
    channels: tuple[int, int, int, int]
    lstms: nn.ModuleList
    recipe: Mapping[str, Any] | None = None
    recompute: bool = False

    def __init__(
        self, arch: str, recurrent: bool, bins: int, img_size: tuple[int, int], in_channels: int | None = None
    ) -> None:
        super().__init__()
        if arch not in self.architectures:
            raise UserError("arch", f"unknown value {arch!r}", f"choose from {', '.join(self.architectures)}")
        if any(side % STRIDE or side <= 0 for side in img_size):
            raise UserError("img_size", f"{tuple(img_size)} is not made of multiples of {STRIDE}", "pad the input")
        self.arch, self.recurrent, self.bins = arch, recurrent, bins
        self.img_size = (int(img_size[0]), int(img_size[1]))
        self.in_channels = in_channels or 2 * bins

    def memories(self) -> nn.ModuleList:
        """A fresh ConvLSTM for each of the `channels`; none of a network without memory."""
        return nn.ModuleList(ConvLstm(width) for width in self.channels if self.recurrent)

    @abstractmethod
    def embed_patches(self, frames: Tensor) -> Tensor:
        """Input (N, h, w, C) of the first stage, of frames (N, in_channels, H, W) of any dtype, `img_size` large."""

    @abstractmethod
    def stage_modules(self) -> list[nn.Module]:
        """The four stages, without their memory."""

    def stage_functions(self) -> Sequence[Callable[[Tensor], Tensor]]:
        """The stages as functions from maps (N, h, w, C) to maps; see `channels_last` for convolutions."""
        return self.stage_modules()

    def resize(self, tensors: Mapping[str, Tensor], built_for: tuple[int, int]) -> dict[str, Tensor]:
        """Tensors of such a network, built for an input of (H, W) px, as this one takes them for its `img_size`."""
        return dict(tensors)

    def forward(
        self, histograms: Tensor, state: BackboneState | None = None
    ) -> tuple[list[Tensor], BackboneState | None]:
        """Features of a sequence.

        Args:
            histograms: (B, T, in_channels, H, W) counts of any dtype, `img_size` or smaller.
            state: what an earlier call returned; None starts from zeros.

        Returns:
            four features (B, T, channels[i], h, w) at strides 4, 8, 16 and 32 of `img_size`, and the state: per stage
            hidden and cell (B, channels[i], h, w) float32; None for a feed-forward network.
        """
        return self.encode(self.embed(histograms), state)

    def embed(self, histograms: Tensor) -> Tensor:
        """Input (B, T, h, w, C) of the first stage, of histograms (B, T, in_channels, H, W), padded to `img_size`."""
        patches = self.embed_patches(pad_to(histograms, self.img_size).flatten(0, 1))
        return patches.unflatten(0, histograms.shape[:2])

    def encode(self, tokens: Tensor, state: BackboneState | None = None) -> tuple[list[Tensor], BackboneState | None]:
        """Features and state, as `forward` gives them, of what `embed` gave."""
        return run_stages(self.stage_functions(), self.lstms, tokens, state, self.recompute and torch.is_grad_enabled())

    @torch.no_grad()
    def step(self, histogram: Tensor, state: BackboneState | None = None) -> tuple[list[Tensor], BackboneState | None]:
        """Features (B, channels[i], h, w) of one segment (B, in_channels, H, W), and the state, without gradients.

        The streaming form of `forward`, for inference: memory does not grow with the number of steps.
        """
        features, state = cast("tuple[list[Tensor], BackboneState | None]", self(histogram.unsqueeze(1), state))
        return [feature.squeeze(1) for feature in features], state


def channels_last(stage: nn.Module) -> Callable[[Tensor], Tensor]:
    """A stage of convolutions, which takes maps (N, C, h, w), as a function of maps (N, h, w, C)."""
    return partial(_permuted, stage)


def _permuted(stage: nn.Module, maps: Tensor) -> Tensor:
    out: Tensor = stage(maps.permute(0, 3, 1, 2))
    return out.permute(0, 2, 3, 1)


def run_stages(
    stages: Sequence[Callable[[Tensor], Tensor]],
    lstms: nn.ModuleList,
    maps: Tensor,
    state: BackboneState | None,
    recompute: bool = False,
) -> tuple[list[Tensor], BackboneState | None]:
    """Stage after stage, each for all segments at once, and its ConvLSTM over time before the next one.

    Args:
        stages: from maps (N, h, w, C) to maps.
        lstms: one for each stage; none for a feed-forward network.
        maps: (B, T, h, w, C) input of the first stage.
        state: see `Backbone.forward`.
        recompute: keep of a stage its input alone, and compute it again for the backward pass.

    Returns:
        features (B, T, C, h, w) of each stage, and the state.
    """
    lanes, segments = maps.shape[:2]
    maps = maps.transpose(0, 1).flatten(0, 1)  # time first: what the recurrence reads at one time is contiguous
    features, states = [], []
    for index, stage in enumerate(stages):
        maps = checkpoint(stage, maps, use_reentrant=False) if recompute else stage(maps)
        if len(lstms):
            hidden, cell = _start(maps, lanes) if state is None else _memory(state[index])
            lstm = cast("ConvLstm", lstms[index])
            sequence, hidden, cell = lstm(maps.unflatten(0, (segments, lanes)), hidden, cell)
            states.append((hidden.permute(0, 3, 1, 2), cell.permute(0, 3, 1, 2)))
            maps = sequence.flatten(0, 1)
        features.append(maps.unflatten(0, (segments, lanes)).permute(1, 0, 4, 2, 3))
    return features, tuple(states) if len(lstms) else None


def _start(maps: Tensor, lanes: int) -> LstmState:
    zeros = torch.zeros(lanes, *maps.shape[1:], device=maps.device)
    return zeros, zeros


def _memory(state: LstmState) -> LstmState:
    hidden, cell = state
    return hidden.permute(0, 2, 3, 1), cell.permute(0, 2, 3, 1)


CellWay = Callable[..., tuple[Tensor, ...]]


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
        self._ways = (cell_forward, cell_backward)

    def compile_cell(self) -> None:
        """Let torch's compiler make one kernel of a segment's pointwise operations, and one of their gradients."""
        self._ways = (torch.compile(cell_forward), torch.compile(cell_backward))

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
        of_hidden = of_hidden.to(compute_dtype(of_hidden))  # once, where autocast would at each segment
        outputs = []
        for from_map in linear(maps, of_map, self.gates.bias):
            hidden, cell = _Cell.apply(from_map + linear(hidden, of_hidden), cell, *self._ways)
            outputs.append(hidden)
        return torch.stack(outputs), hidden, cell


def cell_forward(sums: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One segment of an LSTM, from the sums (..., 4 d) of its gates and the cell (..., d) before it.

    Returns:
        hidden and cell (..., d), and what `cell_backward` needs: the gates (..., 3 d), the cell input (..., d), and the
        hyperbolic tangent (..., d) of the cell.
    """
    channels = cell.shape[-1]
    gates, entering = sums[..., : 3 * channels].sigmoid(), sums[..., 3 * channels :].tanh()
    forget, write, output = gates.chunk(3, dim=-1)
    after = forget * cell + write * entering
    shown = after.tanh()
    return output * shown, after, gates, entering, shown


def cell_backward(
    of_hidden: Tensor, of_cell: Tensor, cell: Tensor, gates: Tensor, entering: Tensor, shown: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the sums and of the cell before, from those of hidden and cell; see `cell_forward`."""
    forget, write, output = gates.chunk(3, dim=-1)
    of_after = of_cell + torch.ops.aten.tanh_backward(of_hidden * output, shown)
    of_gates = torch.cat([of_after * cell, of_after * entering, of_hidden * shown], dim=-1).to(gates.dtype)
    of_entering = (of_after * write).to(entering.dtype)
    of_sums = [torch.ops.aten.sigmoid_backward(of_gates, gates), torch.ops.aten.tanh_backward(of_entering, entering)]
    return torch.cat(of_sums, dim=-1), of_after * forget


class _Cell(torch.autograd.Function):
    """`cell_forward` with `cell_backward` as its gradient: fewer passes over the maps than autograd makes."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, cell: Tensor, forward: CellWay, backward: CellWay) -> tuple[Tensor, Tensor]:
        hidden, after, *kept = forward(sums, cell)
        ctx.save_for_backward(cell, *kept)
        ctx.way = backward
        return hidden, after

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.way(*gradients, *ctx.saved_tensors), None, None


def build_backbone(
    arch: str,
    recurrent: bool,
    bins: int,
    img_size: tuple[int, int],
    in_channels: int | None = None,
    drop_path: float = 0.0,
) -> Backbone:
    """A fresh backbone, by the name of its architecture.

    Args:
        arch: among the `architectures` of a registered backbone.
        recurrent: whether it has memory.
        bins: time bins per segment.
        img_size: (H, W) in px of the padded input.
        in_channels: of the input, where it is no histogram.
        drop_path: rate of stochastic depth in the last block; it rises from 0 block by block.

    Raises:
        UserError: no backbone has this architecture, or the one that has it knows no stochastic depth.
    """
    kind = kind_of(arch)
    if kind is None:
        known = sorted(name for each in BACKBONES.module_dict.values() for name in each.architectures)
        raise UserError("arch", f"unknown value {arch!r}", f"choose from {', '.join(known)}")
    if drop_path and "drop_path" not in inspect.signature(kind).parameters:
        raise UserError("drop_path", f"{arch} has no stochastic depth", "set it to 0")
    depth = {"drop_path": drop_path} if drop_path else {}
    backbone = kind(arch=arch, recurrent=recurrent, bins=bins, img_size=img_size, in_channels=in_channels, **depth)
    with_shared_draws(backbone)
    return backbone


def kind_of(arch: str) -> type[Backbone] | None:
    """The registered backbone that has an architecture of this name, None where none has."""
    return next((kind for kind in BACKBONES.module_dict.values() if arch in kind.architectures), None)


def resized(backbone: Backbone, img_size: tuple[int, int]) -> Backbone:
    """A copy of `backbone` for another input size (H, W) in px, in the same mode and on the same device."""
    copy = build_backbone(backbone.arch, backbone.recurrent, backbone.bins, img_size, backbone.in_channels)
    copy.load_state_dict(copy.resize(backbone.state_dict(), backbone.img_size))
    copy.recipe = backbone.recipe
    parameter = next(backbone.parameters())
    return copy.to(parameter.device, parameter.dtype).train(backbone.training)
