"""Processes that want the same run, as programs of tests.

torchrun --nproc-per-node 2 once_runs.py FOLDER    # wait for a lock for longer than an exchange may take
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import pytest
import torch
from short_runs import cell_spec, setup_in, short_pretrainings

from tespec.comparison.records import Record
from tespec.core import distributed as talk
from tespec.core.config import pretraining_settings
from tespec.core.distributed import rank
from tespec.core.registry import register_methods
from tespec.runs import finetune, lock, pretrain, run
from tespec.runs import train as training
from tespec.runs.data import Data
from tespec.training.hooks import CheckpointHook
from tespec.training.launch import launched
from tespec.weights.files import sha256_of

PROFILE = "tiny"


def cell(world: Path, folder: Path, arch: str, method: str = "tespec", **changes: Any) -> Record:
    """A fine-tuning, pre-trained before if the method is, as its record."""
    return finetune.finetune(cell_spec(world, folder, "ddd17", arch, method, profile=PROFILE, **changes))


def pretraining(world: Path, folder: Path, **changes: Any) -> str:
    """SHA-256 of the weights of a pre-training of twelve steps."""
    settings = pretraining_settings("tespec", PROFILE, ["optimisation.steps=12"])
    data, setup = Data(world / "1mpx", "sample"), setup_in(folder, **changes)
    return sha256_of(pretrain.pretrain("tespec", settings, data, 0, setup).weights)


def rounds(
    work: Callable[..., Any], world: Path, folders: list[Path], arguments: tuple[Any, ...], changes: dict[str, Any],
    barrier: Any, found: Any,
) -> None:  # fmt: skip
    """Do the work in each folder, at the same moment as another process; tell results and names of trained runs."""
    register_methods()
    torch.set_num_threads(1)
    with short_pretrainings(), trained_runs() as trained:
        for folder in folders:
            trained.clear()
            barrier.wait(300)
            result = work(world, folder, *arguments, **changes)
            found.put((folder.name, result, list(trained)))


@contextmanager
def trained_runs() -> Iterator[list[str]]:
    """Names of the runs that this process trains inside."""
    names: list[str] = []
    real = training.train

    def train(run: Any, *arguments: Any) -> Any:
        names.append(run.name)
        return real(run, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        for module in (finetune, pretrain):
            patch.setattr(module, "train", train)
        yield names


def paused(world: Path, folder: Path, step: int, reached: Any, go_on: Any, found: Any, **changes: Any) -> None:
    """A pre-training with a checkpoint at every step, which waits behind one of them."""
    register_methods()
    torch.set_num_threads(1)
    training.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    original = CheckpointHook.after_train_iter

    def pause(hook: Any, loop: Any, *arguments: Any) -> None:
        original(hook, loop, *arguments)
        if loop.step == step:
            reached.set()
            assert go_on.wait(300)

    CheckpointHook.after_train_iter = pause  # type: ignore[method-assign]
    found.put((os.getpid(), pretraining(world, folder, **changes)))


def waiting(world: Path, folder: Path, said: Any, found: Any, **changes: Any) -> None:
    """A pre-training that tells every line it says."""
    register_methods()
    torch.set_num_threads(1)
    for module in (lock, run, training):
        module.say = said.put  # type: ignore[attr-defined]
    with trained_runs() as trained:
        found.put((os.getpid(), pretraining(world, folder, **changes), list(trained)))


def main() -> None:
    """Take a run that is held for longer than these processes wait for each other."""
    folder = Path(sys.argv[1])
    talk.PATIENCE = timedelta(seconds=2)
    with launched("pytorch", "cpu"):
        began = time.monotonic()
        with lock.locked(folder / "runs", "run") as holder:
            pass
        (folder / f"rank{rank()}.json").write_text(json.dumps([time.monotonic() - began, holder]))


if __name__ == "__main__":
    main()
