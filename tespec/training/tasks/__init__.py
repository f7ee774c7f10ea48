"""The kinds of task, one module each."""

from __future__ import annotations

from pathlib import Path

from tespec.discovery import find_registered, import_modules
from tespec.registry import TASKS
from tespec.settings import Finetuning
from tespec.training.task import Task


def import_tasks() -> None:
    """Register the kinds of task and the datasets that come with the harness."""
    for package in ("tespec.training.tasks", "tespec.datasets"):
        import_modules(package)


def build_task(settings: Finetuning, root: Path) -> Task:
    """The task that the settings name, on the data in `root`.

    Raises:
        UserError: the data cannot be read.
    """
    import_tasks()
    task: Task = find_registered(TASKS, settings.kind, "kind")(settings, root)
    return task
