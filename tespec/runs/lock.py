"""The lock of a run: one process computes it, and another one that wants it waits."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tespec.core.distributed import broadcast, is_first
from tespec.core.progress import say

SECONDS_BETWEEN_TRIES = 0.5  # after the first one a holder had time to write who it is
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system, some NFS for one


@contextmanager
def locked(runs: Path, run: str) -> Iterator[str]:
    """Hold the lock of a run in the folder of runs, after waiting for its holder; yields who that was, "" for nobody.

    Of several processes of a run the first one takes the lock. While it waits, it tells the others so every now and
    then: no exchange of theirs lasts so long that it could run into its time limit.
    """
    lock, holder = _lock(runs, run), ""
    while not broadcast(is_first() and _taken(lock)):
        time.sleep(SECONDS_BETWEEN_TRIES)
        if is_first() and not holder:
            holder = Path(lock.lock_file).read_text(encoding="utf-8").strip() or "another process"
            say(f"{run}: waiting for {holder}, which is computing it")
    try:
        yield broadcast(holder)
    finally:
        lock.release()


@contextmanager
def locked_if_free(runs: Path, run: str) -> Iterator[bool]:
    """Hold the lock of a run unless another process does; yields whether it is held. Nobody waits."""
    lock = _lock(runs, run)
    free = _taken(lock)
    try:
        yield free
    finally:
        if free:
            lock.release()


def _lock(runs: Path, run: str) -> FileLock:
    path = runs.absolute() / ".locks" / run
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, is_singleton=True)  # one process may take it several times


def _taken(lock: FileLock) -> bool:
    path = Path(lock.lock_file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        say(f"{path.parent}: this file system has no locks; start each run only once at a time")
        return True
    path.write_text(f"process {os.getpid()} on {os.uname().nodename}", encoding="utf-8")
    return True
