"""Which cells a grid has: methods that can start, tasks, architectures, seeds, and the pre-trainings before them."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.core.errors import UserError

if TYPE_CHECKING:
    from tespec.comparison.cells import GridCell
    from tespec.runs.data import Data


def named_files(given: list[str]) -> dict[str, Path]:
    """METHOD=FILE pairs."""
    files = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or not Path(path).is_file():
            raise UserError(f"--checkpoints {each}", "is not METHOD=FILE of a file that exists", "check the path")
        files[name] = Path(path)
    return files


def matrix(options: argparse.Namespace, checkpoints: dict[str, Path]) -> list[GridCell]:
    """The cells asked for that there are.

    Raises:
        UserError: an unknown method or task, or nothing left.
    """
    from tespec.comparison.cells import GridCell
    from tespec.core.config import names
    from tespec.core.registry import METHODS, register_methods
    from tespec.pretraining.method import find_method

    register_methods()
    known = names("tasks")
    for task in options.tasks or ():
        if task not in known:
            raise UserError(f"--tasks {task}", "no such task", f"choose from {', '.join(known)}")
    methods = {name: find_method(name) for name in options.methods or sorted(METHODS.module_dict)}
    able = {
        name: method
        for name, method in methods.items()
        if method.recipe is not None or method.pretraining_data == "-" or name in checkpoints
    }
    for name in set(methods) - set(able) if options.methods else ():
        raise UserError(f"--methods {name}", "has no weights to start from", f"give --checkpoints {name}=FILE")
    cells = [
        GridCell(name, task, arch, seed)
        for name, method in able.items()
        for task in options.tasks or known
        for arch in options.arch or method.architectures
        if arch in method.architectures
        for seed in options.seeds
    ]
    if not cells:
        raise UserError("the grid", "is empty: no method has this architecture", "ask for others")
    return cells


def pretrainings(cells: list[GridCell], checkpoints: dict[str, Path]) -> list[GridCell]:
    """Pre-trainings that cells start from, each once."""
    return sorted({before(cell) for cell in cells if is_pretrained(cell.method, checkpoints)})


def before(cell: GridCell) -> GridCell:
    """The pre-training that a cell starts from."""
    return replace(cell, task="", arch="")


def is_pretrained(method: str, checkpoints: dict[str, Path]) -> bool:
    """Whether the weights of a method are made here."""
    from tespec.pretraining.method import find_method

    return find_method(method).recipe is not None and method not in checkpoints


def data_of(task: str, options: argparse.Namespace) -> Data:
    """The data of a task."""
    from tespec.runs.data import find_data

    given = options.data / task if options.data and (options.data / task).is_dir() else None
    return find_data(task, given)


def dataset_of(method: str, options: argparse.Namespace) -> str:
    """What a method is pre-trained on here."""
    from tespec.core.config import pretraining_settings
    from tespec.pretraining.method import find_method

    kind = find_method(method)
    assert kind.recipe is not None
    return pretraining_settings(kind.recipe, options.profile or "paper", (), kind.network).dataset
