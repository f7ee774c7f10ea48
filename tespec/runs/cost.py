"""What a run takes, measured, and what it would take, estimated from a few steps on this machine."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tespec.core.settings import Optimisation
from tespec.training.loading import Batch
from tespec.training.loop import Loop

POWERCAP = Path("/sys/class/powercap")


class ResourceMeter:
    """Measures the memory and the energy that a run on `device` takes, from the moment it is made."""

    def __init__(self, device: torch.device, powercap: Path = POWERCAP) -> None:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._device, self._powercap = device, powercap
        self._processors, self._board = _processors(powercap), _board(device)

    def resources(self) -> dict[str, float]:
        """What was taken since the start; what the machine does not report is left out.

        Returns:
            peak_memory_bytes of this process since it began, peak_device_memory_bytes that torch had allocated,
            processor_energy_joules of all that ran on the processors (RAPL), device_energy_joules of the GPU (NVML).
        """
        unit = 1 if sys.platform == "darwin" else 1024
        taken = {"peak_memory_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)}
        if self._device.type == "cuda":
            taken["peak_device_memory_bytes"] = float(torch.cuda.max_memory_allocated(self._device))
        before, now = self._processors, _processors(self._powercap)
        if now and now.keys() == before.keys():
            micro = sum(_advanced(self._powercap / zone, before[zone], now[zone]) for zone in now)
            taken["processor_energy_joules"] = micro / 1e6
        board = _board(self._device)
        if board is not None and self._board is not None:
            taken["device_energy_joules"] = board - self._board
        return taken


def _processors(powercap: Path) -> dict[str, int]:
    """Energy counters in microjoules of whole processors, by zone; empty where they cannot be read."""
    try:
        zones = [path for path in powercap.glob("intel-rapl:*") if path.name.count(":") == 1]
        return {path.name: int((path / "energy_uj").read_text()) for path in zones}
    except (OSError, ValueError):
        return {}


def _advanced(zone: Path, before: int, now: int) -> int:
    """How far a counter went; it starts again at zero beyond its range."""
    return now - before if now >= before else now + int((zone / "max_energy_range_uj").read_text()) - before


def _board(device: torch.device) -> float | None:
    """Energy in joules that a GPU has used since its driver was loaded; None where nothing says it."""
    if device.type != "cuda":
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        # Numbers of torch and of the driver differ under CUDA_VISIBLE_DEVICES; the identifier does not.
        identifier = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(identifier)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    except Exception:  # any of NVML's own errors, and old versions of torch: the figure is a courtesy
        return None


BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and Adam's two moments
BYTES_PER_SAVED_PARAMETER = 12  # the same without the gradient
LARGER = 3  # times the small batch is the second one
RUNS = 2  # timed steps of either; the faster one counts


@dataclass(frozen=True)
class Forecast:
    """Estimated cost of a training run.

    Attributes:
        parameters: number of trainable parameters by part of the network.
        memory: bytes of weights, gradients, optimizer state and activations.
        fixed_seconds: of a step, whatever its batch.
        frame_seconds: of a step for each segment in its batch.
        data_seconds: of one process to build a step's batch.
        workers: processes that build batches beside the training; 0: the training process itself.
        frames: segments of a step.
        checkpoint_bytes: of one checkpoint on disk.
        steps: number of steps.
        frames_measured: segments in the two batches that were measured.
    """

    parameters: dict[str, int]
    memory: int
    fixed_seconds: float
    frame_seconds: float
    data_seconds: float
    workers: int
    frames: int
    checkpoint_bytes: int
    steps: int
    frames_measured: tuple[int, int]

    @property
    def compute_seconds(self) -> float:
        """Of an optimizer step at full batch, without its data."""
        return self.fixed_seconds + self.frame_seconds * self.frames

    @property
    def seconds_per_step(self) -> float:
        """Of a step with its data: workers build the next batches meanwhile."""
        if not self.workers:
            return self.compute_seconds + self.data_seconds
        return max(self.compute_seconds, self.data_seconds / self.workers)

    @property
    def hours(self) -> float:
        """Length of the whole training in hours."""
        return self.seconds_per_step * self.steps / 3600


def forecast(
    model: nn.Module,
    batch: Batch,
    steps: Dataset[Batch],
    settings: Optimisation,
    device: torch.device,
    frames: int,
    workers: int = 0,
) -> Forecast:
    """Measure a few steps on a small batch and on one `LARGER` times as large, and one batch of data.

    The difference between the two is what segments cost, and the rest is what a step costs whatever its batch; both
    are taken to be the same at full size, which overestimates on a GPU that small batches leave idle. The model's
    weights change: build another one for the run itself.

    Args:
        model: of the run.
        batch: the smallest that can be trained on.
        steps: batches of the run; one is built, and the next one timed.
        settings: of the run.
        device: of the run.
        frames: segments of a step.
        workers: processes that will build batches.
    """
    loop = Loop(model, steps, settings, seed=0, device=device)
    loop.model.train()
    small, large = (_measured(loop, repeated(batch, times), device) for times in (1, LARGER))
    more = large.frames - small.frames
    frame_seconds = max(large.seconds - small.seconds, 0.0) / more
    activations = max(large.saved - small.saved, 0) / more * frames
    parameters = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    count = sum(parameters.values())
    full = steps[0]
    began = time.perf_counter()
    steps[1]
    data_seconds = time.perf_counter() - began
    lanes = len(next(iter(full.values())))
    return Forecast(
        parameters={name: number for name, number in parameters.items() if number},
        memory=round(BYTES_PER_PARAMETER * count + activations),
        fixed_seconds=max(small.seconds - frame_seconds * small.frames, 0.0),
        frame_seconds=frame_seconds,
        data_seconds=data_seconds,
        workers=workers,
        frames=frames,
        checkpoint_bytes=BYTES_PER_SAVED_PARAMETER * count + round(small.state * lanes / small.lanes),
        steps=settings.steps,
        frames_measured=(small.frames, large.frames),
    )


@dataclass(frozen=True)
class _Size:
    """Lanes and segments of a batch; seconds of a step, bytes kept for the backward pass, and of the state after."""

    lanes: int
    frames: int
    seconds: float
    saved: int
    state: int


def _measured(loop: Loop, batch: Batch, device: torch.device) -> _Size:
    on_device = {key: value.to(device) for key, value in batch.items()}
    lanes, segments = batch["histograms"].shape[:2]
    loop.states = [None]
    saved = bytes_saved_for_backward(lambda: loop.train_step(on_device))
    seconds = min(_timed_step(loop, on_device, device) for _ in range(RUNS))
    return _Size(lanes, lanes * segments, seconds, saved, _bytes_of(loop.states[0]))


def repeated(batch: Batch, times: int) -> Batch:
    """A batch of `times` the lanes, each with the same content."""
    lanes = len(batch["histograms"])
    joined = {}
    for name, values in batch.items():
        copies = [values.clone() for _ in range(times)]
        for number, copy in enumerate(copies):
            if name == "label_place":
                copy[:, 0] += number * lanes
        joined[name] = torch.cat(copies)
    return joined


def _timed_step(loop: Loop, batch: Batch, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    loop.train_step(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def bytes_saved_for_backward(step: Callable[[], object]) -> int:
    """Bytes of all tensors, counted once, that the forward passes of `step` keep for their backward passes."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        step()
    return sum(storages.values())


def _bytes_of(state: Any) -> int:
    """Bytes of the tensors in nested tuples."""
    if isinstance(state, Tensor):
        return state.nbytes
    return sum(map(_bytes_of, state)) if isinstance(state, tuple) else 0
