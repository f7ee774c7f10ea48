"""Data-parallel ranks: collectives, reductions and random draws as in a single process.

Gradients are averaged over the ranks. A rank's loss is therefore correct if its mean over the ranks
is the loss of the complete batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine import dist
from torch import Tensor, distributed

Value = TypeVar("Value")
# Rank 0 may work alone for long, on the sample world or on validation; if a rank dies, the launcher
# stops the others.
PATIENCE = timedelta(days=7)
_group: distributed.ProcessGroup | None = None
rank = dist.get_rank
world_size = dist.get_world_size
is_first = dist.is_main_process  # rank 0 writes files and logs


@contextmanager
def object_group() -> Iterator[None]:
    """Context with a process group for Python objects, entered by each rank.

    It needs `torch.distributed.init_process_group`.
    """
    global _group
    _group = distributed.new_group(backend="gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        _group = None


def barrier() -> None:
    """Wait for all ranks."""
    dist.barrier(_group)


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Run a block on rank 0 before the other ranks, which then find its files on disk."""
    if not is_first():
        barrier()
    yield
    if is_first():
        barrier()


def broadcast(value: Value) -> Value:
    """Return the value of rank 0 on every rank."""
    box = [value]
    dist.broadcast_object_list(box, 0, _group)
    return box[0]


def all_gather(value: Value) -> list[Value]:
    """Return the values of all ranks, ordered by rank, on every rank."""
    return dist.all_gather_object(value, _group)


@dataclass(frozen=True)
class MicroBatch:
    """Part of a batch that this rank computes, see `rank_computes`."""

    part: tuple[int, int] = (0, 1)  # index and number of the batch's micro-batches, on all ranks
    alone: bool = False  # whether this rank computes without collectives
    # without labels, it joins all collectives, but must not affect results
    unlabelled: bool = False
    counts: list[Tensor] | None = None  # `global_mean` appends the counts that it divides losses by


# Not a context variable: activation checkpointing reads it from autograd's threads.
_micro_batch = MicroBatch()


@contextmanager
def rank_computes(**changes: Any) -> Iterator[None]:
    """Context in which this rank computes the current `MicroBatch` with `changes` of its fields."""
    global _micro_batch
    previous = _micro_batch
    _micro_batch = replace(previous, **changes)
    try:
        yield
    finally:
        _micro_batch = previous


def shard_slice(rows: int) -> tuple[int, slice]:
    """Locate this micro-batch in the complete batch.

    Random numbers per row are drawn for the complete batch; each micro-batch uses its slice.

    Args:
        rows: number of rows of this micro-batch.

    Returns:
        Number of rows of the complete batch, and the slice of this micro-batch's rows.

    >>> with rank_computes(part=(1, 4)):
    ...     shard_slice(8)
    (32, slice(8, 16, None))
    """
    index, micro_batches = _micro_batch.part
    return rows * micro_batches, slice(index * rows, (index + 1) * rows)


def has_no_labels() -> bool:
    """Whether this rank's results must be ignored, as it has no labels in the batch."""
    return _micro_batch.unlabelled


def ranks_per_batch() -> int:
    """Number of ranks that share a batch; 1 if this rank computes alone."""
    return 1 if _micro_batch.alone else world_size()


def global_mean(total: Tensor, elements: Tensor | int) -> Tensor:
    """Divide the sum of a loss by its number of elements on all ranks.

    With gradient accumulation, the trainer weighs each micro-batch by the number of elements in its
    first call. Terms that are divided by this number, or by one proportional to it, then have the
    gradient of the complete batch; others are divided by their number in each micro-batch.

    Args:
        total: scalar, the sum over this rank's elements.
        elements: their number, a scalar of any dtype.

    Returns:
        scalar whose mean over the ranks is the mean over the elements of all ranks; 0 without any.
    """
    ranks = ranks_per_batch()
    count = torch.zeros((), dtype=torch.float64, device=total.device) + elements
    if ranks > 1:
        distributed.all_reduce(count)
    if _micro_batch.counts is not None and total.requires_grad:
        _micro_batch.counts.append(count)
    return total / (count.clamp(min=1) / ranks).to(total.dtype)


@torch.no_grad()
def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum over all ranks, without gradient."""
    if ranks_per_batch() > 1:
        values = values.clone()
        distributed.all_reduce(values)
    return values


def global_sum(values: Tensor) -> Tensor:
    """Sum over all ranks, with the gradient of a loss that is averaged over the ranks.

    For losses that are not sums over the ranks: each rank computes the loss of the complete batch
    from the sums; the gradients of the ranks, averaged, are then those of one process.
    """
    local = values.detach()
    return all_reduce_sum(local) + ranks_per_batch() * (values - local)


@torch.no_grad()
def global_max(values: Tensor) -> Tensor:
    """Maximum of the values of all ranks, a scalar without gradient; -inf if all are empty."""
    maximum = values.max() if values.numel() else values.new_full((), -torch.inf)
    if ranks_per_batch() > 1:
        distributed.all_reduce(maximum, distributed.ReduceOp.MAX)
    return maximum


def all_gather_rows(values: Tensor) -> Tensor:
    """Gather the N rows of each rank into (ranks * N, ...), ordered by rank; differentiable."""
    return _Gathered.apply(values) if ranks_per_batch() > 1 else values


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.contiguous()
        gathered = [torch.empty_like(values) for _ in range(world_size())]
        distributed.all_gather(gathered, values)
        return torch.cat(gathered)  # (ranks * N, ...)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        distributed.all_reduce(total)
        return total.chunk(world_size())[rank()]
