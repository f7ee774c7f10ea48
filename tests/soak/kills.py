"""Kills a training run again and again, at any system call that touches a file and at any moment, and goes on with it.

python tests/soak/kills.py --kills 200 --minutes 10 --seed 0

The run is real: the training loop with its hooks and checkpoints, a record at the end. The network is small, so that a
run takes a second. Processes are forked from one that has everything imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tespec.core.config import finetuning_settings
from tespec.runs import train as training
from tespec.runs.lock import locked
from tespec.runs.run import finish
from tespec.runs.setup import Setup
from tespec.runs.train import train
from tespec.weights.files import write_weights

STEPS = 12
RUN = "evaluation-small"
# What a process can be killed in front of, inside of, or behind.
CALLS = ("write", "fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open")
SETTINGS = dataclasses.replace(
    finetuning_settings("ddd17", "recurrent", "sample").optimisation, steps=STEPS, warmup_steps=2, peak_lr=0.05
)


class Small(nn.Module):
    """Needs its recurrent state, draws dropout, and normalises batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.3)

    def loss(self, batch: dict[str, Tensor], state: Any) -> tuple[dict[str, Tensor], Any]:
        """Predict the running sum of the inputs."""
        total = batch["x"].sum(0) + (0 if state is None else state["sum"])
        out = self.drop(self.norm(self.layer(batch["x"])))
        return {"loss": (out - total).square().mean()}, {"sum": total.detach()}


class SmallSteps(torch.utils.data.Dataset):
    """Batches that follow from the step."""

    left_out, segments, has_no_continuation = (), 1, False

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        return {"x": torch.sin(torch.arange(12.0).reshape(4, 3) + step)}


def run_once(folder: Path, *, workers: int = 0) -> None:
    """Train, or go on, to the end; weights and curve stand in the folder afterwards."""
    training.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    setup = Setup(results=folder / "results", runs=folder / "runs", device="cpu", workers=workers)
    torch.manual_seed(1)
    model = Small()
    with locked(setup.runs, RUN):
        if (folder / "curve.json").is_file():
            finish(setup, RUN, STEPS)
            return
        trained = train(model, SmallSteps(), SETTINGS, seed=5, setup=setup, run=RUN, facts={})
        write_weights(setup.runs / RUN / "model.safetensors", model.state_dict(), {})
        unfinished = folder / "curve.part"
        unfinished.write_text(json.dumps(trained.curve))
        os.replace(unfinished, folder / "curve.json")
        finish(setup, RUN, STEPS)


def outcome(folder: Path) -> tuple[str, dict[str, list[float]]]:
    """What a finished run left."""
    weights = load_file(folder / "runs" / RUN / "model.safetensors")
    return (folder / "curve.json").read_text(), {name: each.flatten().tolist() for name, each in weights.items()}


def in_child(work: Callable[[], None]) -> int:
    """Fork, do the work quietly, and give the child's status as `os.waitpid` does."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(1)


def killed_at_call(folder: Path, number: int, workers: int) -> None:
    """Run and die at the `number`-th call that changes files: half of a write is done, or the call is not, or is."""
    left = [number]

    def wrap(name: str, real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                kind = number % 3
                if name == "write" and kind == 0:
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                elif kind == 1:
                    real(*arguments, **more)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name, getattr(os, name)))
    slow_files(left, number)
    run_once(folder, workers=workers)


def slow_files(left: list[int], number: int) -> None:
    """Let files that are flushed count as well: checkpoints are written so."""
    real = os.fsync

    def fsync(handle: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.ftruncate(handle, os.fstat(handle).st_size * (number % 5) // 4)
            os.kill(os.getpid(), signal.SIGKILL)
        real(handle)

    os.fsync = fsync  # type: ignore[assignment]


def killed_after(folder: Path, seconds: float, workers: int) -> None:
    """Run and die after some time, wherever that is."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    run_once(folder, workers=workers)


def soak(kills: int, minutes: float, seed: int) -> Counter[str]:
    """Kill and resume until there were `kills` kills or the time is over; gives counts.

    Raises:
        AssertionError: a resumed run is not the uninterrupted one, or a child failed.
    """
    rng, ends = random.Random(seed), time.monotonic() + 60 * minutes
    counts: Counter[str] = Counter()
    root = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        straight = root / "straight"
        began = time.monotonic()
        assert in_child(lambda: run_once(straight)) == 0
        lasts, wanted = time.monotonic() - began, outcome(straight)
        while counts["kills"] < kills and time.monotonic() < ends:
            counts["runs"] += 1
            folder = root / f"run-{counts['runs']}"
            while True:
                number, seconds = rng.randrange(1, 160), rng.uniform(0.0, 1.2 * lasts)
                by_call = rng.random() < 0.7
                workers = 2 if rng.random() < 0.1 else 0
                work = (
                    partial(killed_at_call, folder, number, workers)
                    if by_call
                    else partial(killed_after, folder, seconds, workers)
                )
                status = in_child(work)
                if os.WIFSIGNALED(status):
                    assert os.WTERMSIG(status) == signal.SIGKILL, status
                    counts["kills"] += 1
                    counts["inside a file operation" if by_call else "at a random moment"] += 1
                    continue
                assert status == 0, f"seed {seed}, kill {counts['kills']}: a resumed run failed"
                break
            found = outcome(folder)
            assert found == wanted, f"seed {seed}, run {counts['runs']}: not the uninterrupted run"
            leftovers = {path.name for path in (folder / "runs" / RUN).iterdir()}
            assert leftovers == {"model.safetensors", "status.json"}, leftovers
            counts["equal to the uninterrupted run"] += 1
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return counts


def main() -> None:
    """Soak and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    counts = soak(options.kills, options.minutes, options.seed)
    sys.stdout.write("\n".join(f"{count:6} {what}" for what, count in counts.items()))
    sys.stdout.write(f"\n{time.monotonic() - began:6.0f} s\n")


if __name__ == "__main__":
    main()
