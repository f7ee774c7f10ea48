"""File utilities: read JSON and YAML, write files atomically, lock files between processes."""

import errno
import hashlib
import json
import os
import re
import resource
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from tespec.core.progress import log

# the last one by values that are nested too deeply
UNREADABLE = (OSError, ValueError, RecursionError)
ALLOWED_FILES, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1: without limit
# Number of files that a cache of open files may hold: a quarter of those that the system allows.
OPEN_FILES = (min(1024, ALLOWED_FILES) if ALLOWED_FILES > 0 else 1024) // 4
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # no locks, as on some NFS


class _Loader(yaml.SafeLoader):
    """Loader that reads 1e-3 as a number, as YAML 1.2 does; in YAML 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def regular_file(path: Path) -> Path:
    """Return `path`; raise an `OSError` for a pipe, socket or device, which could block."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def read_json(path: Path) -> Any:
    """Parse a JSON file in UTF-8; one that cannot be read raises an error of `UNREADABLE`."""
    return json.loads(regular_file(path).read_text(encoding="utf-8"))


def read_yaml(path: Path) -> Any:
    """Parse a YAML file in UTF-8; one that cannot be read raises an error of `UNREADABLE`."""
    return parse_yaml(regular_file(path).read_text(encoding="utf-8"))


def parse_yaml(text: str) -> Any:
    """Parse YAML text into plain Python types; other text raises an error of `UNREADABLE`.

    >>> parse_yaml("{peak_lr: 1e-3, betas: [0.9, 0.95]}")
    {'peak_lr': 0.001, 'betas': [0.9, 0.95]}
    """
    try:
        return yaml.load(text, _Loader)
    # Values that do not match their standard tag, such as !!int, raise these other exceptions.
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise ValueError(f"not YAML ({type(error).__name__})") from error


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file atomically and durably; its folder is created.

    Yields:
        Hidden temporary path next to `path`. It replaces `path` when the block ends, and is deleted
        if the block raises.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Random, since process ids may collide between machines that share a disk, and short, since the
    # name of `path` may have the maximum length.
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())  # or the file could be empty after a power failure
        os.replace(temporary, path)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
            error.filename2 = None
        raise
    finally:
        with suppress(OSError):  # it has been renamed, or the error above matters more
            temporary.unlink()


def write_all(texts: Mapping[Path, str]) -> None:
    """Write text files in UTF-8, and rename them only after the last one is written."""
    with ExitStack() as stack:
        for path, text in texts.items():
            stack.enter_context(atomic_write(path)).write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with regular_file(path).open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def file_lock(path: Path, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Lock `path` against other processes, and wait if one of them holds it.

    On a file system without locks, it prints a message and does not lock.

    Args:
        path: file or folder, which need not exist. The lock is a hidden file next to it, removed on
            release; its folder is created.
        waiting: called before waiting, with the description of the process that holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.name}.lock")
    lock = FileLock(file, fallback_to_soft=False)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if waiting:
                owner = ""
                with suppress(FileNotFoundError):  # just released
                    owner = file.read_text(encoding="utf-8")
                waiting(owner or "another process")
            lock.acquire()
        file.write_text(f"process {os.getpid()} on {os.uname().nodename}", encoding="utf-8")
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        what = "this file system does not support locks"
        log(f"{path.parent}: {what}; start each command only once at a time")
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):  # a file without a process that holds it locks nothing
                file.unlink()
            lock.release()
