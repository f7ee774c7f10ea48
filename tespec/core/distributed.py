"""One batch in parts, by process and by turn: means, gathered rows and random draws as if it were whole.

Each process averages its gradients with the others'. So what a process computes of a loss is right if the mean of it
over the processes is the loss of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

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


def _met() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def number() -> int:
    """From 0 on."""
    return distributed.get_rank() if _met() else 0


def count() -> int:
    """How many there are."""
    return distributed.get_world_size() if _met() else 1


def is_first() -> bool:
    """Whether this is the one that writes files and speaks to the user."""
    return number() == 0


@contextmanager
def first_goes_first() -> Iterator[None]:
    """The first process does something, then the others: what it leaves on disk is there for them."""
    if not is_first():
        wait()
    yield
    if is_first():
        wait()


_part = (0, 1)
_alone = False
_silent = False


@contextmanager
def playing(part: tuple[int, int]) -> Iterator[None]:
    """Inside, the batch is part number part[0] of part[1]; see `rows`."""
    global _part
    before, _part = _part, part
    try:
        yield
    finally:
        _part = before


def rows(here: int) -> tuple[int, slice]:
    """Rows of the whole batch, and which of them are the `here` ones of this part.

    What is drawn for each row is drawn for all of them, of which each part takes its own.
    """
    turn, parts = _part
    return here * parts, slice(turn * here, (turn + 1) * here)


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this process computes something by itself."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


@contextmanager
def silenced(wanted: bool) -> Iterator[None]:
    """Inside, if wanted, this process has nothing to compute and only keeps up with what the others exchange."""
    global _silent
    before, _silent = _silent, wanted
    try:
        yield
    finally:
        _silent = before


def silent() -> bool:
    """Whether what is computed here must not count."""
    return _silent


def together() -> int:
    """Number of processes that share a batch."""
    return 1 if _alone else count()


def averaged(total: Tensor, elements: Tensor | int) -> Tensor:
    """A sum over `elements` elements as a mean over those of all processes; 0 elements give 0.

    The mean of what the processes get is the mean over all elements.
    """
    processes = together()
    if processes == 1:
        return total / (max(elements, 1) if isinstance(elements, int) else elements.clamp(min=1))
    everywhere = torch.as_tensor(elements, device=total.device).to(torch.float64).clone()
    distributed.all_reduce(everywhere)
    return total / (everywhere.clamp(min=1) / processes).to(total.dtype)


def summed(values: Tensor) -> Tensor:
    """Sum over the processes, through which gradients flow."""
    return _Summed.apply(values) if together() > 1 else values


@torch.no_grad()
def largest(values: Tensor) -> Tensor:
    """The largest number of all processes as a scalar, -inf where there is none; without a gradient."""
    found = values.max() if values.numel() else values.new_full((), -torch.inf)
    if together() > 1:
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return found


def of_all_rows(values: Tensor) -> tuple[Tensor, slice]:
    """The rows (N, ...) of all processes in their order, through which gradients flow, and which are this one's.

    Numbers of rows may differ.
    """
    if together() == 1:
        return values, slice(0, len(values))
    lengths = torch.zeros(count(), dtype=torch.int64, device=values.device)
    lengths[number()] = len(values)
    distributed.all_reduce(lengths)
    each = [int(length) for length in lengths.tolist()]
    first = sum(each[: number()])
    whole: Tensor = _Gathered.apply(values, tuple(each))
    return whole, slice(first, first + len(values))


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        distributed.all_reduce(total)
        return total


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, lengths: tuple[int, ...]) -> Tensor:
        ctx.first, ctx.here = sum(lengths[: number()]), len(values)
        padded = values.new_zeros(max(lengths), *values.shape[1:])
        padded[: len(values)] = values
        found = [torch.empty_like(padded) for _ in lengths]
        distributed.all_gather(found, padded)
        return torch.cat([each[:length] for each, length in zip(found, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        distributed.all_reduce(total)
        return total[ctx.first : ctx.first + ctx.here], None


__all__ = [
    "agreed",
    "alone",
    "averaged",
    "count",
    "first_goes_first",
    "first_says",
    "is_first",
    "largest",
    "number",
    "of_all",
    "of_all_rows",
    "playing",
    "rows",
    "silenced",
    "silent",
    "summed",
    "wait",
]
