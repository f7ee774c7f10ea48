"""Files that appear whole or not at all, and places that one process at a time writes to."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems that have none


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A hidden place beside `path`, whose folder is made, to write the file to.

    What was written takes the name when the block ends, in place of what had it, and goes when the block fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # No process number: two machines that share a disk may have the same.
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_all(texts: Mapping[Path, str]) -> None:
    """Write text files in UTF-8, all of them or none: they take their names once the last one is written."""
    with ExitStack() as stack:
        for path, text in texts.items():
            stack.enter_context(whole_file(path)).write_text(text, encoding="utf-8")


def write_whole(path: Path, text: str) -> Path:
    """Write a text file in UTF-8 in one step, and return its path."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return path


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold `path` against other processes in this block, after waiting for the one that holds it.

    The system frees it when its holder ends, however it ends. The hidden file beside `path` that is locked, whose
    folder is made, goes with the last holder. Where the file system has no locks, nothing is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_name(f".{path.name}.lock")
    while True:
        file = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(file)
            if not _is_at(file, place):
                continue  # its holder has removed it meanwhile; others may hold a new one
            try:
                yield
            finally:
                place.unlink(missing_ok=True)
            return
        finally:
            os.close(file)


def _lock(file: int) -> None:
    try:
        # Not flock: worker processes would inherit it, and outlive a killed holder by some seconds.
        fcntl.lockf(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_at(file: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), place.stat())
    except FileNotFoundError:
        return False
