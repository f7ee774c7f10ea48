"""Kill and resume a training repeatedly, at system calls that change files and at random moments.

python tools/kills.py --kills 200 --minutes 10 --seed 0

The run uses the real training loop with its hooks and checkpoints, and writes weights at the end.
The network is small, so a run takes a second. Processes are forked from one that has already
imported everything.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import cyclopts
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tespec.core.config import finetuning_settings
from tespec.core.files import write_all
from tespec.runs import train as training
from tespec.runs.run import locked
from tespec.runs.setup import Setup
from tespec.training.checkpoint import remove_checkpoints
from tespec.training.loading import MicroBatches
from tespec.weights.files import write_weights

STEPS, RUN = 12, "evaluation-small"
# `os` functions where a process is killed
CALLS = ("write", "rename", "replace", "unlink", "rmdir", "mkdir", "open")
SETTINGS = replace(
    finetuning_settings("ddd17", "recurrent", "sample").optimisation,
    steps=STEPS,
    warmup_steps=2,
    peak_lr=0.05,
)


class Small(nn.Module):
    """Network with a recurrent state, dropout and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.3))

    def loss(self, batch: dict[str, Tensor], state: Any) -> tuple[dict[str, Tensor], Any]:
        total = batch["x"].sum(0) + (0 if state is None else state["sum"])
        error = self.layers(batch["x"]) - total
        return {"loss": error.square().mean()}, {"sum": total.detach()}


class SmallSteps(torch.utils.data.Dataset):
    def __getitem__(self, step: int) -> dict[str, Tensor]:
        return {"x": torch.sin(torch.arange(12.0).reshape(4, 3) + step)}


def run_once(folder: Path, workers: int = 0) -> None:
    """Train or resume to the end, and write weights and curve.

    Args:
        folder: folder of the run.
        workers: processes that prepare batches.
    """
    training.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    setup = Setup(results=folder / "results", runs=folder / "runs", device="cpu", workers=workers)
    run: Any = SimpleNamespace(
        name=RUN,
        folder=setup.runs / RUN,
        setup=setup,
        device=torch.device("cpu"),
        seed=5,
        config={},
        settings=SimpleNamespace(optimisation=SETTINGS),
    )
    torch.manual_seed(1)
    model = Small()
    with locked(setup.runs, RUN):
        if not (folder / "curve.json").is_file():
            trained = training.train(run, model, MicroBatches([SmallSteps()]))
            write_weights(run.folder / "model.safetensors", model.state_dict(), {})
            write_all({folder / "curve.json": json.dumps(trained.curve)})
        remove_checkpoints(run.folder)


def outcome(folder: Path) -> tuple[str, dict[str, list[float]], set[str]]:
    """Curve, weights and file names of a finished run."""
    run = folder / "runs" / RUN
    tensors = load_file(run / "model.safetensors")
    weights = {name: tensor.flatten().tolist() for name, tensor in tensors.items()}
    return (folder / "curve.json").read_text(), weights, {path.name for path in run.iterdir()}


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child without stderr; return its status as `os.waitpid` does."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work()
        os._exit(0)
    except BaseException:
        print(traceback.format_exc(), flush=True)
        os._exit(1)


def die_at_call(number: int) -> None:
    """Make this process die at a call that changes files: before it, after it, or half-way.

    Args:
        number: of the call, from 1.
    """
    calls = itertools.count(1)

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == number:
                if name == "fsync":  # truncates what torch and safetensors have written
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size * (number % 5) // 4)
                elif name == "write" and number % 3 == 0:
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                elif number % 3 == 1:
                    real(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in (*CALLS, "fsync"):
        setattr(os, name, wrap(name, getattr(os, name)))


def die_after(seconds: float) -> None:
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def soak(kills: int, minutes: float, seed: int) -> Counter[str]:
    """Kill and resume runs, and compare their results with those of an uninterrupted run.

    Args:
        kills: number of kills after which it ends.
        minutes: time after which it ends.
        seed: seed of the moments.

    Returns:
        Counts of runs and kills.
    """
    rng = random.Random(seed)
    end = time.monotonic() + 60 * minutes
    counts = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="kills-") as root:
        uninterrupted = Path(root) / "uninterrupted"
        start = time.monotonic()
        assert in_child(lambda: run_once(uninterrupted)) == 0
        duration = time.monotonic() - start
        expected = outcome(uninterrupted)
        assert expected[2] == {"model.safetensors"}, expected[2]
        while counts["kills"] < kills and time.monotonic() < end:
            counts["runs"] += 1
            folder = Path(root) / f"run-{counts['runs']}"
            while (status := run_and_die(folder, rng, duration, counts)) == signal.SIGKILL:
                counts["kills"] += 1
            assert status == 0, f"seed {seed}, kill {counts['kills']}: a resumed run failed"
            differs = f"seed {seed}, run {counts['runs']}: differs from the uninterrupted run"
            assert outcome(folder) == expected, differs
            shutil.rmtree(folder)
    return counts


def run_and_die(folder: Path, rng: random.Random, duration: float, counts: Counter[str]) -> int:
    """Start or resume a run that dies at a random moment, if it has not ended before.

    Args:
        folder: folder of the run.
        rng: generator of the moment.
        duration: of an uninterrupted run, in s.
        counts: where the kind of moment is counted.

    Returns:
        Status of the process.
    """
    number, seconds = rng.randrange(1, 160), rng.uniform(0, 1.2 * duration)
    workers = 2 * (rng.random() < 0.1)
    by_call = rng.random() < 0.7

    def work() -> None:
        die_at_call(number) if by_call else die_after(seconds)
        run_once(folder, workers)

    status = in_child(work)
    if status == signal.SIGKILL:
        counts["inside a file operation" if by_call else "at a random moment"] += 1
    return status


def main(*, kills: int = 200, minutes: float = 10.0, seed: int = 0) -> None:
    """Kill and resume a training repeatedly, and print the counts.

    Args:
        kills: number of kills after which it ends.
        minutes: time after which it ends.
        seed: seed of the moments.
    """
    torch.set_num_threads(1)  # a process that has started threads cannot be forked safely
    for name, count in soak(kills, minutes, seed).items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    cyclopts.run(main)
