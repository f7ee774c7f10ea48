"""Helpers for tests of runs: a setup in a folder, a stop after a step, and pre-training without pictures."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tespec.pretraining.method import PretrainMethod, find_method
from tespec.pretraining.tespec import Tespec
from tespec.registry import register_methods
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import CellSpec
from tespec.runs.references import PRIOR, Prior
from tespec.runs.setup import Setup
from tespec.runs.train import CheckpointHook


def setup_in(folder: Path, **changes: Any) -> Setup:
    """Setup of a run on the CPU with its results in `folder`."""
    options: dict[str, Any] = {"device": "cpu", "workers": 0, "command": "x"}
    return Setup(results=folder / "results", runs=folder / "runs", **(options | changes))


def cell_spec(
    world: Path, folder: Path, task: str = "ddd17", arch: str = "recurrent", method: str = "scratch", *,
    changes: Sequence[str] = (), profile: str | None = None, **more: Any,
) -> CellSpec:  # fmt: skip
    """Specification of a cell on the sample world in `world`; `more`: other attributes of the spec or its setup."""
    register_methods()
    own = {each.name for each in fields(CellSpec)} & more.keys()
    spec = {name: more.pop(name) for name in own}
    data = spec.pop("data", Data(world / task, "sample"))
    settings = spec.pop("settings", None) or settings_of(data, task, arch, profile, changes)
    kind = Prior if method == PRIOR else find_method(method)
    usual = {"checkpoint": None, "seed": 0}
    return CellSpec(name=method, method=kind, settings=settings, data=data, setup=setup_in(folder, **more),
                    **(usual | spec))  # fmt: skip


@contextmanager
def stopped_after(step: int, by: int = signal.SIGINT, trained: float = 0.0) -> Iterator[None]:
    """Within the context, signal `by` stops runs at a step, and `trained` seconds are added to their training time."""
    original = CheckpointHook.after_train_iter

    def stopping(hook: CheckpointHook, loop: Any, *arguments: Any) -> None:
        if loop.step == step:
            hook.began -= trained
            hook.request_stop(by, None)
        original(hook, loop, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointHook, "after_train_iter", stopping)
        yield


@contextmanager
def short_pretrainings() -> Iterator[None]:
    """Within the context, pre-training draws no pictures, which take most of the time of a short one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tespec, "draw", PretrainMethod.draw)
        yield
