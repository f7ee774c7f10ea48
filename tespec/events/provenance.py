"""What a recording was made from: names, sizes and SHA-256 of its files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tespec.core.errors import UserError

EVENTS, TIMES = "events.dat.xyp", "events.dat.t"  # of DDD17, whose recordings are folders
BLOCK = 1 << 20  # bytes
SAMPLED = 1 << 16  # bytes hashed at the head and at the tail of a file


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that hold a recording's events: itself, a DDD17 folder's two, or all those directly in a folder."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise UserError(path, "no such file or folder", "give what the recording was read from")
    if (path / EVENTS).is_file():
        return tuple(path / name for name in (EVENTS, TIMES) if (path / name).is_file())
    return tuple(sorted(entry for entry in path.iterdir() if entry.is_file()))


def size_of(path: Path) -> int:
    """Bytes of the files that hold a recording's events; 0 where there are none."""
    return sum(file.stat().st_size for file in files_of(path)) if path.exists() else 0


def is_recorded(path: Path) -> bool:
    """Whether a recording's events are there as they were recorded, packed besides or not."""
    return path.is_file() or (path / EVENTS).is_file()


def quick_hash(path: Path) -> dict[str, Any]:
    """Name and size of a file, and SHA-256 of its first and last 64 kB, which takes no time."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLED))
        file.seek(max(0, size - SAMPLED))
        digest.update(file.read(SAMPLED))
    return {"name": path.name, "bytes": size, "sampled_sha256": digest.hexdigest()}


def is_of(made_from: dict[str, Any], path: Path) -> bool:
    """Whether the files of a recording, by size and sampled SHA-256, are those of a `SourceHash`.

    Takes no time, however large they are; a change between the samples that keeps the size goes unseen. Names do not
    count.
    """
    files = made_from.get("files")
    said = [(each.get("bytes"), each.get("sampled_sha256")) for each in files] if isinstance(files, list) else []
    found = [quick_hash(file) for file in files_of(path)]
    return said == [(each["bytes"], each["sampled_sha256"]) for each in found]


class SourceHash:
    """SHA-256 of a recording's files, one after the other, taken block by block while they are decoded.

    A block that was just decoded is still in the page cache, so that the disk is read once.

    Args:
        path: file or folder that the recording is read from.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._files, self._bytes = path, files_of(path), size_of(path)
        self._digest, self._hashed, self._blocks = hashlib.sha256(), 0, self._read()

    def _read(self) -> Iterator[bytes]:
        for path in self._files:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    yield block

    def advance(self, share: float) -> None:
        """Hash the files as far as this share of their bytes."""
        while self._hashed < share * self._bytes and (block := next(self._blocks, b"")):
            self._digest.update(block)
            self._hashed += len(block)

    def describe(self) -> dict[str, Any]:
        """Hash the rest; name, bytes and SHA-256 of all files, and what `quick_hash` gives for each."""
        self.advance(math.inf)
        return {
            "name": self._path.name,
            "bytes": self._bytes,
            "sha256": self._digest.hexdigest(),
            "files": [quick_hash(file) for file in self._files],
        }
