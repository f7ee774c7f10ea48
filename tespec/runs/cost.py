"""Estimate a training's FLOPs, memory and GPU hours from one step on `meta`, without data."""

import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import yaml

from tespec.core.config import Settings, as_facts, dataset_and_splits, names
from tespec.core.distributed import all_gather, rank_computes, world_size
from tespec.core.errors import UserError, one_line, require
from tespec.core.files import UNREADABLE, read_json
from tespec.core.paths import RESULTS
from tespec.core.progress import log
from tespec.core.settings import Finetuning, Pretraining, Size
from tespec.datasets.recording import downsampled_region
from tespec.models import build_backbone
from tespec.models.backbone import execute
from tespec.pretraining.data import ImageData
from tespec.pretraining.method import objective_class, open_pretraining
from tespec.registry import DATASETS, find_registered
from tespec.runs.setup import Setup
from tespec.tasks import find_task
from tespec.tasks.base import random_backbone
from tespec.training.ddp import convert_sync_batchnorm
from tespec.training.device import (
    GPUS,
    available_memory,
    choose_device,
    describe,
    peak_throughput,
)
from tespec.training.loading import Batch
from tespec.training.step_cost import META, step_cost

SIZE = (256, 320)  # px; input size of networks that only check options or weights
# Fraction of a GPU's peak throughput that training reaches, by kind of task. Measured in bf16 on an
# H100 (results/gpu): 0.12 on DSEC and DDD17, 0.06 on Gen1, 0.07 on 1Mpx, 0.04 on MVSEC, whose head
# is in fp32.
MFU = {"segmentation": 0.12, "detection": 0.06, "depth": 0.04}
OTHER_MFU = 0.1  # of other trainings; measured in TESPEC's pre-training: 0.07, with --compile 0.10
# A training needs at least this fraction of its estimated memory. Measured on an H100: 1.0 to 1.5,
# with --compile 0.9 (results/gpu); on a CPU, where torch makes temporary copies: 1.1 to 1.9.
LEAST_MEMORY = 0.85
TOO_SMALL = "; too small: use --recompute, --accumulate N, or more GPUs"


def require_trainable(
    settings: Settings, setup: Setup, setting: str = "batch_size", processes: int = 0
) -> None:
    """Refuse options that do not fit the batch size or the backbone, before data is read.

    Args:
        settings: of the training.
        setup: where and how to run.
        setting: name of the batch size, for the message.
        processes: number of processes; 0: those that are running.

    Raises:
        UserError: names a batch size that fits.
    """
    processes = processes or world_size()
    parts = processes * setup.accumulate
    batch_size = settings.batch_size
    if batch_size % parts:
        larger = -(-batch_size // parts) * parts
        raise UserError(
            setting,
            f"{batch_size} does not divide evenly among {processes} processes with "
            f"{setup.accumulate} gradient accumulation steps each",
            f"use --set {setting}={larger}, or another --accumulate",
        )
    min_size = objective_class(settings).min_batch_size if isinstance(settings, Pretraining) else 1
    size = batch_size // setup.accumulate
    require(
        size >= min_size,
        setting,
        f"{size} per micro-batch is too small: samples are compared or normalised over it",
        f"set it to {min_size * setup.accumulate} or more, or lower --accumulate",
    )
    if setup.recompute:
        with torch.device("meta"):
            backbone = build_backbone(settings.backbone, settings.recurrent, settings.bins, SIZE)
            execute(backbone, recompute=True)


class Cost(NamedTuple):
    """Cost of a training per GPU."""

    flops: int  # of an optimizer step; a multiply-add counts as two
    forward: int  # those of its forward pass
    activations: int  # bytes kept for the backward pass, without weights and batch
    fixed: int  # bytes of weights, buffers, gradients and the optimizer's two moments
    memory: int  # peak memory in bytes


class TrainingEstimate(NamedTuple):
    """A training's network and batches, on the `meta` device to estimate its cost."""

    settings: Settings
    model: Any  # network with a `loss`
    size: Size  # (H, W) of the backbone's input in px
    batch: Callable[[int], Batch]  # makes an empty batch of a number of lanes

    def cost(self, setup: Setup, gpus: int = 1) -> Cost:
        """Estimate the cost per GPU.

        Args:
            setup: options that change the cost.
            gpus: number of GPUs among which the batch is divided.

        Raises:
            UserError: the batch cannot be divided evenly, or the step depends on data.
        """
        require_trainable(self.settings, setup, processes=gpus)
        batch = self.batch(self.settings.batch_size // (gpus * setup.accumulate))
        model = convert_sync_batchnorm(self.model.train())  # as in a training
        execute(model, recompute=setup.recompute, fast=not setup.deterministic)
        with rank_computes(alone=True):
            step = step_cost(model, batch, half=self.settings.optimisation.precision != "fp32")
        weights = sum(p.nbytes for p in (*model.parameters(), *model.buffers()))
        trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        # Added to the peak of one micro-batch, which includes weights and gradients: the
        # optimizer's moments, the other micro-batches, recurrent states before and after the step,
        # accumulated gradients, and DDP's gradient buckets.
        memory = step.peak + 2 * trained
        memory += (setup.accumulate - 1) * sum(tensor.nbytes for tensor in batch.values())
        memory += (2 * setup.accumulate - 1) * step.state
        memory += trained * ((setup.accumulate > 1) + (gpus > 1))
        return Cost(
            flops=setup.accumulate * step.flops,
            forward=setup.accumulate * step.forward,
            activations=step.activations,
            fixed=weights + 3 * trained,
            memory=memory,
        )

    @property
    def mfu(self) -> float:
        """Fraction of a GPU's peak throughput that the training is assumed to reach."""
        return MFU.get(getattr(self.settings, "kind", ""), OTHER_MFU)

    def hours(self, cost: Cost, gpu: str, windows: int = 0, mfu: float | None = None) -> float:
        """Estimate the time of training and evaluation.

        Args:
            cost: of the training, as by `cost`.
            gpu: title in `GPUS`.
            windows: number of windows that the evaluation plays.
            mfu: fraction of peak throughput; None: the assumed one.

        Returns:
            Hours, without data loading.
        """
        settings = self.settings
        peak = peak_throughput(gpu, settings.optimisation.precision)
        batches = windows / (settings.batch_size * settings.segments)
        flops = settings.optimisation.steps * cost.flops + batches * cost.forward
        return flops / (peak * (mfu or self.mfu)) / 3600

    def report(self, data: str, setup: Setup, gpus: int = 1, windows: int = 0) -> str:
        """Format the resolved settings and the cost.

        Args:
            data: describes the data.
            setup: as in `cost`.
            gpus: as in `cost`.
            windows: as in `hours`; 0 if unknown.
        """
        settings = self.settings
        cost = self.cost(setup, gpus)
        facts = {name: value for name, value in as_facts(settings).items() if name != "deviations"}
        counts = {
            name: sum(p.numel() for p in part.parameters())
            for name, part in self.model.named_children()
        }
        parameters = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        precision = "fp32" if settings.optimisation.precision == "fp32" else "bf16"
        rows, columns = self.size
        per_gpu = f" on each of {gpus} GPUs" if gpus > 1 else ""
        lines = [
            yaml.safe_dump(
                {"settings": facts}, sort_keys=False, width=116, default_flow_style=True
            ),
            f"data        {data}",
            f"profile     {settings.profile}",
            f"input       {rows} x {columns} px, "
            f"{settings.batch_size} x {settings.segments} per step",
            f"parameters  {parameters}",
            f"per step    {cost.flops / 1e12:.3g} TFLOP{per_gpu}; "
            f"{settings.optimisation.steps:,} steps",
            f"memory      {cost.memory / 1e9:.3g} GB in {precision}: "
            f"{cost.activations / 1e9:.3g} GB kept for the backward pass, "
            f"{cost.fixed / 1e9:.3g} GB weights, gradients, optimizer",
        ]
        mfu, source = measured_mfu(settings, setup.compiled) or (self.mfu, "")
        for title, gigabytes, *_ in GPUS:
            hours = self.hours(cost, title, windows, mfu)
            note = TOO_SMALL if cost.memory / 1e9 > gigabytes else ""
            lines.append(f"  {title:16} {gigabytes:4} GB  {hours:,.1f} h{note}")
        evaluation = f" and {windows:,} windows of evaluation" if windows else ""
        left_out = "data loading" if windows else "data loading and evaluation"
        lines.append(
            f"Hours are for the steps{evaluation} at {100 * mfu:.0f} % of peak throughput{source}, "
            f"without {left_out}."
        )
        return "\n".join(lines)


def measured_mfu(settings: Settings, compiled: bool) -> tuple[float, str] | None:
    """Look up the fraction of peak throughput that `make gpu` measured of a training in bf16.

    Args:
        settings: of the training.
        compiled: whether stages and ConvLSTM cells are compiled.

    Returns:
        The fraction on this machine's GPU, and where it was measured, in words; None without such a
        measurement.

    Raises:
        UserError: a file of measurements cannot be read.
    """
    name = settings.task if isinstance(settings, Finetuning) else settings.name
    case = {"stage": "compiled" if compiled else "step", "case": f"{name}, bf16"}
    here = {"device": describe(choose_device(None)), **case}
    for path in sorted((RESULTS / "gpu").glob("*.json")):
        try:
            measured = read_json(path)
        except UNREADABLE as error:
            raise UserError(path, f"cannot be read ({error})", "run make gpu again") from error
        for row in measured["rows"]:
            facts = {"device": measured["environment"]["device"], **row}
            if here.items() <= facts.items() and "mfu" in row:
                return row["mfu"], f" ({path.name}: {case['stage']}, {case['case']})"
    return None


def estimate_training(
    settings: Settings, size: Size, device: torch.device = META
) -> TrainingEstimate:
    """Build a training's network.

    Args:
        settings: of the fine-tuning or pre-training.
        size: of the histograms, (H, W) in px.
        device: of the network and its batches.
    """
    if isinstance(settings, Pretraining):
        data = open_pretraining(settings, None, size)
        with device:
            network = objective_class(settings).from_data(data)
        return TrainingEstimate(
            settings, network, data.size, lambda lanes: data.blank_batch(lanes, device)
        )
    task: Any = find_task(settings)
    with device:
        model = task.network(settings, random_backbone(settings, size))
    if settings.frozen:
        model.freeze_backbone()
    return TrainingEstimate(
        settings, model, size, lambda lanes: task.blank_batch(settings, size, lanes, device)
    )


def evaluated_windows(settings: Finetuning) -> int:
    """Number of windows that an evaluation of the official test recordings plays, at most.

    Args:
        settings: of the fine-tuning.

    Returns:
        The number, 0 if the data set does not state it.
    """
    dataset: Any = find_registered(DATASETS, settings.dataset, "dataset")
    is_reset = settings.recurrent and settings.sampling == "random"
    return int(dataset.test_windows) * (settings.segments if is_reset else 1)


def require_memory(settings: Settings, size: Size, setup: Setup, device: torch.device) -> float:
    """Refuse a training that needs more memory than its device has; all ranks decide alike.

    A user's network that cannot run on `meta` is trained without this check.

    Args:
        settings: with resolved precision.
        size: of the backbone's input, (H, W) in px.
        setup: options of the run.
        device: on which this rank trains.

    Returns:
        Duration of a step in s at the device's peak throughput; 0 if that is unknown.

    Raises:
        UserError: with the options that reduce the memory.
    """
    on_cpu = device.type == "cpu"
    processes = world_size()
    # CPUs have no fused attention
    setup = replace(setup, deterministic=setup.deterministic or on_cpu)
    try:
        estimate = estimate_training(settings, size)
        cost = estimate.cost(setup, processes)
    except Exception as error:
        log(f"memory is not checked before the training: {one_line(str(error))[:200]}")
        return 0.0
    ranks = all_gather((platform.node(), available_memory(device)))
    machines = [machine for machine, _ in ranks]
    available = min(free / (machines.count(machine) if on_cpu else 1) for machine, free in ranks)
    if LEAST_MEMORY * cost.memory <= available:
        peak = peak_throughput(describe(device), settings.optimisation.precision)
        return cost.flops / peak if peak else 0.0
    name = settings.task if isinstance(settings, Finetuning) else settings.name
    raise UserError(
        f"training of {name}",
        f"needs about {cost.memory / 1e9:.3g} GB of memory, "
        f"but the {'CPU' if on_cpu else 'GPU'} has {available / 1e9:.3g} GB",
        f"use {', or '.join(_memory_remedies(estimate, setup, available))}",
    )


def _memory_remedies(estimate: TrainingEstimate, setup: Setup, available: float) -> list[str]:
    """List changes with which a training needs less memory.

    Args:
        estimate: of the training.
        setup: options of the run, which need too much.
        available: memory in bytes; options are listed if the training fits with them.
    """
    settings = estimate.settings
    processes = world_size()
    remedies = ["--profile sample"] if settings.profile == "paper" else []
    lanes = settings.batch_size // processes
    min_size = objective_class(settings).min_batch_size if isinstance(settings, Pretraining) else 1
    # the most micro-batches into which the lanes of this process can be divided
    parts = max(n for n in range(1, max(1, lanes // min_size) + 1) if lanes % n == 0)
    for recompute in (True, False):
        with suppress(UserError):  # batch normalisation cannot be recomputed
            smaller = replace(setup, accumulate=parts, recompute=recompute)
            memory = estimate.cost(smaller, processes).memory
            if memory <= available:
                options = f"--accumulate {parts}{' --recompute' * recompute}"
                remedies.append(f"{options} ({memory / 1e9:.2g} GB)")
                break
    segments = ", segments=N" if settings.segments > 1 else ""
    return [*remedies, f"a smaller batch (--set batch_size=N{segments})"]


def input_size(settings: Settings, dataset: str, sensor: Size | None = None) -> Size:
    """Size of the backbone's input for a data set that need not exist.

    Args:
        settings: their `sensor_px` comes first.
        dataset: a task, whose official recordings give the default.
        sensor: size (height, width) in px that the data state.

    Returns:
        (H, W) in px.

    Raises:
        UserError: nothing gives the size of the sensor.
    """
    if isinstance(settings, Pretraining) and issubclass(
        objective_class(settings).data_type, ImageData
    ):
        return open_pretraining(settings, None).size
    stated: Size | None = settings.sensor or sensor
    if stated is None and dataset in names("tasks"):
        stated = DATASETS.module_dict[dataset_and_splits(dataset)[0]].sensor
    if stated is None:
        raise UserError(
            f"data set {dataset}",
            "no config specifies its sensor size",
            "give --sensor WIDTHxHEIGHT",
        )
    region = downsampled_region(*stated, settings.downsample)
    rows = settings.protocol.get("rows") if isinstance(settings, Finetuning) else None
    return min(region.height, rows or region.height), region.width
