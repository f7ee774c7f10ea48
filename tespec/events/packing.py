"""Packs a recording, read once from front to back: into memory, or into a store that appears when it is whole.

What cannot be read or is no recording (a sensor of more than 2048x1024 px, a duration of more than a week or than its
number of events allows), a disk that is full, and a folder that cannot be written to are a `UserError`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
    LONGEST_MS,
    MAX_HEIGHT,
    MAX_WIDTH,
    MILLISECOND,
    VERSION,
    WORDS,
    PackedEvents,
    header_of,
    is_complete,
    pack_words,
)
from tespec.events.stream import Reader

BYTES_PER_EVENT, BYTES_PER_MILLISECOND = 4, 8
AT_ONCE = 1 << 20  # milliseconds whose index is written together
# Longest recording for its events: no camera is silent for hours, but a damaged time makes an index of gigabytes.
QUIET_MS, MS_PER_EVENT = 1 << 23, 1000
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
Progress = Callable[[int, int], None]


def load(reader: Reader) -> PackedEvents:
    """All events of a recording in memory."""
    parts = list(_packed(reader))
    words, index = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    size, (*_, first_ms, _), raised = (reader.height, reader.width), parts[0], sum(part[-1] for part in parts)
    return PackedEvents(reader.path, size, first_ms, raised, lambda: (words, index))


def pack(
    recording: Reader | PackedEvents,
    folder: Path,
    source: Path | None = None,
    progress: Progress = lambda done, total: None,
    waiting: Callable[[], None] | None = None,
) -> Path:
    """Write a recording as a packed store into a folder that appears when it is whole.

    A whole store of the same source is left as it is; a damaged one, and one of another version of the source, is
    replaced. Of several processes that pack into one folder the first does the work, the others wait for it. What a
    killed process has left is cleared. Hashes are taken by a second thread.

    Args:
        recording: to be packed.
        folder: where the store goes.
        source: file or folder the recording was read from, whose size and SHA-256 go into the header.
        progress: called with the events packed and all there are.
        waiting: called where another process packs into the folder.

    Returns:
        `folder`.
    """
    if isinstance(recording, PackedEvents):
        clamped, events = recording.clamped, recording.slice(recording.t_first, recording.t_last + 1)
        size = recording.height, recording.width
        reader = Reader(source or folder, *size, recording.count, lambda: iter([events]))
    else:
        clamped, reader = 0, recording
    try:
        with one_at_a_time(folder, waiting):
            if not _is_packed(folder, reader, source):
                _pack(reader, folder, source, clamped, progress)
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
        what = f"cannot be written to ({error.strerror})"
        raise UserError(folder.parent, what, "change its permissions, or name another folder") from error
    return folder


def disk_needed(events: int, milliseconds: int = 0) -> int:
    """Bytes of a packed store."""
    return BYTES_PER_EVENT * events + BYTES_PER_MILLISECOND * milliseconds


def _is_packed(folder: Path, reader: Reader, source: Path | None) -> bool:
    """Whether a folder holds what would be packed; False where it holds nothing, or a store that is to be replaced."""
    if not folder.exists() or ((folder / HEADER).is_file() and not is_complete(folder)):
        return False
    header = header_of(folder) if (folder / HEADER).is_file() else {}
    made_from = header.get("source")
    if source is None or made_from is None:
        raise UserError(folder, "exists already", "remove it or choose another folder")
    if not is_of(made_from, source):
        if made_from.get("name") == source.name:
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
    try:
        hashed = None if source is None else SourceHash(source)
        unfinished.mkdir()
        header = _write(reader, unfinished, hashed, clamped, progress)
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
    first_ms, written, digests = None, 0, (hashlib.sha256(), hashlib.sha256())
    with (folder / WORDS).open("wb") as words, (folder / INDEX).open("wb") as index, ThreadPoolExecutor(1) as thread:
        files, hashing = (words, index), thread.submit(lambda: None)

        def take_hashes(parts: Iterable[NDArray[np.generic]], share: float) -> None:
            for digest, part in zip(digests, parts, strict=True):
                digest.update(part.data)
            if source is not None:
                source.advance(share)

        for chunk, starts, begin, raised in _packed(reader):
            parts = chunk.astype("<u4", copy=False), starts.astype("<i8", copy=False)
            first_ms = begin if first_ms is None else first_ms
            written, clamped = written + len(chunk), clamped + raised
            total = max(written, reader.events)
            for file, part in zip(files, parts, strict=True):
                file.write(part.data)
            hashing.result()  # of the part before, so that few are held
            hashing = thread.submit(take_hashes, parts, written / total)
            progress(written, total)
        hashing.result()
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        of_source = None if source is None else source.describe()
    return {
        "format": FORMAT,
        "version": VERSION,
        "height": reader.height,
        "width": reader.width,
        "first_ms": first_ms,
        "clamped": clamped,
        "source": of_source,
        "count": written,
        "sha256": {name: digest.hexdigest() for name, digest in zip((WORDS, INDEX), digests, strict=True)},
    }


def _packed(reader: Reader) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64], int, int]]:
    """Words of a part, a part of the index, the first millisecond of both, and how many times were raised."""
    if reader.width > MAX_WIDTH or reader.height > MAX_HEIGHT:
        what = f"a sensor of {reader.width}x{reader.height} px does not fit the packed store"
        raise UserError(reader.path, what, f"give one of {MAX_WIDTH}x{MAX_HEIGHT} px at most")
    first_ms, next_ms, written = 0, 0, 0
    for events, raised in in_order(reader):
        if not written:
            first_ms = next_ms = int(events.t[0]) // MILLISECOND
        last_ms, words = int(events.t[-1]) // MILLISECOND, pack_words(*events)
        if last_ms - first_ms >= min(LONGEST_MS, QUIET_MS + MS_PER_EVENT * reader.events):
            what = f"lasts {(last_ms - first_ms) / 3.6e6:,.0f} h by its time stamps, so one is damaged"
            raise UserError(reader.path, what, "copy it again")
        # No later event lies before the last millisecond of these: where it and those before it begin is known.
        for begin in range(next_ms, max(last_ms, next_ms) + 1, AT_ONCE):
            milliseconds = np.arange(begin, min(begin + AT_ONCE, last_ms + 1))
            yield words, written + np.searchsorted(events.t, MILLISECOND * milliseconds), begin, raised
            words, raised = words[:0], 0
        next_ms, written = last_ms + 1, written + len(events.t)
    yield np.empty(0, np.uint32), np.array([written]), next_ms, 0
