"""What every backbone for events is to heads, tasks and objectives; memory between its stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tespec.models.convlstm import ConvLstm

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

    Attributes:
        architectures: names of the sizes it comes in.
        stem: name of the kernel that sees the input's channels.
        position_tables: parts of the names of parameters that stand for positions.
        arch: one of them.
        recurrent: whether it has memory.
        bins: time bins per segment.
        in_channels: of the input; 2 * bins, or those of an image.
        img_size: (H, W) in px of the padded input.
        channels: widths of the four features.
        recompute: whether the backward pass computes stages again; see `tespec.models.execution`.
    """

    architectures: ClassVar[Sequence[str]] = ()
    stem: ClassVar[str] = ""
    position_tables: ClassVar[Sequence[str]] = ()
    arch: str
    recurrent: bool
    bins: int
    in_channels: int
    img_size: tuple[int, int]
    channels: tuple[int, int, int, int]
    recompute: bool = False

    @abstractmethod
    def stage_modules(self) -> list[nn.Module]:
        """The four stages, without their memory."""

    @abstractmethod
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

    @property
    def _recomputes(self) -> bool:
        return self.recompute and torch.is_grad_enabled()

    def step(self, histogram: Tensor, state: BackboneState | None = None) -> tuple[list[Tensor], BackboneState | None]:
        """Features (B, channels[i], h, w) of one segment (B, in_channels, H, W); the streaming form of `forward`."""
        features, state = cast("tuple[list[Tensor], BackboneState | None]", self(histogram.unsqueeze(1), state))
        return [feature.squeeze(1) for feature in features], state


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
            hidden, cell = _start(maps, lanes) if state is None else _channels_last(state[index])
            lstm = cast("ConvLstm", lstms[index])
            sequence, hidden, cell = lstm(maps.unflatten(0, (segments, lanes)), hidden, cell)
            states.append((hidden.permute(0, 3, 1, 2), cell.permute(0, 3, 1, 2)))
            maps = sequence.flatten(0, 1)
        features.append(maps.unflatten(0, (segments, lanes)).permute(1, 0, 4, 2, 3))
    return features, tuple(states) if len(lstms) else None


def _start(maps: Tensor, lanes: int) -> LstmState:
    zeros = torch.zeros(lanes, *maps.shape[1:], device=maps.device)
    return zeros, zeros


def _channels_last(state: LstmState) -> LstmState:
    hidden, cell = state
    return hidden.permute(0, 2, 3, 1), cell.permute(0, 2, 3, 1)
