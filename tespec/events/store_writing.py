"""Writes a packed store, and goes on where an interrupted writing stopped."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from tespec.events.packing import pack_words
from tespec.events.stream import EventStream

VERSION = 2
FORMAT = "tespec packed events"
HEADER, WORDS, INDEX = "header.json", "events.u32", "index.i64"
JOURNAL = "journal.json"
LONGEST_CHUNK_MS = 100
FULL_CHUNK = 1 << 22  # events; a chunk with more is followed by shorter ones
BETWEEN_JOURNALS = 1 << 24  # events
BLOCK = 1 << 20  # bytes
Progress = Callable[[int, int], None]


class Packing:
    """A writing under way in a folder of its own.

    Args:
        stream: to be packed.
        folder: of the writing; one that an interrupted writing of the same recording left is continued, any other is
            cleared.
        source: what the recording was read from, for the header.
    """

    def __init__(self, stream: EventStream, folder: Path, source: dict[str, Any] | None) -> None:
        self._stream, self._folder = stream, folder
        self._first_ms = stream.t_first // 1000
        self._end_ms = stream.t_last // 1000 + 1
        self._facts = {
            "format": FORMAT,
            "version": VERSION,
            "height": stream.height,
            "width": stream.width,
            "first_ms": self._first_ms,
            "clamped": stream.clamped,
            "source": source,
        }

    def run(self, progress: Progress) -> None:
        """Write words, index and header."""
        written, next_ms = self._resume()
        with (self._folder / WORDS).open("ab") as words, (self._folder / INDEX).open("ab") as index:
            if not index.tell():
                np.zeros(1, "<i8").tofile(index)
            chunk, noted = LONGEST_CHUNK_MS, written
            while next_ms < self._end_ms:
                end = min(next_ms + chunk, self._end_ms)
                events = self._stream.slice(next_ms * 1000, end * 1000)
                pack_words(*events).astype("<u4", copy=False).tofile(words)
                ends = np.arange(next_ms + 1, end + 1) * 1000
                (written + np.searchsorted(events.t, ends)).astype("<i8").tofile(index)
                written, next_ms = written + len(events.t), end
                chunk = max(1, chunk // 10) if len(events.t) > FULL_CHUNK else min(10 * chunk, LONGEST_CHUNK_MS)
                if written - noted >= BETWEEN_JOURNALS:
                    self._note(words, index, written, next_ms)
                    noted = written
                progress(written, self._stream.count)
            for file in (words, index):
                file.flush()
                os.fsync(file.fileno())
        hashes = {name: _sha256(self._folder / name) for name in (WORDS, INDEX)}
        header = self._facts | {"count": written, "sha256": hashes}
        (self._folder / HEADER).write_text(json.dumps(header, indent=1) + "\n")
        (self._folder / JOURNAL).unlink(missing_ok=True)

    def _resume(self) -> tuple[int, int]:
        """Events written and the next millisecond to write, after an interrupted writing; else from the start."""
        try:
            journal = json.loads((self._folder / JOURNAL).read_text())
            written, next_ms = int(journal["written"]), int(journal["next_ms"])
            sizes = {WORDS: 4 * written, INDEX: 8 * (next_ms - self._first_ms + 1)}
            same = journal["facts"] == json.loads(json.dumps(self._facts))
            whole = all((self._folder / name).stat().st_size >= size for name, size in sizes.items())
            if same and self._facts["source"] is not None and whole:
                for name, size in sizes.items():
                    os.truncate(self._folder / name, size)
                return written, next_ms
        except (OSError, ValueError, KeyError, TypeError):
            pass
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return 0, self._first_ms

    def _note(self, words: IO[bytes], index: IO[bytes], written: int, next_ms: int) -> None:
        """Keep how far the files on disk are whole."""
        for file in (words, index):
            file.flush()
            os.fsync(file.fileno())
        journal = {"facts": self._facts, "written": written, "next_ms": next_ms}
        temporary = self._folder / f".{JOURNAL}"
        temporary.write_text(json.dumps(journal))
        temporary.replace(self._folder / JOURNAL)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
