"""Every method on every task it supports, from its own pre-training to a record."""

import pytest
from short_runs import cell_spec

from tespec.core.config import names
from tespec.core.settings import ARCHITECTURES
from tespec.pretraining.method import find_method
from tespec.registry import METHODS, register_methods
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import finetune

FEW = ["optimisation.steps=2", "optimisation.warmup_steps=1", "batch_size=2"]

register_methods()
CELLS = [
    (method, task, arch)
    for method, kind in sorted(METHODS.module_dict.items())
    for task in names("tasks")
    for arch in ARCHITECTURES
    if arch in kind.architectures and (kind.recipe or kind.row.pretraining_data == "-")
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "task", "arch"), CELLS)
def test_a_method_runs_on_a_task(tiny_world, tmp_path_factory, method, task, arch):
    # of all cells, so each method is pre-trained once
    runs = tmp_path_factory.getbasetemp() / "cells"
    kind = find_method(method)
    few = [*FEW, *(["segments=4"] if arch == "recurrent" else [])]
    settings = settings_of(Data(tiny_world / task, "sample"), task, arch, None, few, kind.network)
    own = tuple(FEW) if kind.recipe else ()
    record = finetune(
        cell_spec(tiny_world, runs, task, arch, method, settings=settings, pretraining_changes=own)
    )
    assert (record.weights.loaded == 0) == (kind.row.pretraining_data == "-")
    assert all(name.startswith("lstms.") for name in record.weights.fresh)
    assert record.config["backbone"].startswith(
        {"swin": "swin_micro"}.get(kind.network, kind.network)
    )
