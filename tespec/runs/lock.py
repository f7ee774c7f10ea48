"""The lock of a run: one process computes it, and whoever wants it as well waits."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tespec.core.distributed import broadcast, is_first
from tespec.core.errors import UserError
from tespec.core.progress import say

FOLDER = ".locks"
SECONDS_BETWEEN_TRIES = 0.5  # after the first one a holder had time to write who it is
# Locks of POSIX do not keep apart what one process does twice.
_held: set[Path] = set()


@contextmanager
def locked(runs: Path, run: str) -> Iterator[str]:
    """Hold the lock of a run in the folder of runs, after waiting for who holds it; yields who that was, "" for nobody.

    Of several processes of a run the first one takes the lock. While it waits, it tells the others so every now and
    then: no exchange of theirs lasts so long that it could run into its time limit.

    On file systems without locks between machines (some NFS) it only keeps apart processes of one machine.

    Raises:
        UserError: this process holds it already.
    """
    path, holder = _path(runs, run), ""
    if path in _held:
        raise UserError(runs / run, "is being made by this process", "wait for it")
    while True:
        file = _taken(path) if is_first() else None
        if broadcast(file is not None):
            break
        time.sleep(SECONDS_BETWEEN_TRIES)
        if is_first() and not holder:
            holder = path.read_text(encoding="utf-8").strip() or "another process"
            say(f"{run} is being made by {holder}: waiting for it")
    with _holding(path, file):
        yield broadcast(holder)


@contextmanager
def locked_if_free(runs: Path, run: str) -> Iterator[bool]:
    """Hold the lock of a run where no other process does; yields whether that is so. Nobody waits."""
    path = _path(runs, run)
    if path in _held:
        yield True
        return
    file = _taken(path)
    with _holding(path, file):
        yield file is not None


def _path(runs: Path, run: str) -> Path:
    return (runs / FOLDER / run).absolute()


def _taken(path: Path) -> IO[str] | None:
    """The open file of a lock that is this process's now; None where another one holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        # Not flock: worker processes would inherit it, and outlive a killed run by some seconds.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {os.uname().nodename}")
    file.flush()
    return file


@contextmanager
def _holding(path: Path, file: IO[str] | None) -> Iterator[None]:
    """Until the end, a lock taken by `_taken`, if it was; closing its file frees it."""
    if file is None:
        yield
        return
    _held.add(path)
    try:
        yield
    finally:
        _held.discard(path)
        file.truncate(0)
        file.close()
