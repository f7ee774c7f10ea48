"""Checkpoints of a run: written atomically, verified by checksums, read without running code."""

import fnmatch
import io
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tespec.core.errors import UserError, require
from tespec.core.files import atomic_write, existing_parent, regular_file, sha256_of
from tespec.weights.files import serialised

KEEP = 2
CHECKPOINT = "step-{:09d}.pt"
# File in a run's folder while `--overwrite` computes it again: hash of the record that it replaces,
# "" for none.
OVERWRITTEN = "overwritten-record.sha256"


def save_checkpoint(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write the checkpoint of a step; of the earlier ones, delete all but the one before it.

    Checkpoints of later steps stay: the run was resumed before them because they were damaged, and
    overwrites them when it reaches their steps. If writing fails, all others stay.

    Args:
        folder: folder of the run.
        step: number of optimizer steps done.
        content: tensors, numbers, strings, and dicts, lists and tuples of them.

    Returns:
        Path of the file, `step-000000100.pt` after 100 steps.
    """
    path = folder / CHECKPOINT.format(step)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(buffer.getbuffer())
    until_now = [other for other in checkpoints(folder) if other <= path]
    for other in until_now[:-KEEP]:
        other.unlink()
    return path


def require_space(folder: Path, model: nn.Module) -> None:
    """Refuse a model whose weights or checkpoints could not be saved.

    Args:
        folder: of the run, which need not exist.
        model: on any device.

    Raises:
        UserError: weights are of a type that files do not have, or the disk is too full.
    """
    try:
        weights = len(serialised(model.state_dict(), {}))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        what = f"its state dict cannot be saved as safetensors ({error})"
        raise UserError(type(model).__name__, what, "use plain dense tensors") from error
    moments = sum(2 * weight.nbytes for weight in model.parameters() if weight.requires_grad)
    # An old checkpoint is removed when the new one is complete.
    needed = (1 + KEEP) * (weights + moments)
    available = shutil.disk_usage(existing_parent(folder)).free
    available += sum(path.stat().st_size for path in checkpoints(folder))
    if needed > available:
        what = f"needs {needed / 1e9:.2f} GB for checkpoints, and {available / 1e9:.2f} GB are free"
        raise UserError(folder, what, "free disk space, or choose another --runs")


def checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first; raise an `OSError` if they cannot be listed."""
    try:
        names = os.listdir(folder)  # `Path.glob` lists nothing in a folder that it cannot read
    except FileNotFoundError:
        return []
    return sorted(folder / name for name in fnmatch.filter(names, "step-*.pt"))


def newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """Find the newest intact checkpoint.

    Returns:
        Its path, None without one, and the names of newer ones, which are damaged.

    Raises:
        UserError: a checkpoint cannot be read, so nothing is known about it.
    """
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        if _load(path) is not None:
            return path, damaged
        damaged.append(path.name)
    return None, damaged


def read_checkpoint(path: Path, run: str) -> dict[str, Any]:
    """Read a checkpoint onto the CPU.

    Args:
        path: file written by `save_checkpoint`.
        run: name of the run that the checkpoint must belong to.

    Raises:
        UserError: the file cannot be read, is not a checkpoint, or belongs to another run.
    """
    content = _load(path)
    require(content and "run" in content, path, "is not a training checkpoint", "remove it")
    require(content["run"] == run, path, "belongs to a run with different settings", "remove it")
    return dict(content)


def _load(path: Path) -> Any:
    """Load a file onto the CPU: None if it is damaged, {} if it holds other objects."""
    try:
        data = regular_file(path).read_bytes()
    except (OSError, MemoryError) as error:
        raise _unreadable(path, getattr(error, "strerror", "out of memory")) from error
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if archive.testzip() is not None:
                return None
        # Also fails if the archive's directory is damaged where `testzip` does not look.
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return {}
    except Exception as error:  # a damaged file can raise any
        if "allocate memory" in str(error):
            raise _unreadable(path, "out of memory") from error
        return None
    return content if isinstance(content, dict) else {}


def _unreadable(path: Path, reason: str) -> UserError:
    return UserError(path, f"cannot be read ({reason})", "try again; nothing was deleted")


def start_again(folder: Path, record: Path) -> None:
    """Remove a run's checkpoints, except those of an earlier start that was to replace `record`.

    So a stopped run with `--overwrite` resumes if the same command is given again, until it has
    replaced the record. Requires the run's lock.

    Args:
        folder: folder of the run.
        record: file of the run's record, which need not exist.
    """
    if _replaces(folder, record):
        return
    remove_checkpoints(folder)
    with atomic_write(folder / OVERWRITTEN) as unfinished:
        unfinished.write_text(_sha256_of(record))


def remove_leftovers(folder: Path, record: Path, steps: int) -> None:
    """Remove the checkpoints of a run that was killed after it had written its record.

    Args:
        folder: folder of the run.
        record: file of the run's record.
        steps: number of steps of the run; without a checkpoint of the last one, nothing is removed.
    """
    is_trained = (folder / CHECKPOINT.format(steps)).exists()
    if is_trained and not _replaces(folder, record):
        remove_checkpoints(folder)


def _replaces(folder: Path, record: Path) -> bool:
    """Whether an earlier start of a run with `--overwrite` is to replace this record."""
    try:
        return (folder / OVERWRITTEN).read_text() == _sha256_of(record)
    except FileNotFoundError:
        return False


def _sha256_of(record: Path) -> str:
    return sha256_of(record) if record.exists() else ""


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints and unfinished files of a run."""
    (folder / OVERWRITTEN).unlink(missing_ok=True)
    for path in checkpoints(folder):
        path.unlink(missing_ok=True)  # another process may remove it, too
    remove_unfinished(folder)


def remove_unfinished(folder: Path) -> None:
    """Remove hidden files that a killed process left unfinished; requires the run's lock.

    Of hidden folders only those of predictions: others belong to other programs.
    """
    for path in folder.glob(".*"):
        if not path.is_dir():
            path.unlink(missing_ok=True)
        elif path.suffix == ".part":
            shutil.rmtree(path, ignore_errors=True)
