"""Whether a GPU computes what a CPU does, in steps and evaluations, and whether a step waits for it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import tespec.core.compat  # noqa: F401  # before timm

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchmarks.measure.conditions import NO_GPU, Conditions
from benchmarks.measure.networks import histograms
from benchmarks.measure.rows import Row
from tespec.core.config import names, pretraining_settings
from tespec.core.errors import one_line
from tespec.core.registry import METHODS, register_methods
from tespec.core.settings import Optimisation
from tespec.events.intensity import estimate_intensity
from tespec.pretraining.objective import build_objective
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.training.device import be_deterministic, seed_everything
from tespec.training.loop import Loop
from tespec.world import make_world

FEW = ("optimisation.steps=8", "optimisation.warmup_steps=1", "batch_size=2")
TASKS = ("ddd17", "mvsec", "gen1")  # one of each kind
RECURRENT = "segments=4"
QUICK = ("ddd17", "tespec")  # of the trainings, at sizes that take no time
STEPS = 2  # before a training is interrupted, and after
WORKERS = 2


# Largest relative errors of a step beside float32 on a CPU: of the loss, and of all gradients together. For bf16 twice
# the error of a CPU's bf16 is added, since a fresh network passes its rounding on.
ALLOWED = {"fp32": (1e-4, 1e-2), "bf16": (1e-2, 2e-2)}


class Training(NamedTuple):
    """A small training: its fresh network, its batches by step, and its optimizer."""

    network: Any
    steps: Any
    settings: Optimisation

    def loop(self, device: torch.device) -> Loop:
        """A loop over a copy of the network, ready for steps."""
        loop = Loop(deepcopy(self.network), self.steps, self.settings, seed=0, device=device)
        loop.model.train()
        return loop

    def batch(self, step: int, device: torch.device) -> dict[str, Tensor]:
        """The batch of a step, on the device."""
        return {name: value.to(device) for name, value in self.steps[step].items()}


@lru_cache
def world() -> Path:
    """The smallest sample world, made where the cache has not got it."""
    return make_world("tiny", datasets=(*names("datasets"), "objects"))


def task_of(name: str, *changes: str) -> Any:
    """A task of the sample world, recurrent, with few lanes and segments."""
    data = Data(world() / name, "sample")
    return build_task(settings_of(data, name, "recurrent", None, (*FEW, RECURRENT, *changes)), data.root)


def trainings(quick: bool) -> dict[str, Callable[[], Training]]:
    """Every kind of task and every recipe of pre-training."""
    register_methods()
    recipes = sorted({kind.recipe for kind in METHODS.module_dict.values() if kind.recipe})
    made: dict[str, Callable[[], Training]] = {name: lambda name=name: _of_task(name) for name in TASKS}  # type: ignore[misc]
    made |= {recipe: lambda recipe=recipe: _of_recipe(recipe) for recipe in recipes}
    return {name: made[name] for name in QUICK} if quick else made


def _of_task(name: str) -> Training:
    task = task_of(name)
    torch.manual_seed(0)
    return Training(task.model(), task.steps(0), task.settings.optimisation)


def _of_recipe(recipe: str) -> Training:
    settings = pretraining_settings(recipe, "sample", FEW)
    if settings.segments > 1:
        settings = replace(settings, segments=4)
    objective = build_objective(settings, world() / settings.dataset)
    torch.manual_seed(0)
    return Training(objective.network(), objective.steps(0), settings.optimisation)


class CpuDraws(TorchDispatchMode):
    """Inside, random numbers are drawn by the CPU's generator, wherever they go: all devices draw the same."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run an operation; one that draws runs on the CPU."""
        given = dict(kwargs or {})
        tensors = [each.device for each in args if isinstance(each, Tensor)]
        device = torch.device(given.get("device") or (tensors[0] if tensors else "cpu"))
        # Attention is among them for its dropout, which is zero here.
        if torch.Tag.nondeterministic_seeded not in func.tags or "attention" in str(func) or device.type == "cpu":
            return func(*args, **given)
        there = tree_map(_moved("cpu"), (args, given))
        drawn = func(*there[0], **there[1])
        if func._schema.is_mutable:
            return args[0].copy_(drawn)
        return tree_map(_moved(device), drawn)


def _moved(device: torch.device | str) -> Callable[[Any], Any]:
    def move(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device(device)
        return value.to(device) if isinstance(value, Tensor) else value

    return move


def gradients(training: Training, device: torch.device, half: bool) -> tuple[float, Tensor]:
    """Loss of the first batch, and all gradients in one row on the CPU."""
    network = deepcopy(training.network).to(device).train()
    batch = training.batch(0, device)
    seed_everything(0)
    with CpuDraws():
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = network.loss(batch, None)[0]["loss"]
        loss.backward()
    found = [each.grad.float().flatten().cpu() for each in network.parameters() if each.grad is not None]
    return float(loss.detach()), torch.cat(found)


def agreement(conditions: Conditions) -> Iterator[Row]:
    """Loss and gradients of each training's step, intensity and histograms, beside those of a CPU."""
    device = conditions.devices[-1]
    # TF32 keeps 10 bits of float32's 23.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield guarded(Row("agreement", "intensity", device.type), lambda row: _intensity(row, device))
    yield guarded(Row("agreement", "histograms", device.type), lambda row: _histograms(row, device))
    for name, make in trainings(conditions.quick).items():
        made = lru_cache(make)
        for precision in ALLOWED:
            row = Row("agreement", f"{name}, {precision}", device.type)
            yield guarded(row, lambda row, made=made, precision=precision: _agrees(row, made(), precision, device))  # type: ignore[misc]


def _agrees(row: Row, training: Training, precision: str, device: torch.device) -> Row:
    cpu, half = torch.device("cpu"), precision == "bf16"
    plain = gradients(training, cpu, False)
    loss, gradient = _errors(gradients(training, device, half), plain)
    rounding = _errors(gradients(training, cpu, True), plain) if half else (0.0, 0.0)
    allowed = [least + 2 * error for least, error in zip(ALLOWED[precision], rounding, strict=True)]
    wrong = not (loss <= allowed[0] and gradient <= allowed[1])
    note = f"allowed: {allowed[0]:.2g} of the loss, {allowed[1]:.2g} of the gradients"
    return replace(row, figures={"loss_error": loss, "gradient_error": gradient}, failed=wrong, note=note)


def _errors(found: tuple[float, Tensor], plain: tuple[float, Tensor]) -> tuple[float, float]:
    """Relative errors of a loss and of its gradients."""
    loss = abs(found[0] - plain[0]) / max(abs(plain[0]), 1e-6)
    return loss, float((found[1] - plain[1]).norm() / plain[1].norm())


def _intensity(row: Row, device: torch.device) -> Row:
    counts = histograms(2, 3, 20, 24, 32)
    error = float((estimate_intensity(counts.to(device))[0].cpu() - estimate_intensity(counts)[0]).abs().max())
    return replace(row, figures={"largest_error": error}, failed=not error <= 1e-5)


def _histograms(row: Row, device: torch.device) -> Row:
    """Those of a batch that are counted on the device, flipped and zoomed, to the last event."""
    steps = _of_recipe("tespec").steps
    counted = [steps[step]["histograms"] for step in range(STEPS)]
    steps.count_on_device()
    sent = ({name: value.to(device) for name, value in steps[step].items()} for step in range(STEPS))
    different = sum(
        int((steps.arrived(batch)["histograms"].cpu() != wanted).sum())
        for batch, wanted in zip(sent, counted, strict=True)
    )
    events = float(sum(int(each.sum()) for each in counted))
    return replace(row, figures={"different_counts": float(different), "events": events}, failed=bool(different))


def resume(conditions: Conditions) -> Iterator[Row]:
    """A training that is taken up from its saved state ends with the weights of one that was not interrupted."""
    device = conditions.devices[-1]
    for name, make in trainings(conditions.quick).items():
        yield guarded(Row("resume", name, device.type), lambda row, make=make: _resumed(row, make, device))  # type: ignore[misc]


def _resumed(row: Row, make: Callable[[], Training], device: torch.device) -> Row:
    training = make()
    be_deterministic(True, device)
    try:
        straight, before, after = (training.loop(device) for _ in range(3))
        _steps(training, straight, 2 * STEPS)
        _steps(training, before, STEPS)
        saved = io.BytesIO()
        torch.save(before.state_dict(), saved)
        saved.seek(0)
        after.load_state_dict(torch.load(saved, weights_only=True, map_location="cpu"))
        _steps(training, after, STEPS)
    finally:
        be_deterministic(False, device)
    ends = (loop.model.state_dict().values() for loop in (straight, after))
    largest = max(float((a.float() - b.float()).abs().max()) for a, b in zip(*ends, strict=True) if a.numel())
    return replace(row, figures={"largest_difference": largest}, failed=largest != 0)


def _steps(training: Training, loop: Loop, count: int) -> None:
    for _ in range(count):
        loop.train_step(training.batch(loop.step, loop.device))
        loop.step += 1


def waits(conditions: Conditions) -> Iterator[Row]:
    """A step of each training in which CUDA raises where the CPU would wait for the GPU."""
    device = conditions.devices[-1]
    for name, make in trainings(conditions.quick).items():
        row = Row("waits", name, device.type)
        yield guarded(row, lambda row, make=make: _waits(row, make, device))  # type: ignore[misc]


def _waits(row: Row, make: Callable[[], Training], device: torch.device) -> Row:
    if device.type != "cuda":
        return replace(row, note=NO_GPU)
    training = make()
    loop = training.loop(device)
    batches = [training.batch(step, device) for step in range(STEPS)]
    for batch in batches:
        loop.train_step(batch)
        loop.step += 1
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        loop.train_step(batches[-1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return replace(row, note="no operation waits")


def evaluation(conditions: Conditions) -> Iterator[Row]:
    """Scores of a fresh network with workers on the device, beside those without on a CPU."""
    device = conditions.devices[-1]
    for name in conditions.size(("ddd17", "mvsec"), ("ddd17",)):
        yield guarded(Row("evaluation", name, device.type), lambda row, name=name: _evaluated(row, name, device))  # type: ignore[misc]


def _evaluated(row: Row, name: str, device: torch.device) -> Row:
    task = task_of(name, "optimisation.precision=fp32")
    torch.manual_seed(0)
    model = task.model()
    plain = task.evaluate(model, torch.device("cpu"))
    found = task.evaluate(model.to(device), device, WORKERS)
    main = next(iter(task.scores))
    labels = sum(len(recording.labelled) for recording in task.scored)
    error = abs(found.metrics[main] - plain.metrics[main]) / max(abs(plain.metrics[main]), 1.0)
    # Pixels whose two best classes lie within a rounding may change.
    figures = {f"{main}_error": error}
    return replace(row, seconds=found.seconds, work=labels, unit="labels", figures=figures, failed=not error <= 0.02)


def guarded(row: Row, check: Callable[[Row], Row]) -> Row:
    """`row` as `check` completes it; failed, with the error as its note, where it raises."""
    try:
        return check(row)
    except Exception as error:
        return replace(row, failed=True, note=f"{type(error).__name__}: {one_line(str(error))[:300]}")
