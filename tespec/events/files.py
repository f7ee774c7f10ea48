"""Files that a recording consists of, and their hashes."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tespec.core.errors import UserError
from tespec.events.readers import Reader, ddd17, rosbag
from tespec.events.store import header_of

BLOCK = 1 << 20  # bytes hashed per block
SAMPLED = 1 << 16  # bytes hashed at the start and at the end of a file


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files of a recording: itself, the two of a DDD17 folder, or all in a folder."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise UserError(path, "no such file or folder", "give the original recording")
    if (path / ddd17.EVENTS).is_file():
        return tuple(path / name for name in (ddd17.EVENTS, ddd17.TIMES) if (path / name).is_file())
    return tuple(sorted(entry for entry in path.iterdir() if entry.is_file()))


def has_original_files(path: Path) -> bool:
    """Whether a recording's original event files exist, with or without a packed store."""
    return path.is_file() or (path / ddd17.EVENTS).is_file() or rosbag.reads(path)


def quick_hash(path: Path) -> dict[str, Any]:
    """Name and size of a file, and the SHA-256 of its first and last 64 kB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLED))
        file.seek(max(0, size - SAMPLED))
        digest.update(file.read(SAMPLED))
    return {"name": path.name, "bytes": size, "sampled_sha256": digest.hexdigest()}


def matches_recording(folder: Path, reader: Reader) -> bool:
    """Whether a store matches a recording by sensor size, and sizes and sampled SHA-256 of files.

    A change between the samples that keeps the size is not detected. Names are ignored.

    Args:
        folder: the packed store.
        reader: the recording.
    """
    header = header_of(folder)
    packed = [file | {"name": ""} for file in header["source"]["files"]]
    current = [quick_hash(file) | {"name": ""} for file in files_of(reader.path)]
    is_same_size = (header["height"], header["width"]) == (reader.height, reader.width)
    return is_same_size and packed == current


def content_sha256(path: Path) -> str:
    """Read all files of a recording and return their SHA-256."""
    return str(SourceHash(path).describe()["sha256"])


class SourceHash:
    """SHA-256 of a recording's concatenated files, updated while they are decoded.

    So the disk is read only once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = files_of(path)
        self._bytes = sum(file.stat().st_size for file in self._files)
        self._hashed = 0
        self._digest = hashlib.sha256()
        self._blocks = self._read()

    def _read(self) -> Iterator[bytes]:
        for path in self._files:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    yield block

    def advance(self, fraction: float) -> None:
        """Hash the files up to this fraction of their bytes."""
        while self._hashed < fraction * self._bytes and (block := next(self._blocks, b"")):
            self._digest.update(block)
            self._hashed += len(block)

    def describe(self) -> dict[str, Any]:
        """Hash the rest; return name, size and SHA-256, and the `quick_hash` of all files."""
        self.advance(math.inf)  # to the end of the last file, which closes it
        files = [quick_hash(file) for file in self._files]
        return {
            "name": self._path.name,
            "bytes": self._bytes,
            "sha256": self._digest.hexdigest(),
            "files": files,
        }
