"""What a step exchanges between processes: gradients, losses, and the state of all lanes for checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from tespec.core.distributed import all_gather, all_reduce_max, rank, world_size

BUCKET = 32 * 2**20  # bytes of gradients that travel at once


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Put the mean over all processes in the place of every gradient.

    A parameter that only other processes have a gradient for counts as zero here.
    """
    processes = world_size()
    if processes == 1:
        return
    used = all_reduce_max([int(each.grad is not None) for each in parameters])
    for each, there in zip(parameters, used, strict=True):
        if there and each.grad is None:
            each.grad = torch.zeros_like(each)
    gradients = [each.grad for each in parameters if each.grad is not None]
    travelling = []
    for bucket in _buckets(gradients):
        flat = torch.cat([each.flatten() for each in bucket])
        travelling.append((bucket, flat, distributed.all_reduce(flat, async_op=True)))
    for bucket, flat, work in travelling:
        work.wait()
        flat /= processes
        parts = flat.split([each.numel() for each in bucket])
        torch._foreach_copy_(bucket, [part.view_as(each) for part, each in zip(parts, bucket, strict=True)])


def _buckets(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Gradients of one type, of about `BUCKET` bytes together."""
    buckets: list[list[Tensor]] = []
    size = BUCKET
    for each in gradients:
        new = size >= BUCKET or each.dtype != buckets[-1][-1].dtype
        if new:
            buckets.append([])
            size = 0
        buckets[-1].append(each)
        size += each.numel() * each.element_size()
    return buckets


@torch.no_grad()
def mean_losses(turns: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of each loss over turns and processes."""
    if len(turns) == 1 and world_size() == 1:
        return {name: value.detach() for name, value in turns[0].items()}
    names = list(turns[0])
    table = torch.stack([torch.stack([turn[name].detach().float() for name in names]) for turn in turns]).mean(0)
    if world_size() > 1:
        distributed.all_reduce(table)
        table /= world_size()
    return dict(zip(names, table.unbind(), strict=True))


def whole_state(turns: Sequence[Any]) -> Any:
    """The state of all lanes, on the CPU, from those of every turn of every process."""
    here = [_each(state, lambda tensor: tensor.cpu()) for state in turns]
    states = [state for process in all_gather(here) for state in process]
    return states[0] if len(states) == 1 else _joined(states)


def own_state(whole: Any, turns: int, device: torch.device) -> list[Any]:
    """The states of this process's turns, from that of all lanes."""
    parts = turns * world_size()

    def part(index: int) -> Any:
        def cut(tensor: Tensor) -> Tensor:
            return (tensor if parts == 1 else tensor.chunk(parts)[index].clone()).to(device)

        return _each(whole, cut)

    return [part(rank() * turns + turn) for turn in range(turns)]


def _each(state: Any, change: Any) -> Any:
    """Nested tuples, lists and dicts of tensors with every tensor changed."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: _each(value, change) for key, value in state.items()}
    if isinstance(state, (tuple, list)):
        return type(state)(_each(value, change) for value in state)
    return state


def _joined(states: Sequence[Any]) -> Any:
    """States of one structure, their tensors one behind the other along the lanes."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat(list(states))
    if isinstance(first, dict):
        return {key: _joined([state[key] for state in states]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(_joined(part) for part in zip(*states, strict=True))
    return first
