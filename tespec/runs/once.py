"""A run is computed once: a finished one is read, one that is under way is waited for."""

from __future__ import annotations
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from tespec.core.errors import UserError
from tespec.core.distributed import first_says, is_first
from tespec.core.progress import say
from collections.abc import Callable
from dataclasses import replace
from tespec.comparison.records import Record, by_other_code, code_of, find_record
from tespec.core.distributed import first_says, is_first, wait
from tespec.training.checkpoint import is_cleared
from tespec.runs.setup import Setup, finish, unfinished_by_other_code
from tespec.training.status import DONE, read_status

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
        if first_says(file is not None):
            break
        time.sleep(SECONDS_BETWEEN_TRIES)
        if is_first() and not holder:
            holder = path.read_text(encoding="utf-8").strip() or "another process"
            say(f"{run} is being made by {holder}: waiting for it")
    with _holding(path, file):
        yield first_says(holder)


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


def once(
    setup: Setup, run: str, steps: int, make: Callable[[Setup], Record], damage: Callable[[Record], str] = lambda _: ""
) -> Record:
    """The record of a run: the complete one, read without a lock, or a new one by the process that gets the run's lock.

    Where another process makes it, this one waits, and takes the result; where that process ends without one, this one
    goes on from its newest checkpoint. With `setup.overwrite`, what was made while this one waited is new enough.

    Args:
        setup: where and how.
        run: name of the run.
        steps: of its training.
        make: computes and writes the record; called with the lock held, and with `resume` set where it has to go on.
        damage: what is wrong with the files that a record names, "" for nothing.
    """
    before = first_says(_complete(setup, run, damage))
    if before is not None and not setup.overwrite:
        return _taken_once(setup, run, before, steps)
    with locked(setup.runs, run) as holder:
        found = first_says(_complete(setup, run, damage))
        if found is not None and (not setup.overwrite or found != before):
            return _taken_once(setup, run, found, steps)
        if holder:
            say(f"{run}: {holder} ended without a result; this process goes on with it")
            setup = replace(setup, resume=True)
        if is_first() and not setup.overwrite:
            _say_why(setup, run, damage)
        record = make(setup)
        wait()
        return record


def _complete(setup: Setup, run: str, damage: Callable[[Record], str]) -> Record | None:
    """The record of a run, or the newest one by code that the user accepts; whose files are whole."""
    if not is_first():
        return None
    found = [] if setup.overwrite else _by_other_code(setup, run, accepted=True)
    own = find_record(setup.results / "runs", run)
    return next((each for each in [own, *reversed(found)] if each is not None and not damage(each)), None)


def _by_other_code(setup: Setup, run: str, *, accepted: bool) -> list[Record]:
    every = by_other_code(setup.results / "runs", run)
    return [each for each in every if (code_of(each) in setup.accept_code) == accepted]


def _say_why(setup: Setup, run: str, damage: Callable[[Record], str]) -> None:
    """Say what there is of a run that is computed all the same."""
    folder = setup.results / "runs"
    own = find_record(folder, run)
    for each in [*([own] if own else []), *_by_other_code(setup, run, accepted=True)]:
        say(f"{each['name']}: {damage(each)}, computed again")
    if own:
        return
    others = _by_other_code(setup, run, accepted=False)
    if others:
        other, code = others[-1], code_of(others[-1])
        revision = other["environment"].get("revision", "")[:12] or "unknown"
        say(
            f"{run}: there is a complete result of the same run by other code ({code}, revision {revision}, "
            f"{folder / other['name']}.json), so it is computed again; --accept-code {code} takes it"
        )
    for unfinished in unfinished_by_other_code(setup.runs, run):
        code = unfinished.name.rpartition("-")[2]
        if code not in setup.accept_code:
            say(
                f"{run}: there is an unfinished run of the same by other code ({code}, {unfinished}), so it is begun "
                f"anew; --resume --accept-code {code} goes on with that"
            )


def _taken_once(setup: Setup, run: str, record: Record, steps: int) -> Record:
    if record["name"] != run:
        say(f"{run}: the result of other code ({code_of(record)}) is taken, as --accept-code says")
    leave(setup, record["name"], steps)
    return record


def leave(setup: Setup, run: str, steps: int) -> None:
    """Say that a run is complete, and remove what a kill may have left of it, unless another process works on it."""
    say(f"{run} is complete already (--overwrite computes it again)")
    folder = setup.runs / run
    if not is_first() or not folder.is_dir():
        return
    if read_status(folder).get("state") == DONE and is_cleared(folder):
        return
    with locked_if_free(setup.runs, run) as free:
        if free:
            finish(setup, run, steps)
