"""Pack a recording, of any format, into memory or a store in one pass."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import file_lock
from tespec.core.progress import log
from tespec.events import store
from tespec.events.files import describe_files, matches_recording
from tespec.events.readers import BLOCK, Events, Reader
from tespec.events.store import HEADER, LATEST, MILLISECOND, Facts, PackedEvents, open_store

PART = 1 << 17  # events written and hashed at once, at most: larger parts were slower
LOOK_AHEAD = 2  # events after one that decide whether it is ahead of its successors
AHEAD, LARGEST_STEP = 1_000, 10_000  # us, see `in_order`
EARLIEST = -(1 << 62)  # us, before any event
TOLERATED = 1e-3  # largest fraction of events that is dropped, and that gets another time
MANY = 10_000  # events; a smaller number does not show the resolution and the unit of the clock
PER_TIME = 10  # events at each time of a clock that is too coarse for them
QUIETEST = 0.02  # events per pixel and s of a recording over an hour
HOUR = 3_600_000_000  # us
NOT_WRITABLE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
)


class NotWritable(UserError):
    """Raised if a packed store cannot be written to its folder."""


def pack_in_memory(reader: Reader) -> PackedEvents:
    """Read a recording and keep its packed events in memory, 4 bytes each."""
    facts = Facts(reader.height, reader.width)
    words, index = zip(*_packed(reader, facts), strict=True)
    arrays = np.concatenate(words), np.concatenate(index)
    return PackedEvents(reader.path, facts, lambda: arrays)


def scan(reader: Reader) -> Facts:
    """Read and check a recording as `pack` does, without storing its events."""
    facts = Facts(reader.height, reader.width)
    for _ in in_order(reader, facts):  # completes `facts`
        pass
    return facts


def pack(
    reader: Reader, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Write a recording as a packed store, whose folder appears only when it is complete.

    A complete store of the same recording is not written again; any other store is replaced. If
    several processes pack into the same folder, one does the work and the others wait, with a
    message.

    Args:
        reader: the recording.
        folder: path of the store.
        progress: called with the number of events packed so far and the total.

    Returns:
        The folder.

    Raises:
        NotWritable: the folder is no store, or cannot be written.
        UserError: the recording is damaged.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    replaced = folder.with_name(f".{folder.name}.replaced")
    try:
        with file_lock(
            folder, lambda holder: log(f"{reader.path}: waiting for {holder}, which is packing it")
        ):
            if folder.exists() and not (folder / HEADER).is_file():
                raise NotWritable(
                    folder,
                    "exists but is not a packed store",
                    "remove it, or choose another folder",
                )
            with suppress(UserError):  # of an incomplete store
                open_store(folder)
                if matches_recording(folder, reader):
                    return folder
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
            try:
                unfinished.mkdir()
                _write(reader, unfinished, progress)
                shutil.rmtree(replaced, ignore_errors=True)  # left by a killed process
                if folder.exists():
                    # deleting it in place, if killed, would leave a folder without a header
                    folder.rename(replaced)
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        raise NotWritable(
            folder.parent,
            f"cannot be written to ({error.strerror}); "
            f"the events need about {4 * reader.events:,} bytes",
            "free disk space, or choose a writable folder",
        ) from error
    return folder


def _write(reader: Reader, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write packed events, index and header; one thread hashes the recording, one the store."""
    facts = Facts(reader.height, reader.width)
    words_hash, index_hash = hashlib.sha256(), hashlib.sha256()
    with (
        (folder / store.WORDS).open("wb") as words_file,
        (folder / store.INDEX).open("wb") as index_file,
        ThreadPoolExecutor(1) as source_thread,
        ThreadPoolExecutor(1) as store_thread,
    ):
        # at the same time as it is decoded, so that the disk is read only once
        source = source_thread.submit(describe_files, reader.path)
        hashed = store_thread.submit(words_hash.update, b"")
        for words, index in _packed(reader, facts):
            words_file.write(words.data)
            index_file.write(index.data)
            index_hash.update(index.data)
            hashed.result()
            hashed = store_thread.submit(words_hash.update, words.data)
            progress(facts.count, max(facts.count, reader.events))
        for file in (words_file, index_file):
            file.flush()
            os.fsync(file.fileno())
        hashed.result()
    header = {
        "format": store.FORMAT,
        "version": store.VERSION,
        **asdict(facts),
        "source": source.result(),
        "sha256": {store.WORDS: words_hash.hexdigest(), store.INDEX: index_hash.hexdigest()},
    }
    (folder / HEADER).write_text(json.dumps(header, indent=1) + "\n")


def _packed(reader: Reader, facts: Facts) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
    """Yield parts of packed events and of their index; for `facts`, see `in_order`."""
    words = np.empty(PART, np.uint32)
    index = [np.empty(0, np.int64)]
    filled = 0  # words of this part so far
    indexed = 0  # milliseconds in the index of all parts so far
    for events in in_order(reader, facts):
        if filled + len(events.t) > PART:
            yield words[:filled], np.concatenate(index)
            words = np.empty(PART, np.uint32)  # the yielded one may wait to be hashed
            index.clear()
            filled = 0
        earlier = facts.count - len(events.t)
        next_ms = facts.t_first // MILLISECOND + indexed
        index.append(store.pack_words(*events, earlier, next_ms, words[filled:]))
        filled += len(events.t)
        indexed += len(index[-1])
    yield words[:filled], np.concatenate([*index, [facts.count]])


def in_order(reader: Reader, facts: Facts) -> Iterator[Events]:
    """Yield a recording's events on the sensor in time order, in non-empty parts.

    Events off the sensor are dropped. Times that step back are corrected:

    - An event that is ahead of its successors is lowered to the time of the next event: the next
      event is earlier by more than 10 ms, or the next two both by more than 1 ms, but the next is
      not earlier than any event before.
    - Any other event that is earlier than one before it, by at most 10 ms, is raised to the latest
      time before it.

    At most .1 % of the events may be dropped, and at most .1 % corrected, or one of each. A
    recording with more of them or with a larger step back (its clock was reset or overflows, it was
    concatenated, it is sorted by something else) is refused. So are times that cannot be
    microseconds:

    - They are later than the year 5138, or span 8 h or more.
    - They are coarser than 1 ms, while the bins of histograms are 3 to 10 ms: in at least 10,000
      events, no two different times are 1 ms or less apart, and 10 or more events have the same
      time on average.
    - They are nanoseconds: at least 10,000 events in over an hour, below 0.02 per pixel and s.
      Leak currents alone cause about 0.1. The busiest recordings have about 10, which is 0.01 if
      nanoseconds are read as microseconds.

    Args:
        reader: the recording.
        facts: height and width of its sensor; the rest is zero before, and complete after the last
            part.
    """
    path = reader.path
    if reader.width > store.MAX_WIDTH or reader.height > store.MAX_HEIGHT:
        raise UserError(
            path,
            f"its sensor of {reader.width}x{reader.height} px is too large for a packed store",
            f"use at most {store.MAX_WIDTH}x{store.MAX_HEIGHT} px",
        )
    times = 1  # number of different times
    is_coarse = True  # no two different times are 1 ms or less apart
    for events in (part for part in _corrected(reader, facts) if len(part.t)):
        if not facts.count:
            facts.t_first = facts.t_last = int(events.t[0])
        if is_coarse:
            gaps = np.diff(events.t, prepend=facts.t_last)
            times += int(np.count_nonzero(gaps))
            is_coarse = not ((gaps > 0) & (gaps <= MILLISECOND)).any()
        facts.count += len(events.t)
        facts.t_last = int(events.t[-1])
        span = facts.t_last - facts.t_first
        if span >= store.LONGEST_HOURS * HOUR or max(-facts.t_first, facts.t_last) > LATEST:
            raise UserError(
                path,
                f"has times from {facts.t_first:,} to {facts.t_last:,} us, over 8 h or after the "
                "year 5138, so at least one is damaged, or they are in nanoseconds",
                "copy it again, or write its times in microseconds",
            )
        yield events
    if not facts.count:
        raise UserError(path, "holds no events", "give a recording with events")
    if is_coarse and facts.count >= max(MANY, PER_TIME * times):
        raise UserError(
            path,
            f"its {facts.count:,} events have {times:,} different times, more than 1 ms apart: "
            "too coarse for bins",
            "write its times as integers in microseconds or as float64 in seconds",
        )
    hours = (facts.t_last - facts.t_first) / HOUR
    if hours > 1 and MANY <= facts.count < QUIETEST * facts.height * facts.width * hours * 3600:
        raise UserError(
            path,
            f"its {facts.count:,} events last {hours:.1f} h, "
            "so its times are probably in nanoseconds",
            "write its times in microseconds, "
            "or cut a recording that is really so quiet into parts below 1 h",
        )


def _corrected(reader: Reader, facts: Facts) -> Iterator[Events]:
    """Yield parts of a recording in time order by the rule of `in_order`.

    The last `LOOK_AHEAD` events of a block are held back, since the block after it decides whether
    they are ahead of their successors. `facts` counts the events of the parts before.
    """
    held = end = Events(*(np.empty(0, dtype) for dtype in ("u2", "u2", "i8", "u1")))
    first_change = ""
    for block in chain(_on_sensor(reader, facts), [end]):
        latest = facts.t_last if facts.count else EARLIEST
        borders = np.concatenate(([latest], held.t, block.t[:1]))
        is_sorted = (borders[1:] >= borders[:-1]).all() and (block.t[1:] >= block.t[:-1]).all()
        if is_sorted and len(block.t) > LOOK_AHEAD:  # nearly always; nothing is copied
            yield held
            yield _select(block, slice(-LOOK_AHEAD))
            held = _select(block, slice(-LOOK_AHEAD, None))
            continue
        pairs: Any = zip(held, block, strict=True)
        events = Events(*(np.concatenate(pair) for pair in pairs))
        ready = len(events.t) if block is end else max(len(events.t) - LOOK_AHEAD, 0)
        times, n_sorted = _correct(events.t, latest, ready)
        if n_sorted < ready:
            before = int(times[n_sorted - 1]) if n_sorted else latest
            time = int(events.t[n_sorted])
            raise UserError(
                reader.path,
                f"event {facts.count + n_sorted:,} at {time:,} us is "
                f"{(before - time) / 1e6:,.3f} s earlier than one before it",
                "sort its events by time, or cut it where its clock starts again",
            )
        changed = np.flatnonzero(times != events.t[:ready])
        if len(changed) and not first_change:
            first_change = f"{events.t[changed[0]]:,} us of event {facts.count + changed[0]:,}"
        facts.clamped += len(changed)
        held = _select(events, slice(ready, None))
        yield _select(events, slice(ready))._replace(t=times)
    if facts.clamped > max(1, TOLERATED * facts.count):
        raise UserError(
            reader.path,
            f"{facts.clamped:,} of {facts.count:,} times are not in order, "
            f"the first is {first_change}",
            "sort its events by time, or copy it again",
        )


@njit(cache=True, nogil=True)
def _correct(t, latest, count):  # type: ignore[no-untyped-def]
    """Correct the first `count` times by the rule of `in_order`, until one cannot be corrected.

    Args:
        t: (N,) times in us, of which those after the first `count` are only compared.
        latest: latest time before them in us.
        count: number of times.

    Returns:
        The times (count,), and how many of them are in order.
    """
    times = t[:count].copy()
    for i in range(count):
        if i + 1 < len(t) and latest <= t[i + 1] < t[i]:
            both_earlier = i + 2 < len(t) and max(t[i + 1], t[i + 2]) < t[i] - AHEAD
            if both_earlier or t[i + 1] < t[i] - LARGEST_STEP:
                times[i] = t[i + 1]
        if times[i] < latest - LARGEST_STEP:
            return times, i
        times[i] = latest = max(times[i], latest)
    return times, count


def _select(events: Events, index: slice | NDArray[np.bool_]) -> Events:
    return Events(events.x[index], events.y[index], events.t[index], events.p[index])


def _on_sensor(reader: Reader, facts: Facts) -> Iterator[Events]:
    """Yield non-empty blocks of the events on the sensor; `facts` counts the other events."""
    total = width = height = 0
    blocks = (
        _select(chunk, slice(begin, begin + BLOCK))
        for chunk in reader.chunks()
        for begin in range(0, len(chunk.t), BLOCK)
    )
    for block in blocks:
        total += len(block.t)
        last_column, last_row = int(block.x.max()), int(block.y.max())
        if last_column >= reader.width or last_row >= reader.height:
            width = max(width, last_column + 1)
            height = max(height, last_row + 1)
            inside = (block.x < reader.width) & (block.y < reader.height)
            block = _select(block, inside)
            facts.dropped += len(inside) - len(block.t)
            if facts.dropped > 10 * max(1, TOLERATED * max(total, reader.events)):
                # a wrong size does not need the rest of the file, whose number of events may be an
                # estimate
                break
        if len(block.t):
            yield block
    if facts.dropped > max(1, TOLERATED * total) or facts.dropped == total > 0:
        raise UserError(
            reader.path,
            f"has events on {width}x{height} px, "
            f"but its sensor has {reader.width}x{reader.height} px",
            "copy it again, or correct the sensor size",
        )
