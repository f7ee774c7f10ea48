"""What a run will cost, from a short measurement on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tespec.settings import Optimisation
from tespec.training.loop import Loop

BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and Adam's two moments


@dataclass(frozen=True)
class Forecast:
    """Cost of a training run.

    Attributes:
        parameters: number of trainable parameters by part of the network.
        memory: bytes of weights, gradients, optimizer state and activations.
        seconds_per_step: of one optimizer step at full batch.
        steps: number of steps.
        frames_measured: segments in the batch that was measured.
    """

    parameters: dict[str, int]
    memory: int
    seconds_per_step: float
    steps: int
    frames_measured: int

    @property
    def hours(self) -> float:
        """Length of the whole training in hours."""
        return self.seconds_per_step * self.steps / 3600


class _Repeat(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, batch: dict[str, Tensor]) -> None:
        self._batch = batch

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        return self._batch


def forecast(
    model: nn.Module, batch: dict[str, Tensor], settings: Optimisation, device: torch.device, frames: int
) -> Forecast:
    """Measure three steps on a small `batch` and scale time and activations to `frames` segments a step.

    The first step warms up, the faster of the other two counts. Time per segment is taken to be the same at full
    size, which overestimates on a GPU, where small batches leave it idle. The model's weights change: build another
    one for the run itself.
    """
    measured = batch["histograms"].shape[0] * batch["histograms"].shape[1]
    loop = Loop(model, _Repeat(batch), settings, seed=0, device=device)
    loop.model.train()
    on_device = {key: value.to(device) for key, value in batch.items()}
    saved = _bytes_saved_for_backward(loop, on_device)
    seconds = min(_timed_step(loop, on_device, device) for _ in range(2))
    parameters = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    memory = BYTES_PER_PARAMETER * sum(parameters.values()) + saved * frames // measured
    return Forecast(
        {name: count for name, count in parameters.items() if count},
        memory,
        seconds * frames / measured,
        settings.steps,
        measured,
    )


def _timed_step(loop: Loop, batch: dict[str, Tensor], device: torch.device) -> float:
    began = time.perf_counter()
    loop.train_step(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _bytes_saved_for_backward(loop: Loop, batch: dict[str, Tensor]) -> int:
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loop.train_step(batch)
    return sum(storages.values())
