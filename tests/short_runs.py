"""Helpers for tests of runs: a setup in a folder, a stop after a step, no pictures."""

import signal
from contextlib import contextmanager
from dataclasses import fields

import pytest

from tespec.pretraining.method import find_method
from tespec.registry import register_methods
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import CellSpec
from tespec.runs.references import CONTROL, PRIOR, Control, Prior
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
    """Specification of a cell on a sample world; `more`: attributes of the spec or its setup."""
    register_methods()
    of_spec = {field.name for field in fields(CellSpec)} & more.keys()
    spec = {name: more.pop(name) for name in of_spec}
    data = spec.pop("data", Data(world / task, "sample"))
    frozen = more.pop("frozen", False)
    settings = spec.pop("settings", None) or settings_of(
        data, task, arch, profile, changes, frozen=frozen
    )
    references = {PRIOR: Prior, CONTROL: Control}
    kind = references.get(method) or find_method(method)
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
    """Stop runs inside the block at a step by a signal, after `trained` more seconds."""
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
    """Draw no pictures of pre-trainings inside the block; a short one would mostly draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tespec.runs.pretrain.draw_reconstructions", lambda *_: None)
        yield
