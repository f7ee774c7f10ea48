"""What processes tell each other beside the training: plain values, over the CPU, without waiting for a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

Value = TypeVar("Value")
# One process may work alone for long, on a sample world or on data held out; one that died ends the others.
PATIENCE = timedelta(days=7)
_group: distributed.ProcessGroup | None = None


def open_group() -> None:
    """Make the group that these messages go through; every process calls it once, when they have met."""
    global _group
    _group = distributed.new_group(backend="gloo", timeout=PATIENCE)


def close_group() -> None:
    """Forget the group."""
    global _group
    _group = None


def _together() -> bool:
    return _group is not None and distributed.get_world_size() > 1


def wait() -> None:
    """Until all processes are here."""
    if _together():
        distributed.barrier(group=_group)


def first_says(value: Value) -> Value:
    """The first process's value, in every process."""
    if not _together():
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0, group=_group)
    return box[0]


def of_all(value: Value) -> list[Value]:
    """The values of all processes, in every process and in their order."""
    if not _together():
        return [value]
    found: list[Value] = [value] * distributed.get_world_size()
    distributed.all_gather_object(found, value, group=_group)
    return found


def agreed(numbers: Sequence[int]) -> list[int]:
    """The greatest of each number over all processes."""
    if not _together():
        return list(numbers)
    told = torch.tensor(numbers, dtype=torch.int64)
    distributed.all_reduce(told, distributed.ReduceOp.MAX, group=_group)
    return [int(each) for each in told.tolist()]
