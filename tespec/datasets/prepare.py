"""Packs recordings, so that training reads memory-mapped events instead of decoding files.

A recording that cannot be read, and a folder without room or permission for all of them, are a `UserError`.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from tespec.core.errors import UserError
from tespec.core.progress import Advance, progress, say
from tespec.datasets.sources import EventSource, Source
from tespec.events.opening import cache_path, require_same
from tespec.events.packing import disk_needed, is_of, is_recorded, pack
from tespec.events.store import header_of, is_complete, store_of


class Packing(NamedTuple):
    """A recording to pack, where its store goes, and its number of events."""

    source: EventSource
    store: Path
    events: int


def pack_missing(
    sources: Iterable[Source], *, beside: bool = False, processes: int = 1, skip_damaged: bool | None = None
) -> list[UserError]:
    """Pack what has no packed store, with one bar; nothing is written where the disk has too little for all of it.

    Killed at any point, it goes on with the first recording that is not whole when it is called again.

    Args:
        sources: of recordings that are about to be read many times.
        beside: whether stores go beside their recordings, where those of older versions are replaced, and not into the
            cache.
        processes: recordings packed at once.
        skip_damaged: whether recordings that cannot be read are left out; None: that cannot be asked for.

    Returns:
        What is wrong with those left out.
    """
    wanted = [source for source in sources if isinstance(source, EventSource)]
    missing: list[Packing] = []
    left_out: list[UserError] = []
    for source in wanted:
        try:
            missing += _missing(source, beside)
        except UserError as error:
            left_out.append(raise_or_leave_out(error, skip_damaged, len(wanted)))
    if not missing:
        return left_out
    folder, needed = missing[0].store.parent, sum(disk_needed(packing.events) for packing in missing)
    free = shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists())).free
    if needed > free:
        recordings = f"{len(missing)} recording{'s' * (len(missing) > 1)}"
        what = f"has {free:,} bytes free, the packed events of {recordings} need about {needed:,}"
        raise UserError(folder, what, "make room, or let TESPEC_CACHE name a folder on another disk")
    with progress("packing" if beside else f"packing into {folder}", "events") as advance:
        for store, failure in _pack_all(missing, processes, advance):
            if failure.where == str(store.parent) or failure.where.startswith(str(store)):
                # No recording is damaged.
                remedy = failure.remedy if beside else "make room, or let TESPEC_CACHE name another folder"
                raise UserError(failure.where, failure.what, remedy)
            left_out.append(raise_or_leave_out(failure, skip_damaged, len(wanted)))
    return left_out


def raise_or_leave_out(error: UserError, skip_damaged: bool | None, recordings: int) -> UserError:
    """What is wrong with one of several recordings: returned where it is to be left out, else raised."""
    if skip_damaged:
        return error
    offered = ", or leave it out with --skip-damaged" * (skip_damaged is not None and recordings > 1)
    raise UserError(error.where, error.what, error.remedy + offered) from error


def _missing(source: EventSource, beside: bool) -> list[Packing]:
    """What is to be done about a recording: nothing where it has a store."""
    path, store = source.path, store_of(source.path)
    if not is_recorded(path) and is_complete(store):
        return []
    reader = source.reader()
    if is_complete(store):
        same = is_of(header_of(store)["source"], path)
        if same or not beside:
            require_same(store, path, same)
            return []
    target = store if beside else cache_path(reader)
    return [] if target != store and is_complete(target) else [Packing(source, target, reader.events)]


def _pack_all(missing: list[Packing], processes: int, advance: Advance) -> Iterator[tuple[Path, UserError]]:
    """Pack recordings; gives the store of each that cannot be packed, and what is wrong with it."""
    done, total = 0, sum(packing.events for packing in missing)
    if processes == 1:
        for packing in missing:
            if failure := _pack_one(packing, advance, done, total):
                yield packing.store, failure
            done += packing.events
        return
    with ProcessPoolExecutor(min(processes, len(missing)), multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(_pack_one, packing): packing for packing in missing}
        for future in as_completed(pending):
            packing = pending[future]
            done += packing.events
            advance(done, total, packing.source.path.name)
            if failure := future.result():
                yield packing.store, failure


def _pack_one(packing: Packing, advance: Advance | None = None, before: int = 0, total: int = 0) -> UserError | None:
    """Pack one recording in this process; returns what is wrong with it, if anything is."""
    path = packing.source.path

    def packed(done: int, _: int) -> None:
        if advance is not None:
            advance(before + done, max(total, before + done), path.name)

    try:
        reader = packing.source.reader()
        waiting = f"{path}: another process packs it; waiting for it"
        pack(reader, packing.store, packed, lambda: say(waiting))
        if (cached := cache_path(reader)) != packing.store:
            shutil.rmtree(cached, ignore_errors=True)  # of a training, which is needed no more
    except UserError as error:
        return error
    return None
