"""Packs recordings into stores, each of which appears when it is whole."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time
from tespec.events.in_order import in_order
from tespec.events.provenance import SourceHash, is_of, size_of
from tespec.events.store import (
    FORMAT,
    HEADER,
    INDEX,
    LATEST_MS,
    LONGEST_MS,
    MAX_HEIGHT,
    MAX_WIDTH,
    VERSION,
    WORDS,
    header_of,
    is_complete,
    pack_words,
)
from tespec.events.stream import Events, EventStream, Reader

BYTES_PER_EVENT, BYTES_PER_MILLISECOND = 4, 8
AT_ONCE = 1 << 20  # milliseconds whose index is written together
SECOND = 1_000_000  # us
# Longest recording for its events: no camera is silent for hours, but a damaged time makes an index of gigabytes.
QUIET_MS, MS_PER_EVENT = 1 << 23, 1000
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
Progress = Callable[[int, int], None]


def pack(
    recording: Reader | EventStream,
    folder: Path,
    source: Path | None = None,
    progress: Progress | None = None,
    waiting: Callable[[], None] | None = None,
    replace: bool = False,
) -> Path:
    """Write a recording as a packed store into a folder that appears when it is whole.

    A whole store of the same source is left as it is, one of another version of the source is replaced. Of several
    processes that pack into one folder the first does the work, the others wait for it. What a killed process has left
    is cleared.

    Args:
        recording: to be packed.
        folder: where the store goes.
        source: file or folder the recording was read from, whose size and SHA-256 go into the header.
        progress: called with the events packed and all there are.
        waiting: called where another process packs into the folder.
        replace: the folder may hold anything; what is no whole store is replaced.

    Returns:
        `folder`.

    Raises:
        UserError: the folder holds something else or cannot be made, the disk is full or will be, the sensor is larger
            than 2048x1024 px, the recording longer than a week or than its events can be, or it cannot be read.
    """
    reader = recording if isinstance(recording, Reader) else reader_of(recording, source or folder)
    if reader.width > MAX_WIDTH or reader.height > MAX_HEIGHT:
        what = f"a sensor of {reader.width}x{reader.height} px does not fit the packed store"
        raise UserError(reader.path, what, "give one of 2048x1024 px at most")
    try:
        with one_at_a_time(folder, waiting):
            if not folder.exists() or (not is_complete(folder) if replace else not _is_packed(folder, reader, source)):
                clamped = 0 if isinstance(recording, Reader) else recording.clamped
                _pack(reader, folder, source, clamped, progress or (lambda done, total: None))
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
        what = f"cannot be written to ({error.strerror})"
        raise UserError(folder.parent, what, "change its permissions, or name another folder") from error
    return folder


def reader_of(stream: EventStream, path: Path) -> Reader:
    """A recording that is open already, to be read from front to back.

    Raises:
        UserError: it is longer than a week.
    """
    _check_times(path, stream.t_first // 1000, stream.t_last // 1000, stream.count)

    def chunks() -> Iterator[Events]:
        for begin in range(stream.t_first, stream.t_last + 1, SECOND):
            yield stream.slice(begin, min(begin + SECOND, stream.t_last + 1))

    return Reader(path, stream.height, stream.width, stream.count, chunks)


def disk_needed(events: int, milliseconds: int) -> int:
    """Bytes of a packed store."""
    return BYTES_PER_EVENT * events + BYTES_PER_MILLISECOND * milliseconds


def _is_packed(folder: Path, reader: Reader, source: Path | None) -> bool:
    """Whether what is in the folder is what would be packed; False where it is of another version of the source.

    Raises:
        UserError: it is something else.
    """
    if source is None or not is_complete(folder):
        raise UserError(folder, "exists already", "remove it or choose another folder")
    header = header_of(folder)
    made_from = header["source"]
    if made_from is None or not is_of(made_from, source):
        if made_from is not None and made_from.get("name") == source.name:
            return False
        raise UserError(folder, "exists already", "remove it or choose another folder")
    if (header["height"], header["width"]) != (reader.height, reader.width):
        size = f"{header['width']}x{header['height']} px, not {reader.width}x{reader.height}"
        raise UserError(folder, f"was packed for a sensor of {size}", "remove it, or give that size")
    return True


def _pack(reader: Reader, folder: Path, source: Path | None, clamped: int, progress: Progress) -> None:
    unfinished, stale = (folder.with_name(f".{folder.name}.{state}") for state in ("unfinished", "stale"))
    for left in (unfinished, stale):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    needed, free = disk_needed(reader.events, 0), shutil.disk_usage(folder.parent).free
    if needed > free:
        what = f"has {free:,} bytes free, the packed events of {reader.path.name} need about {needed:,}"
        raise UserError(folder.parent, what, "make room, or name another folder")
    try:
        read = None if source is None else SourceHash(source)
        unfinished.mkdir()
        header = _write(reader, unfinished, read, clamped, progress)
        (unfinished / HEADER).write_text(json.dumps(header, indent=1) + "\n")
        os.chmod(unfinished, 0o755)
        if folder.exists():
            folder.rename(stale)
        unfinished.rename(folder)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        what = f"the disk is full after {size_of(unfinished):,} bytes"
        raise UserError(folder, what, "make room, or name another folder") from error
    finally:
        for left in (unfinished, stale):
            shutil.rmtree(left, ignore_errors=True)


def _write(reader: Reader, folder: Path, source: SourceHash | None, clamped: int, progress: Progress) -> dict[str, Any]:
    """Write words and index; returns the header. `clamped` events were raised before the reader gives them out."""
    first_ms = next_ms = written = 0
    hashes = {name: hashlib.sha256() for name in (WORDS, INDEX)}
    with (folder / WORDS).open("wb") as words, (folder / INDEX).open("wb") as index:

        def put(file: IO[bytes], values: NDArray[np.generic]) -> None:
            hashes[Path(file.name).name].update(values.data)
            file.write(values.data)

        for events, raised in in_order(reader):
            if not written:
                first_ms = next_ms = int(events.t[0]) // 1000
            last_ms = int(events.t[-1]) // 1000
            _check_times(reader.path, first_ms, last_ms, reader.events)
            put(words, pack_words(*events).astype("<u4", copy=False))
            # No later event lies before the last millisecond of these: where it and those before it begin is known.
            for begin in range(next_ms, last_ms + 1, AT_ONCE):
                starts = 1000 * np.arange(begin, min(begin + AT_ONCE, last_ms + 1))
                put(index, (written + np.searchsorted(events.t, starts)).astype("<i8"))
            next_ms = last_ms + 1
            written, clamped = written + len(events.t), clamped + raised
            progress(written, max(written, reader.events))
            if source is not None:
                source.advance(written / max(written, reader.events))
        put(index, np.array([written], "<i8"))
        for file in (words, index):
            file.flush()
            os.fsync(file.fileno())
    return {
        "format": FORMAT,
        "version": VERSION,
        "height": reader.height,
        "width": reader.width,
        "first_ms": first_ms,
        "clamped": clamped,
        "source": None if source is None else source.describe(),
        "count": written,
        "sha256": {name: digest.hexdigest() for name, digest in hashes.items()},
    }


def _check_times(path: Path, first_ms: int, last_ms: int, events: int) -> None:
    if last_ms - first_ms >= min(LONGEST_MS, QUIET_MS + MS_PER_EVENT * events):
        hours = (last_ms - first_ms) / 3.6e6
        raise UserError(path, f"lasts {hours:,.0f} h by its time stamps, so one is damaged", "copy it again")
    if abs(first_ms) > LATEST_MS:
        raise UserError(path, f"begins at {first_ms} ms by its time stamps, so they are damaged", "copy it again")
