"""Files that a recording consists of, and their hashes."""

import hashlib
from pathlib import Path
from typing import Any

from tespec.core.errors import UserError
from tespec.core.hashes import sha256_of_files
from tespec.events.readers import Reader, ddd17, rosbag
from tespec.events.store import header_of

SAMPLED = 1 << 16  # bytes hashed at the start and at the end of a file


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files of a recording: itself, the two of a DDD17 folder, or all in a folder.

    Hidden ones are not its own: macOS adds some, and packing a lock.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise UserError(path, "no such file or folder", "give the original recording")
    if (path / ddd17.EVENTS).is_file():
        return tuple(path / name for name in (ddd17.EVENTS, ddd17.TIMES) if (path / name).is_file())
    return tuple(sorted(entry for entry in path.glob("[!.]*") if entry.is_file()))


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
    """Whether a store matches a recording by sensor size and SHA-256; names are ignored.

    Args:
        folder: the packed store.
        reader: the recording.
    """
    header = header_of(folder)
    is_same_size = (header["height"], header["width"]) == (reader.height, reader.width)
    return is_same_size and content_sha256(reader.path) == str(header["source"]["sha256"])


def content_sha256(path: Path, *, again: bool = False) -> str:
    """Return the SHA-256 of a recording's files, see `tespec.core.hashes.sha256_of_files`."""
    return sha256_of_files([files_of(path)], again=again)[0]


def describe_files(path: Path) -> dict[str, Any]:
    """Return name, size and SHA-256 of a recording, and the `quick_hash` of its files."""
    files = [quick_hash(file) for file in files_of(path)]
    size = sum(file["bytes"] for file in files)
    return {"name": path.name, "bytes": size, "sha256": content_sha256(path), "files": files}
