"""What processes do that want the same run, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import pytest
import torch
from short_runs import cell_spec, setup_in, short_pretrainings

from tespec.comparison.records import Record
from tespec.core.config import pretraining_settings
from tespec.core.registry import register_methods
from tespec.runs import finetune, lock, pretrain, run
from tespec.runs import train as training
from tespec.runs.data import Data
from tespec.training.hooks import CheckpointHook
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


def trained_at_once(world: Path, folder: Path, arch: str, barrier: Any, found: Any) -> None:
    """Make a cell at the same moment as another process; tell the names of the runs that were trained for it."""
    register_methods()
    torch.set_num_threads(1)
    with short_pretrainings(), trained_runs() as trained:
        barrier.wait(300)
        cell(world, folder, arch)
        found.put(trained)


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
    found.put(pretraining(world, folder, **changes))


def waiting(world: Path, folder: Path, said: Any, found: Any, **changes: Any) -> None:
    """A pre-training that tells every line it says."""
    register_methods()
    torch.set_num_threads(1)
    for module in (lock, run, training):
        module.say = said.put  # type: ignore[attr-defined]
    with trained_runs() as trained:
        found.put((pretraining(world, folder, **changes), trained))


def said_until(said: Any, wanted: str) -> str:
    """The first line said that holds some words."""
    while True:
        line: str = said.get(timeout=300)
        if wanted in line:
            return line
