"""SHA-256 of data on disk: each file is read once, and its hash is remembered in the cache."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, atomic_write, read_json, sha256_of
from tespec.core.paths import cache_root
from tespec.core.progress import progress

THREADS = 8  # files hashed at once; hashlib releases the GIL
# A file is remembered when it is older: a write within the resolution of its time would be missed.
SETTLED_NS = 2_000_000_000

# What determines data: text, or files of one folder, by names such as "0/dir0: events.raw". The
# part before the last ": " and the order count, the rest does not: a file may be renamed.
Contents = Mapping[str, str | tuple[Path, ...]]
# Hashes of a folder's files: by the names of one or more files, size in bytes and time of
# modification in ns of each, and the SHA-256 of them all.
Memory = dict[str, Any]


def checksums(contents: Contents, *, again: bool = False) -> dict[str, str]:
    """Replace the files of `contents` by their SHA-256, see `sha256_of_files`."""
    files = {name: value for name, value in contents.items() if not isinstance(value, str)}
    sha256 = dict(zip(files, sha256_of_files([*files.values()], again=again), strict=True))
    return {name: sha256.get(name, str(value)) for name, value in contents.items()}


def fingerprint_of(checksums: Mapping[str, str]) -> str:
    """Hash the checksums of `Contents`: twelve hexadecimal digits of a SHA-256."""
    digest = hashlib.sha256()
    for name, checksum in checksums.items():
        digest.update(f"{name.rpartition(': ')[0]}|{checksum}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:12]


def sha256_of_files(groups: Sequence[tuple[Path, ...]], *, again: bool = False) -> list[str]:
    """Return the SHA-256 of the concatenated files of each group, in hexadecimal.

    A file is read if its path, size or time of modification is new.

    Args:
        groups: one or more files of one folder each.
        again: whether to read all files.

    Raises:
        UserError: a file cannot be read.
    """
    memories = {folder: _read_memory(folder) for folder in {paths[0].parent for paths in groups}}
    label = "hashing" if len(groups) > 1 else ""
    hashes: list[str] = []
    try:
        with ThreadPoolExecutor(THREADS) as pool, progress(label, "files") as advance:
            for sha256 in pool.map(lambda paths: _hash(memories, paths, again), groups):
                hashes.append(sha256)
                advance(len(hashes), len(groups), groups[len(hashes) - 1][0].name)
    finally:
        for folder, memory in memories.items():
            _remember(folder, memory)
    return hashes


def _hash(memories: Mapping[Path, Memory], paths: tuple[Path, ...], again: bool) -> str:
    memory = memories[paths[0].parent]
    key = "\n".join(path.name for path in paths)
    try:
        stats = [path.stat() for path in paths]
        states = [[stat.st_size, stat.st_mtime_ns] for stat in stats]
        if again or key not in memory or memory[key][0] != states:
            memory[key] = [states, sha256_of(*paths)]
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise UserError(error.filename or paths[0], what, "copy it again") from error
    return str(memory[key][1])


def _memory_of(folder: Path) -> Path:
    """Path of the file that remembers the hashes of a folder's files."""
    name = hashlib.sha256(str(folder.absolute()).encode(errors="surrogateescape")).hexdigest()
    return cache_root() / "hashes" / f"{name[:24]}.json"


def _read_memory(folder: Path) -> Memory:
    try:
        return dict(read_json(_memory_of(folder)))
    except (*UNREADABLE, TypeError):
        return {}  # nothing is remembered yet


def _remember(folder: Path, hashes: Memory) -> None:
    """Add hashes to those of a folder, except of files that were just written."""
    latest = time.time_ns() - SETTLED_NS
    settled = {
        key: [states, sha256]
        for key, (states, sha256) in hashes.items()
        if all(mtime < latest for _, mtime in states)
    }
    memory = _read_memory(folder)
    if settled.items() <= memory.items():
        return
    with suppress(OSError), atomic_write(_memory_of(folder)) as unfinished:  # a read-only cache
        unfinished.write_text(json.dumps(memory | settled))
