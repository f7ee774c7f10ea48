"""Checkpoints of a running training: whole or not there, and known to be whole before they are used.

A checkpoint is a folder: weights in safetensors, the rest as plain tensors and values, and a manifest with the size and
the SHA-256 of each file. It is written under a temporary name in the run's own folder, flushed and read back; the
manifest comes last, then the name. An older one goes only after that.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_json
from tespec.weights.files import read_torch, sha256_of

KEEP = 2
FORMAT = 1
MANIFEST, WEIGHTS, REST = "manifest.json", "model.safetensors", "rest.pt"
UNFINISHED, REPLACED = ".checkpoint.", ".replaced."


def save_checkpoint(folder: Path, step: int, weights: dict[str, Tensor], rest: dict[str, Any]) -> Path:
    """Write the checkpoint of `step`; it and the one before it stay, and none of a later step.

    Args:
        folder: of the run.
        step: steps done.
        weights: tensors of the model by name.
        rest: tensors, numbers, strings, and dicts, lists and tuples of them.

    Raises:
        UserError: what was read back is not what was written.
        OSError: the disk is full, or the folder cannot be written to; older checkpoints stay as they were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09d}"
    with _unfinished(folder) as temporary:
        # Copies: safetensors takes no tensors that share memory.
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
        files = {WEIGHTS: to_safetensors(plain), REST: _serialised(rest)}
        listed = {}
        for name, content in files.items():
            _write(temporary / name, content)
            listed[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if not _fits(temporary, listed):
            raise UserError(folder, "does not hold what was written to it", "check the disk, then start the run again")
        manifest = {"format": FORMAT, "step": step, "files": listed}
        _write(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
        _flush(temporary)
        if path.exists():
            os.rename(path, folder / f"{REPLACED}{temporary.name.removeprefix(UNFINISHED)}")
        os.rename(temporary, path)
    _flush(folder)
    before = [each for each in checkpoints(folder) if each.name <= path.name]
    for other in checkpoints(folder):
        if other not in before[-KEEP:]:
            _remove(other)
    tidy(folder)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def latest_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Weights and the rest of the newest whole checkpoint, and the names of torn ones passed over.

    Both are empty where there is no whole one. Nothing that is read can run code.
    """
    torn: list[str] = []
    for path in reversed(checkpoints(folder)):
        found = _read(path)
        if found is not None:
            return *found, torn
        torn.append(path.name)
    return {}, {}, torn


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint whose files are those of its manifest, None where there is none."""
    return next((path for path in reversed(checkpoints(folder)) if _manifest(path) is not None), None)


def clear(folder: Path) -> None:
    """Remove all checkpoints of a run."""
    for path in checkpoints(folder):
        _remove(path)
    tidy(folder)


def is_cleared(folder: Path) -> bool:
    """Whether `clear` has nothing to remove; a kill in the middle of it leaves checkpoints, or hidden parts of them."""
    return not checkpoints(folder) and not any(folder.glob(".*"))


def tidy(folder: Path) -> None:
    """Remove what a killed process left half-written or half-removed; only while holding the run's lock.

    All of that is hidden, and nothing else in the folder of a run is.
    """
    for path in folder.glob(".*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def require_same_run(rest: dict[str, Any], run: str, folder: Path) -> None:
    """Refuse to resume a run from another run's checkpoint.

    Raises:
        UserError: the checkpoint was written by a run with other settings.
    """
    if rest.get("run") != run:
        raise UserError(folder, "its checkpoint belongs to a run with other settings", "remove the folder")


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """A new folder under a temporary name that is gone afterwards, unless it was renamed."""
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=UNFINISHED))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _serialised(rest: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    torch.save(rest, content)
    return content.getvalue()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Make the names in a folder lasting."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Take a checkpoint away: its name first, so that a kill leaves no half one under it."""
    gone = path.with_name(f"{REPLACED}{path.name}.{os.getpid()}")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Content of a checkpoint, None of a torn one."""
    if _manifest(path) is None:
        return None
    try:
        weights = load_safetensors((path / WEIGHTS).read_bytes())
        rest = read_torch(path / REST)
    except (SafetensorError, UserError, RuntimeError, ValueError, LookupError, OSError, AttributeError, MemoryError):
        return None
    return (weights, rest) if isinstance(rest, dict) else None


def _manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a whole checkpoint, None of a torn one."""
    try:
        manifest = read_json(path / MANIFEST)
        listed = manifest["files"]
        whole = manifest["format"] == FORMAT and set(listed) == {WEIGHTS, REST} and _fits(path, listed)
    except (*UNREADABLE, TypeError, KeyError, AttributeError):
        return None
    return manifest if whole else None


def _fits(folder: Path, listed: dict[str, dict[str, Any]]) -> bool:
    """Whether the files of a folder are its own, and have the listed sizes and hashes."""
    for name, facts in listed.items():
        path = folder / name
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_size != facts["bytes"]:
            return False
        if sha256_of(path) != facts["sha256"]:
            return False
    return True
