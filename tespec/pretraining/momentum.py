"""Teachers: networks that follow another one slowly and are not trained themselves."""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import torch
from torch import nn

from tespec.models.layers import without_drop_path

Module = TypeVar("Module", bound=nn.Module)


def momentum_copy(student: Module) -> Module:
    """A copy of `student` that is not trained and drops nothing."""
    teacher = copy.deepcopy(student)
    without_drop_path(teacher)
    return teacher.requires_grad_(False)


@torch.no_grad()
def ema_update_(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move the teacher's parameters towards the student's by 1 - momentum; its buffers become the student's."""
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - momentum)
    if buffers := list(teacher.buffers()):
        torch._foreach_copy_(buffers, list(student.buffers()))


def momentum_at(start: float, share: float) -> float:
    """Momentum after a share of the training: from `start` to 1 by half a cosine."""
    return 1 - (1 - start) * (math.cos(math.pi * share) + 1) / 2
