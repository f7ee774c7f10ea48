"""Estimate a training's FLOPs, memory and GPU hours from one step on the `meta` device, without data."""

import platform
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import tespec.core.compat  # noqa: F401  # before timm

import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from tespec.core.config import as_facts, dataset_and_splits, names
from tespec.core.distributed import all_gather, rank_computes, world_size
from tespec.core.errors import UserError, one_line
from tespec.core.progress import say
from tespec.core.settings import Finetuning, Pretraining, Size
from tespec.datasets.recording import reduced
from tespec.models.backbone import execute
from tespec.models.layers import AUTOCAST_ON_META
from tespec.pretraining.data import ImageData
from tespec.pretraining.method import new_network, open_pretraining, pretrain_method
from tespec.registry import DATASETS
from tespec.runs.setup import Setup
from tespec.runs.train import require_trainable
from tespec.tasks import find_task
from tespec.tasks.base import fresh_backbone
from tespec.training.ddp import synced
from tespec.training.device import available_memory
from tespec.training.loading import Batch

META = torch.device("meta")
# Name, memory in 10^9 bytes, and peak dense throughput of tensor cores in bf16 and TF32, in 10^12
# operations per second without sparsity, from NVIDIA's datasheets and the white papers of Ada and
# H100.
GPUS = (
    ("RTX 6000 Ada", 48, 364.25, 182.1),  # the datasheet's 1,457 is FP8 with sparsity
    ("A100 80GB SXM", 80, 312, 156),
    ("H100 SXM", 80, 989.4, 494.7),  # the datasheet's 1,979 and 989 are with sparsity
    ("H200 SXM", 141, 989.4, 494.7),
)
# Fraction of a GPU's peak throughput that training reaches. Measured in bf16 on an H100
# (results/gpu): 0.04 on MVSEC, whose head is in fp32, 0.06 on Gen1, 0.07 in TESPEC's pre-training
# (0.10 with --compile) and on 1Mpx, 0.12 on DSEC and DDD17.
MFU = 0.1
# A training needs at least this fraction of its estimated memory. Measured on an H100: 1.0 to 1.5,
# with --compile 0.9 (results/gpu); on a CPU, where torch makes temporary copies: 1.1 to 1.9.
LEAST_MEMORY = 0.85
# torch's autocast on CUDA
# (https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior): functions computed in
# half precision and in float32.
IN_HALF = {
    *(
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose2d",
        "linear",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
    ),
    *("bmm", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention"),
}
IN_FP32 = {
    "layer_norm",
    "group_norm",
    "normalize",
    "softmax",
    "exp",
    "log",
    "pow",
    "softplus",
    "sum",
}


class Counter(TorchDispatchMode):
    """Count the FLOPs of a step by torch's formulas, and its memory, including recomputed activations.

    `flops` are those of matrix products and convolutions, where a multiply-add counts as two;
    `alive` the bytes of all storages in use, including those of the tensors `before`; `peak` its
    maximum.
    """

    def __init__(self, before: Iterable[Tensor]) -> None:
        super().__init__()
        self.flops = self.alive = self.peak = 0
        # Keys are storage objects, since all addresses are zero on `meta`.
        self._storages: dict[int, weakref.ref[Any]] = {}
        for tensor in before:
            self._see(tensor)

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._storages:
            self.alive += size
            self.peak = max(self.peak, self.alive)
            self._storages[key] = weakref.ref(storage, lambda _: self._gone(key, size))

    def _gone(self, key: int, size: int) -> None:
        self.alive -= size
        del self._storages[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        for each in tree_leaves(out):
            if isinstance(each, Tensor):
                self._see(each)
        return out


class AsOnCuda(TorchFunctionMode):
    """Emulate CUDA's autocast and fused attention on `meta`, where torch has neither.

    Tensors are cast inside `torch.autocast(AUTOCAST_ON_META)`. Attention is CUDA's memory-efficient
    kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[int, Tensor] = {}  # like autocast, cast each weight once per step

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if torch.is_autocast_enabled(AUTOCAST_ON_META) and name in IN_HALF | IN_FP32:
            dtype = torch.bfloat16 if name in IN_HALF else torch.float32
            args, kwargs = tree_map_only(
                Tensor, lambda each: self._cast(each, dtype), (args, kwargs)
            )
        return (_attention if func is scaled_dot_product_attention else func)(*args, **kwargs)

    def _cast(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        if value.dtype not in (torch.float32, torch.bfloat16):
            return value
        if not isinstance(value, nn.Parameter) or value.dtype == dtype:
            return value.to(dtype)
        if id(value) not in self._weights:
            self._weights[id(value)] = value.to(dtype)
        return self._weights[id(value)]


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Any:
    """Compute attention by the kernel's operator; on `meta`, torch would store the attention matrices."""
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:-1], attn_mask.shape[-1])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, mask, torch.is_grad_enabled(), **options)[0]


def backward(loss: Tensor) -> None:
    """Run `loss.backward()` without leaving the active torch modes, which recomputed activations need."""
    run_backward = torch.autograd.Variable._execution_engine.run_backward
    run_backward(
        (loss,),
        (torch.ones_like(loss),),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


class Cost(NamedTuple):
    """Cost of a training on each GPU."""

    flops: int  # of an optimizer step; a multiply-add counts as two
    kept: int  # bytes of activations kept for the backward pass, without weights and batch
    fixed: int  # bytes of weights, gradients and the optimizer's two moments
    memory: int  # peak memory in bytes


class TrainingEstimate(NamedTuple):
    """A training on the `meta` device, to estimate its cost."""

    settings: Finetuning | Pretraining
    model: Any  # network with a `loss`
    size: Size  # (H, W) of the backbone's input in px
    batch: Callable[[int], Batch]  # makes an empty batch of a number of lanes

    @property
    def half(self) -> bool:
        """Whether the training uses mixed precision on a GPU."""
        return self.settings.optimisation.precision != "fp32"

    def cost(self, setup: Setup, gpus: int = 1) -> Cost:
        """Estimate the cost on each of `gpus` GPUs."""
        require_trainable(self.settings, setup, processes=gpus)
        model, batch = (
            self.model.train(),
            self.batch(self.settings.batch_size // (gpus * setup.accumulate)),
        )
        synced(model)  # as in a training
        execute(model, recompute=setup.recompute, fast=not setup.deterministic)
        counter = Counter([*model.parameters(), *model.buffers(), *batch.values()])
        before = counter.alive
        try:
            with counter, AsOnCuda():
                with torch.autocast(AUTOCAST_ON_META, torch.bfloat16, self.half):
                    losses, state = model.loss(batch, None)
                kept = counter.alive - before
                backward(losses["loss"])
        except (NotImplementedError, RuntimeError) as error:
            what = f"the cost of its step cannot be estimated without data: {one_line(str(error))[:200]}"
            raise UserError(
                type(model).__name__, what, "make tensor shapes independent of tensor values"
            ) from error
        model.zero_grad()
        weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
        trained = sum(each.nbytes for each in model.parameters() if each.requires_grad)
        carried = sum(each.nbytes for each in tree_leaves(state) if isinstance(each, Tensor))
        # Added to the peak of one micro-batch, which includes weights and gradients: the
        # optimizer's moments, the other micro-batches, accumulated gradients, DDP's gradient
        # buckets, and recurrent states before and after the step.
        waiting = (setup.accumulate - 1) * sum(each.nbytes for each in batch.values())
        waiting += (2 * setup.accumulate - 1) * carried + trained * (
            (setup.accumulate > 1) + (gpus > 1)
        )
        memory = counter.peak + 2 * trained + waiting
        return Cost(setup.accumulate * counter.flops, kept, weights + 3 * trained, memory)

    def report(self, data: str, setup: Setup, gpus: int = 1) -> str:
        """Format the resolved settings and the cost; `data` describes the data."""
        settings, cost = self.settings, self.cost(setup, gpus)
        facts = {name: value for name, value in as_facts(settings).items() if name != "deviations"}
        counts = {
            name: sum(p.numel() for p in part.parameters())
            for name, part in self.model.named_children()
        }
        parameters = ", ".join(f"{count:,} {part}" for part, count in counts.items() if count)
        precision, memory = "bf16" if self.half else "fp32", cost.memory / 1e9
        lines = [
            yaml.safe_dump(
                {"settings": facts}, sort_keys=False, width=116, default_flow_style=True
            ),
            f"data        {data}",
            f"profile     {settings.profile}",
            f"input       {self.size[0]} x {self.size[1]} px, {settings.batch_size} x {settings.segments} per step",
            f"parameters  {parameters}",
            f"per step    {cost.flops / 1e12:.3g} TFLOP{f' on each of {gpus} GPUs' if gpus > 1 else ''}; "
            f"{settings.optimisation.steps:,} steps",
            f"memory      {memory:.3g} GB in {precision}: {cost.kept / 1e9:.3g} GB kept for the backward pass, "
            f"{cost.fixed / 1e9:.3g} GB weights, gradients, optimizer",
        ]
        for title, gigabytes, bf16, tf32 in GPUS:
            peak = (bf16 if self.half else tf32) * 1e12
            hours = settings.optimisation.steps * cost.flops / (peak * MFU) / 3600
            small = "; too small: use --recompute, --accumulate N, or more GPUs" * (
                memory > gigabytes
            )
            lines.append(f"  {title:16} {gigabytes:4} GB  {hours:,.1f} h{small}")
        note = f"Hours are for the steps at {100 * MFU:.0f} % of peak throughput, without data loading and evaluation."
        return "\n".join([*lines, note])


def estimate_cell(settings: Finetuning, size: Size) -> TrainingEstimate:
    """Build the estimate of a fine-tuning on histograms of `size` (H, W) in px."""
    kind: Any = find_task(settings)
    with META:
        model = kind.network(settings, fresh_backbone(settings, size))
    return TrainingEstimate(
        settings, model, size, lambda lanes: kind.blank_batch(settings, size, lanes, META)
    )


def estimate_pretraining(settings: Pretraining, size: Size) -> TrainingEstimate:
    """Build the estimate of a pre-training on histograms of `size` (H, W) in px."""
    data = open_pretraining(settings, None, size)
    with META:
        model = new_network(settings, data)
    return TrainingEstimate(settings, model, data.size, lambda lanes: data.blank_batch(lanes, META))


def require_memory(
    settings: Finetuning | Pretraining,
    size: Size,
    setup: Setup,
    device: torch.device,
    *,
    freeze: bool = False,
) -> None:
    """Refuse a training that needs more memory than its device has available; all ranks decide alike.

    A network of the user's that cannot run on `meta` is trained without this check.

    Args:
        settings: with resolved precision.
        size: of the backbone's input, (H, W) in px.
        setup: options of the run.
        device: on which this rank trains.
        freeze: whether the backbone is frozen.

    Raises:
        UserError: with the options that reduce the memory.
    """
    on_cpu, processes = device.type == "cpu", world_size()
    # CPUs have no fused attention
    setup = replace(setup, deterministic=setup.deterministic or on_cpu)

    def memory(setup: Setup) -> int:
        of = (
            estimate_cell(settings, size)
            if isinstance(settings, Finetuning)
            else estimate_pretraining(settings, size)
        )
        if freeze:
            of.model.freeze_backbone()
        with rank_computes(alone=True):
            return of.cost(setup, processes).memory

    try:
        need = memory(setup)
    except Exception as error:
        say(f"memory is not checked before the training: {one_line(str(error))[:200]}")
        return
    ranks = all_gather((platform.node(), available_memory(device)))
    machines = [machine for machine, _ in ranks]
    available = min(free / (machines.count(machine) if on_cpu else 1) for machine, free in ranks)
    if LEAST_MEMORY * need <= available:
        return
    remedies = ["--profile sample"] * (settings.profile == "paper")
    least = pretrain_method(settings).min_batch_size if isinstance(settings, Pretraining) else 1
    lanes = settings.batch_size // processes
    parts = max(
        count
        for count in range(1, lanes + 1)
        if lanes % count == 0 and lanes // count >= min(least, lanes)
    )
    for recompute in (True, False):
        with suppress(UserError):  # batch normalisation cannot be recomputed
            if (less := memory(replace(setup, accumulate=parts, recompute=recompute))) <= available:
                remedies.append(
                    f"--accumulate {parts}{' --recompute' * recompute} ({less / 1e9:.2g} GB)"
                )
                break
    remedies.append(
        f"a smaller batch (--set batch_size=N{', segments=N' * (settings.segments > 1)})"
    )
    name = settings.task if isinstance(settings, Finetuning) else settings.name
    what = f"needs about {need / 1e9:.3g} GB of memory, but the {'CPU' if on_cpu else 'GPU'} has {available / 1e9:.3g} GB"
    raise UserError(f"training of {name}", what, f"use {', or '.join(remedies)}")


def input_of(settings: Finetuning | Pretraining, dataset: str, sensor: Size | None = None) -> Size:
    """Size (H, W) of the backbone's input in px, from the sensor size (height, width) in px.

    That is `sensor_px` if set, else `sensor`, which the data state, else that of the task's
    official recordings.
    """
    if isinstance(settings, Pretraining) and isinstance(
        data := open_pretraining(settings, None), ImageData
    ):
        return data.size
    official = (
        DATASETS.module_dict[dataset_and_splits(dataset)[0]].sensor
        if dataset in names("tasks")
        else None
    )
    stated: Size | None = settings.sensor or sensor or official
    if stated is None:
        raise UserError(
            f"data set {dataset}",
            "no config specifies its sensor size",
            "give --sensor WIDTHxHEIGHT",
        )
    region = reduced(*stated, settings.downsample)
    rows = settings.protocol.get("rows") if isinstance(settings, Finetuning) else None
    return min(region.height, rows or region.height), region.width
