"""Pack a recording, of any format, into memory or a store in one pass."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time
from tespec.core.progress import say
from tespec.events import store
from tespec.events.files import SourceHash, is_of
from tespec.events.readers import Events, Reader
from tespec.events.store import HEADER, MILLISECOND, Facts, PackedEvents, open_store

LATEST = 10**17  # us since 1970: the year 5138; today's time in nanoseconds is a larger number
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class NotWritable(UserError):
    """Raised if a packed store cannot be written at its place."""


def load(reader: Reader) -> PackedEvents:
    """Load all events of a recording into memory."""
    words, index, (first_ms, *_), raised = zip(*_packed(reader), strict=True)
    arrays = np.concatenate(words), np.concatenate(index)
    return PackedEvents(reader.path, (reader.height, reader.width), first_ms, sum(raised), lambda: arrays)


def pack(reader: Reader, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Write a recording as a packed store; its folder appears only when it is complete, and is returned.

    A complete store of the same recording is kept, any other store is replaced. If multiple processes pack into the
    same folder, one does the work and the others wait, with a message. `progress` is called with the number of events
    packed so far and the total.
    """
    unfinished, replaced = (folder.with_name(f".{folder.name}.{name}") for name in ("unfinished", "replaced"))
    try:
        with one_at_a_time(folder, lambda holder: say(f"{reader.path}: waiting for {holder}, which is packing it")):
            if folder.exists() and not (folder / HEADER).is_file():
                raise NotWritable(folder, "exists but is not a packed store", "remove it, or choose another place")
            with suppress(UserError):  # of an incomplete store
                open_store(folder)
                if is_of(folder, reader):
                    return folder
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
            try:
                unfinished.mkdir()
                _write(reader, unfinished, progress)
                shutil.rmtree(replaced, ignore_errors=True)  # left by a killed process
                if folder.exists():
                    folder.rename(replaced)  # deleting it in place, if killed, would leave a folder without a header
                unfinished.rename(folder)
            finally:
                for left in (unfinished, replaced):
                    shutil.rmtree(left, ignore_errors=True)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        what = f"cannot be written to ({error.strerror}); the events need about {4 * reader.events:,} bytes"
        raise NotWritable(folder.parent, what, "free disk space, or choose a writable folder") from error
    return folder


def _write(reader: Reader, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write packed events, index and header."""
    source = SourceHash(reader.path)
    digests = {store.WORDS: hashlib.sha256(), store.INDEX: hashlib.sha256()}
    header: dict[str, Any] = {"format": store.FORMAT, "version": store.VERSION}
    header |= {"height": reader.height, "width": reader.width, "count": 0, "clamped": 0}
    with (
        (folder / store.WORDS).open("wb") as words,
        (folder / store.INDEX).open("wb") as index,
        ThreadPoolExecutor(1) as thread,
    ):

        def take_hashes(parts: tuple[NDArray[Any], ...], share: float) -> None:
            for digest, part in zip(digests.values(), parts, strict=True):
                digest.update(part.data)
            source.advance(share)

        hashing: Future[Any] = thread.submit(int)
        for chunk, starts, header["first_ms"], raised in _packed(reader):
            header["count"] += len(chunk)
            header["clamped"] += raised
            total = max(header["count"], reader.events)
            words.write(chunk.data)
            index.write(starts.data)
            hashing.result()  # wait for the previous part, to hold few in memory
            hashing = thread.submit(take_hashes, (chunk, starts), header["count"] / total)
            progress(header["count"], total)
        hashing.result()
        for file in (words, index):
            file.flush()
            os.fsync(file.fileno())
    header["source"] = source.describe()
    header["sha256"] = {name: digest.hexdigest() for name, digest in digests.items()}
    (folder / HEADER).write_text(json.dumps(header, indent=1) + "\n")


def _packed(reader: Reader) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64], int, int]]:
    """Yield parts of packed events and index, the recording's first millisecond, and the number of raised times."""
    if reader.width > store.MAX_WIDTH or reader.height > store.MAX_HEIGHT:
        what = f"its sensor of {reader.width}x{reader.height} px is too large for a packed store"
        raise UserError(reader.path, what, f"use at most {store.MAX_WIDTH}x{store.MAX_HEIGHT} px")
    first_ms, next_ms, written = 0, 0, 0
    for events, raised in in_order(reader):
        last_ms = int(events.t[-1]) // MILLISECOND
        if not written:
            first_ms = next_ms = int(events.t[0]) // MILLISECOND
        if last_ms - first_ms >= store.LONGEST_MS:
            what = f"lasts {(last_ms - first_ms) / 3.6e6:,.0f} h by its timestamps, so at least one is damaged"
            raise UserError(reader.path, what, "copy it again")
        # Later events are not before the last millisecond of these, so the index is final up to it.
        index = written + np.searchsorted(events.t, MILLISECOND * np.arange(next_ms, last_ms + 1))
        yield store.pack_words(*events), index, first_ms, raised
        next_ms, written = last_ms + 1, written + len(events.t)
    yield np.empty(0, np.uint32), np.array([written]), first_ms, 0


def in_order(reader: Reader) -> Iterator[tuple[Events, int]]:
    """Yield non-empty chunks of a recording's events, and how many of their times were raised.

    A time that steps back is raised to the latest time before it. A recording with no events, with events outside of
    its sensor or after the year 5138, or whose times nearly all step back raises a `UserError`.
    """
    latest, raised_of = None, np.zeros(2, np.int64)
    for x, y, t, p in reader.chunks():
        if not len(t):
            continue
        columns, rows = int(x.max()) + 1, int(y.max()) + 1
        if columns > reader.width or rows > reader.height:
            what = f"has events on {columns}x{rows} px, but its sensor has {reader.width}x{reader.height} px"
            raise UserError(reader.path, what, "copy it again, or correct the sensor size")
        times = np.maximum.accumulate(t if latest is None else np.maximum(t, latest))
        raised, latest = int(np.count_nonzero(times != t)), int(times[-1])
        if max(abs(int(times[0])), abs(latest)) > LATEST:
            what = f"has an event at {times[-1]} us, after the year 5138: it is damaged or its times are in nanoseconds"
            raise UserError(reader.path, what, "copy it again, or write its times in microseconds")
        raised_of += raised, len(t)
        yield Events(x, y, times, p), raised
    if latest is None:
        raise UserError(reader.path, "holds no events", "give a recording with events")
    if 10 * raised_of[0] > 9 * raised_of[1]:
        what = f"{raised_of[0]:,} of {raised_of[1]:,} times are earlier than one before them"
        raise UserError(reader.path, what, "sort its events by time, or copy it again")


def scan(reader: Reader) -> Facts:
    """Read a recording once, without keeping its events."""
    count = clamped = first = last = 0
    for events, raised in in_order(reader):
        first, last = first if count else int(events.t[0]), int(events.t[-1])
        count, clamped = count + len(events.t), clamped + raised
    return Facts(reader.height, reader.width, count, first, last, clamped, 0)
