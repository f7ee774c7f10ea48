"""What it is worth to a training step on a CPU that freed memory is kept and denormal numbers are 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path

import tespec.core.compat  # noqa: F401  # before timm

import torch

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.processes import answers, processes, questions
from benchmarks.measure.rows import Row
from tespec.cli.processor import tuned
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.training.loop import Loop
from tespec.world import make_world

TASK, STEP = "mvsec", "step"
Way = Callable[[], AbstractContextManager[None]]


def processor(conditions: Conditions) -> Iterator[Row]:
    """Fine-tuning steps in a process as those of `run` are, beside one as it comes."""
    root = make_world("tiny", datasets=(TASK,)) / TASK
    for lanes, segments in conditions.size(((4, 4), (8, 10)), ((2, 2),)):
        changes = (f"batch_size={lanes}", f"segments={segments}")
        with processes(_train, ((root, changes, way) for way in (tuned, nullcontext))) as (ours, plain):
            row = Row(
                "processor", f"{lanes} x {segments} frames", "cpu", f"fine-tuning step, {TASK}, recurrent",
                "as torch and the C library come", work=lanes * segments, unit="frames",
            )  # fmt: skip
            yield conditions.compare(
                row,
                lambda: answers([ours], STEP)[0],
                lambda: answers([plain], STEP)[0],
                lambda a, b: bool(a == b),
            )


def _train(root: Path, changes: tuple[str, ...], way: Way, pipe: Connection) -> None:
    torch.set_num_threads(1)
    task = build_task(settings_of(Data(root, "sample"), TASK, "recurrent", "sample", changes), root)
    torch.manual_seed(0)
    loop = Loop(task.model(), task.steps(0), task.settings.optimisation, seed=0, device=torch.device("cpu"))
    loop.model.train()
    batch = task.steps(0)[0]
    with way():
        for _ in questions(pipe):
            pipe.send(loop.train_step(batch)["loss"].item())
