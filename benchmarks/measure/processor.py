"""What it is worth to a training step on a CPU that freed memory is kept and denormal numbers are 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import tespec.core.compat  # noqa: F401  # before timm

import torch

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.rows import Row
from tespec.cli.processor import tuned
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.training.loop import Loop
from tespec.world import make_world

TASK, STEP, END = "mvsec", "step", "end"
Way = Callable[[], AbstractContextManager[None]]


def processor(conditions: Conditions) -> Iterator[Row]:
    """Fine-tuning steps in a process as those of `run` are, beside one as it comes."""
    root = make_world("tiny", datasets=(TASK,)) / TASK
    for lanes, segments in conditions.size(((4, 4), (8, 10)), ((2, 2),)):
        changes = (f"batch_size={lanes}", f"segments={segments}")
        with ExitStack() as stack:
            ours, plain = (stack.enter_context(training(root, changes, way)) for way in (tuned, nullcontext))
            row = Row(
                "processor", f"{lanes} x {segments} frames", "cpu", f"fine-tuning step, {TASK}, recurrent",
                "as torch and the C library come", work=lanes * segments, unit="frames",
            )  # fmt: skip
            yield conditions.compare(
                row,
                lambda: answer(ours),  # noqa: B023  # called at once
                lambda: answer(plain),  # noqa: B023
                lambda a, b: bool(a == b),
            )


def answer(pipe: Connection) -> float:
    """The loss of the next step."""
    pipe.send(STEP)
    loss: float = pipe.recv()
    return loss


@contextmanager
def training(root: Path, changes: tuple[str, ...], way: Way) -> Iterator[Connection]:
    """A process that takes a step each time it is asked to."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_train, args=(root, changes, way, there), daemon=True)
    process.start()
    there.close()  # so that the end of the process is heard of
    try:
        yield here
    finally:
        if process.is_alive():
            here.send(END)
        process.join()


def _train(root: Path, changes: tuple[str, ...], way: Way, pipe: Connection) -> None:
    torch.set_num_threads(1)
    task = build_task(settings_of(Data(root, "sample"), TASK, "recurrent", "sample", changes), root)
    torch.manual_seed(0)
    loop = Loop(task.model(), task.steps(0), task.settings.optimisation, seed=0, device=torch.device("cpu"))
    loop.model.train()
    batch = task.steps(0)[0]
    with way():
        while pipe.recv() != END:
            pipe.send(loop.train_step(batch)["loss"].item())
