"""Validate and benchmark the harness on a GPU in about ten minutes.

    make gpu                                         # or, without make:
    python benchmarks/gpu.py
    python benchmarks/gpu.py --only agreement        # one stage
    python benchmarks/gpu.py --only losses           # the losses of 200 steps, in minutes
    python benchmarks/gpu.py --device cpu --small    # run all stages without a GPU

Each stage covers TESPEC's pre-training and the fine-tuning of each task. `agreement` checks that
the loss and gradients of a step match the CPU's, `waits` that the CPU does not wait for the GPU
during a step, both in fp32 and bf16; `step` measures time and memory at the paper's size in bf16,
`compiled` the same with `--compile`. `losses` runs only if named: it checks that the losses of
TESPEC's pre-training and DDD17's fine-tuning in bf16 follow the CPU's for 200 steps. If a stage
fails, the others still run. A run of all stages writes results/gpu/MACHINE.json after each stage.
Exit code 1: a check or a stage failed.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

if not __package__:
    import installed  # noqa: F401  # before the harness

import tespec.core.compat  # noqa: F401  # before timm

import torch
from cyclopts import Parameter
from torch import Tensor
from torch.utils.benchmark import Measurement, Timer

from benchmarks.speed import Output, Row, Tiny, measure_rows, results_file
from tespec.cli.main import call, new_app, run
from tespec.core.config import finetuning_settings, names, pretraining_settings
from tespec.core.errors import UserError
from tespec.models.backbone import execute
from tespec.pretraining.method import open_pretraining
from tespec.runs.cost import TrainingEstimate, estimate_training, input_size
from tespec.runs.data import Data, settings_of
from tespec.runs.setup import Setup
from tespec.sample import make_world
from tespec.tasks import build_task
from tespec.training.device import (
    choose_device,
    describe,
    peak_throughput,
    use_deterministic_algorithms,
)
from tespec.training.step_cost import META
from tespec.training.trainer import Trainer

TRAININGS = (*names("tasks"), "tespec")
SMALL = ("ddd17", "tespec")  # trainings of --small
FEW = ("batch_size=2", "segments=4")
# Maximum relative errors of a step's loss and gradients, compared with fp32 on the CPU. Twice the
# error of the CPU in the same precision is added.
ALLOWED = {"fp32": (1e-4, 1e-2), "bf16": (1e-2, 2e-2)}
STEPS, FEW_STEPS = 200, 3  # of `losses`
Device = Annotated[str, Parameter(help="cuda, cuda:N or cpu")]
MOST_ALLOWED = 0.9  # a gradient of zero has the error 1, an unrelated one more
app = new_app("gpu.py", __doc__)


def training(name: str, precision: str, device: torch.device) -> tuple[Trainer, Any]:
    """Set up a small training on the sample world.

    Args:
        name: a task or "tespec".
        precision: "fp32" or "bf16".
        device: where it trains.

    Returns:
        The trainer, and a function that puts the batch of a step on the device.
    """
    dataset = "1mpx" if name == "tespec" else name
    root = make_world("tiny", datasets=(dataset,)) / dataset
    if name == "tespec":
        task: Any = open_pretraining(pretraining_settings(name, "sample", FEW), root)
    else:
        task = build_task(settings_of(Data(root, "sample"), name, "recurrent", None, FEW), root)
    torch.manual_seed(0)
    network = task.method.from_data(task) if name == "tespec" else task.model()
    half = precision if device.type == "cuda" else "fp32"  # the trainer has no bf16 on a CPU
    optimisation = replace(task.settings.optimisation, precision=half)
    steps = task.steps(0)
    loop = Trainer(network, steps, optimisation, seed=0, device=device)
    loop.model.train()
    return loop, lambda step: {key: value.to(device) for key, value in steps[step].items()}


def agreement(name: str, precision: str, device: torch.device, small: bool) -> Row:
    """Compare the loss and gradients of a step with fp32 on the CPU.

    Args:
        name: a task or "tespec".
        precision: "fp32" or "bf16".
        device: the device to check.
        small: has no effect.

    Returns:
        Row of results with relative errors; as of all stages.
    """
    torch.set_float32_matmul_precision("highest")  # TF32 keeps 10 bits of float32's 23
    torch.backends.cudnn.allow_tf32 = False
    cpu = torch.device("cpu")
    loss, gradient = gradients(name, "fp32", cpu)

    def errors(on: torch.device) -> tuple[float, float]:
        device_loss, device_gradient = gradients(name, precision, on)
        error = (device_gradient - gradient).norm() / gradient.norm()
        return abs(device_loss / loss - 1), float(error)

    loss_error, gradient_error = errors(device)
    rounding = zip(ALLOWED[precision], errors(cpu), strict=True)
    allowed = [min(least + 2 * error, MOST_ALLOWED) for least, error in rounding]
    agrees = loss_error <= allowed[0] and gradient_error <= allowed[1]
    return {
        "loss_error": loss_error,
        "gradient_error": gradient_error,
        "allowed": allowed,
        "failed": not agrees,
    }


def gradients(name: str, precision: str, device: torch.device) -> tuple[float, Tensor]:
    """Compute a training's first step.

    Args:
        name: a task or "tespec".
        precision: "fp32" or "bf16".
        device: where it is computed.

    Returns:
        The loss, and all gradients as one vector on the CPU.
    """
    loop, batch_of = training(name, precision, device)
    network: Any = loop.model
    without_dropout(network)
    torch.manual_seed(0)  # of the masks, which are drawn on the CPU
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        loss = network.loss(batch_of(0), None)[0]["loss"]
    loss.backward()
    gradients = [p.grad.float().flatten().cpu() for p in network.parameters() if p.grad is not None]
    return loss.item(), torch.cat(gradients)


def without_dropout(network: torch.nn.Module) -> None:
    """Turn off the only random layers of a network, since devices draw different numbers."""
    for module in network.modules():
        if "Drop" in type(module).__name__:
            module.eval()


def losses(name: str, precision: str, device: torch.device, small: bool) -> Row:
    """Compare the losses of a training's first steps with fp32 on the CPU.

    Args:
        name: a task or "tespec".
        precision: "bf16".
        device: the device to check.
        small: train for `FEW_STEPS` instead of `STEPS`.

    Returns:
        Row of results with the relative error of the curve; allowed is twice that of the CPU in the
        same precision.
    """
    steps = FEW_STEPS if small else STEPS
    cpu = torch.device("cpu")
    expected = loss_curve(name, "fp32", cpu, steps)

    def error(on: torch.device) -> float:
        difference = loss_curve(name, precision, on, steps) - expected
        return float(difference.norm() / expected.norm())

    allowed = 2 * error(cpu)
    device_error = error(device)
    return {"error": device_error, "allowed": allowed, "failed": device_error > allowed}


def loss_curve(name: str, precision: str, device: torch.device, steps: int) -> Tensor:
    """Train without dropout.

    Args:
        name: a task or "tespec".
        precision: "fp32" or "bf16".
        device: where it trains.
        steps: number of steps.

    Returns:
        Loss of each step, (steps,) float32 on the CPU.
    """
    loop, batch_of = training(name, precision, device)
    without_dropout(loop.model)
    curve = []
    # The trainer's own autocast is for a GPU.
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        for step in range(steps):
            loop.step = step
            curve.append(loop.train_step(batch_of(step))["loss"].float().cpu())
    return torch.stack(curve)


def waits(name: str, precision: str, device: torch.device, small: bool) -> Row:
    """Run a step in which CUDA raises an error if the CPU would wait for the GPU.

    Args:
        name: a task or "tespec".
        precision: "fp32" or "bf16".
        device: the device to check.
        small: has no effect.
    """
    loop, batch_of = training(name, precision, device)
    batch = batch_of(0)
    loop.train_step(batch)  # the first step allocates the optimizer's moments
    if device.type != "cuda":
        return {"note": "not checked: no GPU"}
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        loop.train_step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {"note": "no operation waits"}


class PaperStep(NamedTuple):
    """A training step at the paper's size, with its batch on the device."""

    trainer: Trainer
    batch: dict[str, Tensor]
    settings: Any
    seconds_at_peak: float  # duration at the device's peak throughput; 0 if unknown

    def row(self, taken: Measurement) -> Row:
        """Summarise measured steps: times in s, frames per second, fraction of peak, peak bytes."""
        self.trainer.require_finite()
        frames = self.settings.batch_size * self.settings.segments
        row = {
            "seconds": taken.median,
            "iqr": taken.iqr,
            "frames": frames,
            "frames_per_second": frames / taken.median,
            "hours_of_all_steps": self.settings.optimisation.steps * taken.median / 3600,
        }
        if self.seconds_at_peak:
            row["mfu"] = self.seconds_at_peak / taken.median
        if self.trainer.device.type == "cuda":
            row["peak_bytes"] = torch.cuda.max_memory_allocated(self.trainer.device)
        return row


def paper_training(
    name: str, profile: str, changes: Sequence[str] = (), device: torch.device = META
) -> TrainingEstimate:
    """Build a training of official recordings, with random weights; labels and counts are zero.

    Args:
        name: a task or "tespec".
        profile: name of a profile, with the paper's size or the sample's.
        changes: of its settings.
        device: of the network and its batches.
    """
    settings: Any
    if name == "tespec":
        settings = pretraining_settings(name, profile, changes)
        size = input_size(settings, "1mpx")
    else:
        settings = finetuning_settings(name, "recurrent", profile, changes)
        size = input_size(settings, name)
    return estimate_training(settings, size, device)


def paper_step(
    name: str,
    precision: str,
    device: torch.device,
    small: bool,
    change: Callable[[Any], None],
) -> PaperStep:
    """Build a training step with random weights and counts.

    Args:
        name: a task or "tespec".
        precision: "fp32" or "bf16".
        device: where it trains.
        small: use the sample's size.
        change: chooses how the network is computed, in place.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    profile, changes = ("sample", ("batch_size=2", "segments=2")) if small else ("paper", ())
    torch.manual_seed(0)
    training = paper_training(name, profile, changes, torch.device("cpu"))
    settings: Any = training.settings
    batch = training.batch(settings.batch_size)
    batch["histograms"].random_(0, 3)
    use_deterministic_algorithms(False, device)
    change(training.model)
    no_data: Any = []  # each step gets its batch as an argument
    optimisation = replace(settings.optimisation, precision=precision)
    trainer = Trainer(training.model, no_data, optimisation, seed=0, device=device)
    trainer.model.train()
    on_device = {key: values.to(device) for key, values in batch.items()}
    peak = peak_throughput(describe(device), precision)
    cost = paper_training(name, profile, changes).cost(Setup())
    return PaperStep(trainer, on_device, settings, cost.flops / peak if peak else 0.0)


def step(
    name: str, precision: str, device: torch.device, small: bool, compiled: bool = False
) -> Row:
    """Measure time and memory of training steps at the paper's size, with the batch on the device.

    Args:
        name: a task or "tespec".
        precision: "fp32" or "bf16".
        device: the device to measure.
        small: use the sample's size.
        compiled: compile stages and ConvLSTM cells.

    Returns:
        Row of results, as by `PaperStep.row`.
    """
    on_gpu = device.type == "cuda"
    # the default of a run
    change = partial(execute, compiled=compiled, fast=on_gpu)
    measured = paper_step(name, precision, device, small, change)
    try:
        measured.trainer.train_step(measured.batch)
        names = {"step": measured.trainer.train_step, "batch": measured.batch}
        timer = Timer("step(batch)", globals=names)
        return measured.row(timer.blocked_autorange(min_run_time=5.0 if on_gpu else 0.0))
    except torch.OutOfMemoryError:
        return {"note": "does not fit in GPU memory"}


def compiled(name: str, precision: str, device: torch.device, small: bool) -> Row:
    """Measure the same steps with compiled stages and ConvLSTM cells."""
    if device.type != "cuda":
        return {"note": "not measured: no GPU"}
    torch.compiler.reset()  # what was compiled for the training before
    return step(name, precision, device, small, compiled=True)


Stage = Literal["agreement", "waits", "step", "compiled", "losses"]
# What each stage computes, and in which precisions.
STAGES: dict[Stage, Any] = {
    "agreement": (agreement, ("fp32", "bf16")),
    "waits": (waits, ("fp32", "bf16")),
    "step": (step, ("bf16",)),
    "compiled": (compiled, ("bf16",)),
    "losses": (losses, ("bf16",)),
}
ON_REQUEST = ("losses",)


@app.default
def run_stages(
    *,
    device: Device = "cuda",
    small: Tiny = False,
    only: Annotated[Stage | None, Parameter(help="one stage")] = None,
    path: Output = None,
) -> int:
    """Run the stages, print their rows and write them to a file."""
    try:
        chosen = choose_device(device)
    except UserError as error:
        remedy = "use --device cpu --small for a smoke test"
        raise UserError(error.where, "no such GPU", remedy) from error
    torch.set_num_threads((os.cpu_count() or 1) if only in ON_REQUEST else 1)
    cases = []
    for name in [only] if only else [stage for stage in STAGES if stage not in ON_REQUEST]:
        work, precisions = STAGES[name]
        if chosen.type == "cpu" and name not in ("agreement", "losses"):
            precisions = ("fp32",)  # the trainer has no bf16 on a CPU
        trainings = SMALL if small or name in ON_REQUEST else TRAININGS
        for case in product(trainings, precisions):
            cases.append((name, ", ".join(case), partial(work, *case, chosen, small)))
    default = None if only or small else results_file("gpu", describe(chosen))
    return measure_rows(cases, describe(chosen), path or default)


if __name__ == "__main__":
    sys.exit(run(lambda: call(app, sys.argv[1:])))
