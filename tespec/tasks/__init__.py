"""Downstream tasks, one module per kind."""

from pathlib import Path
from typing import Any

from tespec.core.settings import Finetuning
from tespec.datasets.base import TEST
from tespec.registry import TASKS, find_registered, import_modules
from tespec.tasks.base import Task


def import_tasks() -> None:
    """Register the kinds of task that ship with the harness, and with them its data sets."""
    import_modules("tespec.tasks")


def build_task(settings: Finetuning, root: Path, split: str = TEST, seed: int = 0) -> Task:
    """Build the task named by the settings.

    Args:
        settings: fine-tuning settings.
        root: folder of the data.
        split: scored split, "test" or "val".
        seed: of the run.
    """
    return find_task(settings)(settings, root, split, seed)


def find_task(settings: Finetuning) -> Any:
    """Find the class of the task named by the settings."""
    import_tasks()
    return find_registered(TASKS, settings.kind, "kind")
