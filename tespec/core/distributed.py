"""Ranks that share one batch: collectives, and sums, gathered rows and random draws as if the batch were whole.

Each rank averages its gradients with the others'. So what a rank computes of a loss is right if the mean of it over the
ranks is the loss of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine import dist
from torch import Tensor, distributed

Value = TypeVar("Value")
# One rank may work alone for long, on a sample world or on held-out data; if one dies, the launcher stops the rest.
PATIENCE = timedelta(days=7)
_group: distributed.ProcessGroup | None = None
rank, world_size = dist.get_rank, dist.get_world_size
is_first = dist.is_main_process  # writes files and speaks to the user


def open_group() -> None:
    """Make the group that values of Python go through; every rank calls it once, when they have met."""
    global _group
    _group = distributed.new_group(backend="gloo", timeout=PATIENCE)


def close_group() -> None:
    """Forget the group."""
    global _group
    _group = None


def barrier() -> None:
    """Wait until all ranks are here."""
    dist.barrier(_group)


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Rank 0 does something, then the others: what it leaves on disk is there for them."""
    if not is_first():
        barrier()
    yield
    if is_first():
        barrier()


def broadcast(value: Value) -> Value:
    """The value of rank 0, on every rank."""
    box = [value]
    dist.broadcast_object_list(box, 0, _group)
    return box[0]


def all_gather(value: Value) -> list[Value]:
    """The values of all ranks in their order, on every rank."""
    values: list[Value] = dist.all_gather_object(value, _group)
    return values


@dataclass(frozen=True)
class _Batch:
    """What this rank computes of a batch: micro-batch number `part` of `parts`, by itself or not, labelled or not."""

    part: int = 0
    parts: int = 1
    single: bool = False
    labelled: bool = True


# No context variable: stages computed again for the backward pass see it from autograd's own threads.
_batch = _Batch()


@contextmanager
def _within(**changes: Any) -> Iterator[None]:
    global _batch
    before, _batch = _batch, replace(_batch, **changes)
    try:
        yield
    finally:
        _batch = before


def batch_part(part: tuple[int, int]) -> AbstractContextManager[None]:
    """Inside, micro-batch number part[0] of the batch's part[1] is computed; see `shard_slice`."""
    return _within(part=part[0], parts=part[1])


def shard_slice(here: int) -> tuple[int, slice]:
    """Number of rows of the whole batch, and which of them are the `here` ones of this micro-batch.

    What is drawn for each row is drawn for all of them, of which each micro-batch takes its own.
    """
    return here * _batch.parts, slice(_batch.part * here, (_batch.part + 1) * here)


def single_rank() -> AbstractContextManager[None]:
    """Inside, this rank computes something by itself, without exchange."""
    return _within(single=True)


def rank_without_labels(wanted: bool) -> AbstractContextManager[None]:
    """Inside, if wanted, this rank has no label in the batch: it takes part in the exchange, and counts as nothing."""
    return _within(labelled=not wanted)


def has_no_labels() -> bool:
    """Whether what this rank computes must not count."""
    return not _batch.labelled


def ranks_per_batch() -> int:
    """Number of ranks that share a batch."""
    return 1 if _batch.single else world_size()


def global_mean(total: Tensor, elements: Tensor | int) -> Tensor:
    """This rank's share of a mean, from its sum over `elements` elements; 0 elements give 0.

    The mean of the shares over the ranks is the mean over the elements of all ranks.
    """
    ranks = ranks_per_batch()
    if ranks == 1:
        return total / (max(elements, 1) if isinstance(elements, int) else elements.clamp(min=1))
    if isinstance(elements, int):
        everywhere = torch.full((), elements, dtype=torch.float64, device=total.device)
    else:
        everywhere = elements.to(torch.float64, copy=True)
    distributed.all_reduce(everywhere)
    return total / (everywhere.clamp(min=1) / ranks).to(total.dtype)


@torch.no_grad()
def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum over the ranks; without a gradient."""
    if ranks_per_batch() > 1:
        values = values.clone()
        distributed.all_reduce(values)
    return values


@torch.no_grad()
def global_max(values: Tensor) -> Tensor:
    """The largest number of all ranks as a scalar, -inf where there is none; without a gradient."""
    found = values.max() if values.numel() else values.new_full((), -torch.inf)
    if ranks_per_batch() > 1:
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return found


def all_gather_rows(values: Tensor) -> Tensor:
    """The rows (ranks * N, ...) of all ranks in their order, through which gradients flow; each rank has N of them."""
    return _Gathered.apply(values) if ranks_per_batch() > 1 else values


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        found = [torch.empty(values.shape, dtype=values.dtype, device=values.device) for _ in range(world_size())]
        distributed.all_gather(found, values.contiguous())
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        distributed.all_reduce(total)
        return total.chunk(world_size())[rank()]
