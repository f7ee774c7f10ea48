"""The ways to pre-train, one module each."""

from __future__ import annotations

from pathlib import Path

from tespec.discovery import find_registered, import_modules
from tespec.registry import OBJECTIVES
from tespec.settings import Pretraining
from tespec.training.objectives.base import PretrainingTask


def build_objective(settings: Pretraining, root: Path) -> PretrainingTask:
    """The objective that the settings name, on the data in `root`.

    Raises:
        UserError: there is no such objective, or the data cannot be read.
    """
    import_modules("tespec.training.objectives")
    name = str(settings.objective.get("type", ""))
    task: PretrainingTask = find_registered(OBJECTIVES, name, "objective.type")(settings, root)
    return task
