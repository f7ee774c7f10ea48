"""Batches on their way to the device: on a GPU the next one travels while the present one is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

Batch = dict[str, Tensor]


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches in order, on the device."""
    if device.type != "cuda":
        yield from (_moved(batch, device) for batch in batches)
        return
    stream = torch.cuda.Stream(device)
    waiting: tuple[Batch, torch.cuda.Event] | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            sent = (_moved(batch, device), stream.record_event())
        if waiting is not None:
            yield _arrived(*waiting, device)
        waiting = sent
    if waiting is not None:
        yield _arrived(*waiting, device)


def _moved(batch: Batch, device: torch.device) -> Batch:
    return {key: value.to(device, non_blocking=True) for key, value in batch.items()}


def _arrived(batch: Batch, event: torch.cuda.Event, device: torch.device) -> Batch:
    """The batch, for the stream that computes; its memory is not given away before that is done with it."""
    computing = torch.cuda.current_stream(device)
    computing.wait_event(event)
    for value in batch.values():
        value.record_stream(computing)
    return batch
