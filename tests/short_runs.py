"""Helpers for tests of runs: a setup in a folder, a stop after a step, and pre-training without pictures."""

import signal
from contextlib import contextmanager
from dataclasses import fields

import pytest

from tespec.pretraining.method import find_method
from tespec.registry import register_methods
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import CellSpec
from tespec.runs.references import PRIOR, Prior
from tespec.runs.setup import Setup
from tespec.runs.train import CheckpointHook


def setup_in(folder, **changes):
    """Setup of a run on the CPU with its results in `folder`."""
    options = {"device": "cpu", "workers": 0, "command": "x"}
    return Setup(results=folder / "results", runs=folder / "runs", **(options | changes))


def cell_spec(
    world,
    folder,
    task="ddd17",
    arch="recurrent",
    method="scratch",
    *,
    changes=(),
    profile=None,
    **more,
):
    """Specification of a cell on the sample world in `world`; `more`: other attributes of the spec or its setup."""
    register_methods()
    own = {each.name for each in fields(CellSpec)} & more.keys()
    spec = {name: more.pop(name) for name in own}
    data = spec.pop("data", Data(world / task, "sample"))
    settings = spec.pop("settings", None) or settings_of(data, task, arch, profile, changes)
    kind = Prior if method == PRIOR else find_method(method)
    spec = {"checkpoint": None, "seed": 0} | spec
    return CellSpec(
        name=method,
        method=kind,
        settings=settings,
        data=data,
        setup=setup_in(folder, **more),
        **spec,
    )


@contextmanager
def stopped_after(step, by=signal.SIGINT, trained=0.0):
    """Within the context, signal `by` stops runs at a step, and `trained` seconds are added to their training time."""
    original = CheckpointHook.after_train_iter

    def stopping(hook, loop, *arguments):
        if loop.step == step:
            hook.start_time -= trained
            hook.request_stop(by, None)
        original(hook, loop, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointHook, "after_train_iter", stopping)
        yield


@contextmanager
def short_pretrainings():
    """Within the context, pre-training draws no pictures, which take most of the time of a short one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tespec.runs.pretrain.draw_reconstructions", lambda *_: None)
        yield
