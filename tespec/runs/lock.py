"""The lock of a run: one process computes it, and whoever wants it as well waits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tespec.core.distributed import broadcast, is_first
from tespec.core.errors import UserError
from tespec.core.files import take_lock
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
        lock = _taken(path) if is_first() else None
        if broadcast(lock is not None):
            break
        time.sleep(SECONDS_BETWEEN_TRIES)
        if is_first() and not holder:
            holder = path.read_text(encoding="utf-8").strip() or "another process"
            say(f"{run} is being made by {holder}: waiting for it")
    with _holding(path, lock):
        yield broadcast(holder)


@contextmanager
def locked_if_free(runs: Path, run: str) -> Iterator[bool]:
    """Hold the lock of a run where no other process does; yields whether that is so. Nobody waits."""
    path = _path(runs, run)
    if path in _held:
        yield True
        return
    lock = _taken(path)
    with _holding(path, lock):
        yield lock is not None


def _path(runs: Path, run: str) -> Path:
    return (runs / FOLDER / run).absolute()


def _taken(path: Path) -> int | None:
    """Descriptor of a lock that is this process's now, and says so; None where another one holds it."""
    lock = take_lock(path, wait=False)
    if lock is not None:
        os.truncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {os.uname().nodename}".encode())
    return lock


@contextmanager
def _holding(path: Path, lock: int | None) -> Iterator[None]:
    """Until the end, a lock taken by `_taken`, if it was."""
    if lock is None:
        yield
        return
    _held.add(path)
    try:
        yield
    finally:
        _held.discard(path)
        os.truncate(lock, 0)
        os.close(lock)
