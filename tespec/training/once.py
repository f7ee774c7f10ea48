"""A run is computed once: a finished one is read, one that is under way is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tespec.comparison.records import Record, by_other_code, code_of, find_record
from tespec.processes import first_says, is_first, wait
from tespec.training.checkpoint import is_cleared
from tespec.training.lock import locked, locked_if_free
from tespec.training.progress import say
from tespec.training.runs import Setup, finish, unfinished_by_other_code
from tespec.training.status import DONE, read_status


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
        return _taken(setup, run, before, steps)
    with locked(setup.runs, run) as holder:
        found = first_says(_complete(setup, run, damage))
        if found is not None and (not setup.overwrite or found != before):
            return _taken(setup, run, found, steps)
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


def _taken(setup: Setup, run: str, record: Record, steps: int) -> Record:
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
