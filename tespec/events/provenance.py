"""What a recording was made from: names, sizes and SHA-256 of its files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tespec.core.errors import UserError
from tespec.events.readers.ddd17 import EVENTS, TIMES

BLOCK = 1 << 20  # bytes
SAMPLED = 1 << 16  # bytes hashed at the head and at the tail of a file


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that hold a recording's events: itself, a DDD17 folder's two, or all those directly in a folder.

    Raises:
        UserError: there is no such file or folder.
    """
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


def sample(path: Path) -> dict[str, Any]:
    """Name and size of a file, and SHA-256 of its first and last 64 kB, which takes no time."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLED))
        file.seek(max(0, size - SAMPLED))
        digest.update(file.read(SAMPLED))
    return {"name": path.name, "bytes": size, "sampled_sha256": digest.hexdigest()}


def is_of(made_from: dict[str, Any], path: Path) -> bool:
    """Whether the files of a recording, by size and sampled SHA-256, are those that `describe` spoke of.

    Takes no time, however large they are; a change between the samples that keeps the size goes unseen. Names do not
    count.
    """
    files = made_from.get("files")
    said = [(each.get("bytes"), each.get("sampled_sha256")) for each in files] if isinstance(files, list) else []
    found = [sample(file) for file in files_of(path)]
    return said == [(each["bytes"], each["sampled_sha256"]) for each in found]


def describe(path: Path) -> dict[str, Any]:
    """Name, bytes and SHA-256 of a recording's files one after the other, and what `sample` says of each.

    Raises:
        UserError: there is no such file or folder.
    """
    files = files_of(path)
    digest = hashlib.sha256()
    for name in files:
        with name.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    return {
        "name": path.name,
        "bytes": size_of(path),
        "sha256": digest.hexdigest(),
        "files": [sample(name) for name in files],
    }
