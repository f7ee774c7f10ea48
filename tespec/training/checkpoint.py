"""Checkpoints of a running training: written to a temporary file, flushed, renamed; the newest whole one is read."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

from tespec.errors import UserError

KEEP = 2


def save_checkpoint(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write `content` (tensors, numbers, strings, and dicts, lists and tuples of them) as the checkpoint of `step`.

    Older checkpoints are removed only afterwards; the newest two stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".checkpoint.")
    path = folder / f"step-{step:09d}.pt"
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint files of a run, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def latest_checkpoint(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Content of the newest readable checkpoint (None if there is none) and the names of torn ones passed over."""
    torn = []
    for path in reversed(checkpoints(folder)):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError, KeyError):
            torn.append(path.name)
            continue
        return content, torn
    return None, torn


def require_same_run(content: dict[str, Any], run: str, folder: Path) -> None:
    """Refuse to resume a run from another run's checkpoint.

    Raises:
        UserError: the checkpoint was written by a run with other settings.
    """
    if content.get("run") != run:
        raise UserError(folder, "its checkpoint belongs to a run with other settings", "remove the folder")
