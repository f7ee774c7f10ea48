"""The kinds of task, one module each."""

from __future__ import annotations

from pathlib import Path

from tespec.discovery import find_registered, import_modules
from tespec.registry import TASKS
from tespec.settings import Finetuning
from tespec.training.task import Task


def build_task(settings: Finetuning, root: Path) -> Task:
    """The task that the settings name, on the data in `root`.

    Raises:
        UserError: the data cannot be read.
    """
    for package in ("tespec.training.tasks", "tespec.datasets"):
        import_modules(package)
    task: Task = find_registered(TASKS, settings.kind, "kind")(settings, root)
    return task
