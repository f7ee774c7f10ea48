"""Recurrent state as a value: nested tuples of tensors whose first axis is the lane; None stands for the start."""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import Tensor

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
