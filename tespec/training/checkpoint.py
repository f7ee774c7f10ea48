"""Checkpoints of a run: written atomically, verified by checksums, read without running code."""

import io
import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tespec.core.errors import UserError
from tespec.core.files import atomic_write

KEEP = 2


def save_checkpoint(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write the checkpoint of a step; delete all but this one and the one before it.

    If writing fails, older checkpoints stay.

    Args:
        folder: folder of the run.
        step: number of optimizer steps done.
        content: tensors, numbers, strings, and dicts, lists and tuples of them.

    Returns:
        Path of the file, `step-000000100.pt` after 100 steps.
    """
    path = folder / f"step-{step:09d}.pt"
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    latest = [other for other in checkpoints(folder) if other <= path][-KEEP:]
    for other in set(checkpoints(folder)) - set(latest):
        other.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint, or None, and the names of newer damaged ones."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        if path.is_file() and _is_intact(path):
            return path, damaged
        damaged.append(path.name)
    return None, damaged


def _is_intact(path: Path) -> bool:
    # A damaged archive can raise any exception.
    with suppress(Exception), zipfile.ZipFile(path) as archive:
        if archive.testzip() is None:
            # An intact archive with other objects: `read_checkpoint` refuses it.
            with suppress(pickle.UnpicklingError):
                # Fails if the archive's directory is damaged where `testzip` does not look.
                torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            return True
    return False


def read_checkpoint(path: Path, run: str) -> dict[str, Any]:
    """Read a checkpoint onto the CPU.

    Args:
        path: file written by `save_checkpoint`.
        run: name of the run that the checkpoint must belong to.

    Raises:
        UserError: the file is not a checkpoint, or belongs to another run.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        owner = content["run"]
    except Exception as error:
        raise UserError(path, "is not a training checkpoint", "remove it") from error
    if owner != run:
        raise UserError(path, "belongs to a run with different settings", "remove it")
    return dict(content)


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints and unfinished files of a run."""
    for path in checkpoints(folder):
        path.unlink()
    remove_unfinished(folder)


def remove_unfinished(folder: Path) -> None:
    """Remove hidden files that a killed process left unfinished; requires the run's lock."""
    for path in folder.glob(".*"):
        path.unlink(missing_ok=True)
