"""One process for each run: a lock that the system frees when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tespec.errors import UserError
from tespec.processes import is_first, wait

FOLDER = ".locks"
# Locks of POSIX do not keep apart what one process does twice.
_held: set[Path] = set()


@contextmanager
def locked(runs: Path, run: str) -> Iterator[None]:
    """Hold the lock of a run in the folder of runs; of several processes of a run the first one holds it.

    On file systems without locks between machines (some NFS) it only keeps apart processes of one machine.

    Raises:
        UserError: another process holds it.
    """
    if not is_first():
        wait()
        yield
        return
    path = (runs / FOLDER / run).absolute()
    if path in _held:
        raise UserError(runs / run, "is being computed by this process", "wait for it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            # Not flock: worker processes would inherit it, and outlive a killed run by some seconds.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(runs / run, f"is being computed by {holder}", "wait for it, or stop it") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        _held.add(path)
        wait()
        try:
            yield
        finally:
            _held.discard(path)
