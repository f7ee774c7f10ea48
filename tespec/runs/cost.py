"""What a training takes of a GPU, before it runs: its step is counted on torch's `meta` device at full size.

Hours are operations over an assumed share of a GPU's peak; reading data and evaluating come on top. Memory is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tespec.core.compat  # noqa: F401  # before timm

import torch
from pydantic import BaseModel, ConfigDict

from tespec.core.config import dataset_of_task, names
from tespec.core.errors import UserError, one_line
from tespec.core.files import read_yaml
from tespec.core.paths import CONFIGS
from tespec.core.registry import DATASETS
from tespec.core.settings import Finetuning, Pretraining, Size
from tespec.datasets.recording import reduced
from tespec.models.backbone import Backbone
from tespec.models.execution import Execution, execute, has_batch_norm
from tespec.pretraining.data import ImageData
from tespec.pretraining.method import new_network, open_pretraining
from tespec.runs.meta import META, count_step
from tespec.tasks import find_task
from tespec.tasks.base import fresh_backbone
from tespec.training.loading import Batch

MFU = 0.35  # share of a GPU's peak that trainings reach, where nothing was measured
GPUS = CONFIGS / "gpus.yaml"


class Gpu(BaseModel):
    """A GPU of configs/gpus.yaml: memory in 10^9 bytes, peaks of dense products in 10^12 operations a second."""

    model_config = ConfigDict(frozen=True)

    title: str
    memory_gb: float
    tflops: dict[str, float]
    source: str


def known_gpus() -> list[Gpu]:
    """The GPUs of configs/gpus.yaml."""
    return [Gpu.model_validate(facts) for facts in read_yaml(GPUS).values()]


@dataclass(frozen=True)
class ExecutionConfig:
    """GPUs, gradient accumulation steps, activation checkpointing, bf16 autocast (else fp32) and fused attention."""

    gpus: int = 1
    accumulate: int = 1
    recompute: bool = False
    half: bool = True
    fused: bool = True

    @property
    def options(self) -> str:
        """Command-line options that save memory, "" for none."""
        recompute = ["--recompute"] if self.recompute else []
        return " ".join([*recompute, *([f"--accumulate {self.accumulate}"] if self.accumulate > 1 else [])])


@dataclass(frozen=True)
class Cost:
    """What a training takes of each GPU.

    Attributes:
        flops: floating-point operations of an optimizer step.
        kept: bytes that a forward pass keeps for its backward pass, without weights.
        fixed: bytes of weights, gradients and optimizer.
        memory: most bytes in use at once in a step.
        steps: number of optimizer steps.
        config: how it is carried out.
    """

    flops: int
    kept: int
    fixed: int
    memory: int
    steps: int
    config: ExecutionConfig

    def hours(self, gpu: Gpu, mfu: float = MFU) -> float:
        """Hours of all steps at a share of the GPU's peak."""
        return self.steps * self.flops / (gpu.tflops["bf16" if self.config.half else "tf32"] * 1e12 * mfu) / 3600


@dataclass
class TrainingEstimate:
    """A training on the `meta` device.

    Attributes:
        settings: of the cell or the pre-training.
        model: its network.
        size: (H, W) in px of what the backbone sees.
        batch: makes a batch of so many lanes, without content.
    """

    settings: Finetuning | Pretraining
    model: Any
    size: Size
    batch: Callable[[int], Batch]

    @property
    def parameters(self) -> dict[str, int]:
        """Number of parameters by part of the network."""
        counts = {name: sum(p.numel() for p in part.parameters()) for name, part in self.model.named_children()}
        return {name: count for name, count in counts.items() if count}

    def cost(self, config: ExecutionConfig) -> Cost:
        """What it takes, carried out so.

        Raises:
            UserError: the batch does not divide evenly, the network cannot be recomputed, or needs data to be counted.
        """
        settings, parts = self.settings, config.gpus * config.accumulate
        if settings.batch_size % parts:
            shared = f"{settings.batch_size} lanes do not divide evenly into {parts} parts (GPUs x accumulation steps)"
            raise UserError("batch_size", shared, f"choose a multiple of {parts}")
        lanes = settings.batch_size // parts
        try:
            execute(self.model, Execution(recompute=config.recompute), fast=config.fused)
            count = count_step(self.model.train(), self.batch(lanes), config.half)
        except (NotImplementedError, RuntimeError) as error:
            what = f"its step cannot be counted without data: {one_line(str(error))[:200]}"
            raise UserError(type(self.model).__name__, what, "let no shape depend on numbers on the device") from error
        weights = sum(each.nbytes for each in (*self.model.parameters(), *self.model.buffers()))
        gradients = sum(each.nbytes for each in self.model.parameters() if each.requires_grad)
        moments = 2 * gradients
        # Beside a micro-batch and its step: the other micro-batches; the gradients of those before, or the buffers in
        # which they travel; states before the step and after it.
        batch = sum(each.nbytes for each in self.batch(lanes).values())
        waiting = (config.accumulate - 1) * batch + (2 * config.accumulate - 1) * count.state
        waiting += gradients * ((config.accumulate > 1) + (config.gpus > 1))
        most = count.peak + moments + waiting
        fixed = weights + gradients + moments
        return Cost(config.accumulate * count.flops, count.kept, fixed, most, settings.optimisation.steps, config)

    def fitting(self, memory: float, config: ExecutionConfig) -> Cost | None:
        """The first way to save memory with which it fits into so many bytes; None where none does."""
        lanes, fewest = self.settings.batch_size // config.gpus, 2 if has_batch_norm(self.model) else 1
        backbones = (module for module in self.model.modules() if isinstance(module, Backbone))
        recompute = config.recompute or not any(map(has_batch_norm, backbones))
        parts = [each for each in range(config.accumulate, lanes + 1) if lanes % each == 0 and lanes // each >= fewest]
        ways = [config, *(replace(config, accumulate=each, recompute=recompute) for each in parts)]
        return next((cost for cost in map(self.cost, ways) if cost.memory <= memory), None)


def estimate_cell(settings: Finetuning, size: Size) -> TrainingEstimate:
    """A fine-tuning on histograms of `size` (H, W) in px."""
    kind: Any = find_task(settings)
    with META:
        model = kind.network(settings, fresh_backbone(settings, size))
    return TrainingEstimate(settings, model, size, lambda lanes: kind.blank_batch(settings, size, lanes, META))


def estimate_pretraining(settings: Pretraining, size: Size) -> TrainingEstimate:
    """A pre-training on histograms of `size` (H, W) in px."""
    data = open_pretraining(settings, None, size)
    with META:
        model = new_network(settings, data)
    return TrainingEstimate(settings, model, data.size, lambda lanes: data.blank_batch(lanes, META))


def official_sensor(dataset: str) -> Size | None:
    """(height, width) in px of the sensor of a task's data set; None where there is no such task, or it states none."""
    return DATASETS.module_dict[dataset_of_task(dataset)].sensor if dataset in names("tasks") else None


def input_of(settings: Finetuning | Pretraining, dataset: str, sensor: Size | None = None) -> Size:
    """(H, W) in px of what the backbone sees.

    Args:
        settings: of the run; `sensor_px` decides where it is set.
        dataset: name of the data set, whose config states its sensor.
        sensor: (height, width) in px where the data states it.

    Raises:
        UserError: nothing states the sensor's size.
    """
    if isinstance(settings, Pretraining):
        data = open_pretraining(settings, None)
        if isinstance(data, ImageData):
            return data.size
    stated = settings.sensor or sensor or official_sensor(dataset)
    if stated is None:
        raise UserError(f"data set {dataset}", "no config states its sensor's size", "give --sensor WIDTHxHEIGHT")
    region = reduced(*stated, settings.downsample)
    rows = settings.protocol.get("rows") if isinstance(settings, Finetuning) else None
    return min(region.height, rows or region.height), region.width


def memory_warning(estimate: TrainingEstimate, config: ExecutionConfig, device: torch.device) -> str:
    """One line where a training does not fit into a GPU's memory, "" where it does."""
    total, cost = torch.cuda.get_device_properties(device).total_memory, estimate.cost(config)
    if cost.memory <= total:
        return ""
    fitting = estimate.fitting(total, config)
    remedy = f"give {fitting.config.options}" if fitting else "use more GPUs or a smaller batch_size"
    return f"memory: this run needs about {cost.memory / 1e9:.3g} GB, {device} has {total / 1e9:.3g} GB; {remedy}"
