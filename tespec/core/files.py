"""Files: JSON and YAML as plain values; files written whole; locks between processes."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

UNREADABLE = (OSError, ValueError, RecursionError)


def read_json(path: Path) -> Any:
    """Values of a JSON file in UTF-8.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def read_yaml(path: Path) -> Any:
    """Values of a YAML file in UTF-8; see `parse_yaml`.

    Raises:
        OSError: the file cannot be read.
    """
    return parse_yaml(path.read_text(encoding="utf-8"))


def parse_yaml(text: str) -> Any:
    """Values of a YAML text, in plain types.

    Raises:
        ValueError: it is no such text.
        RecursionError: it is nested too deep.
    """
    try:
        return yaml.safe_load(text)
    # Values that a standard tag promises and the text does not hold raise whatever reading them does.
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise ValueError(f"not YAML ({type(error).__name__})") from error


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


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write_whole(path: Path, text: str) -> Path:
    """Write a text file in UTF-8 in one step, and return its path."""
    write_all({path: text})
    return path


@contextmanager
def one_at_a_time(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold `path` against other processes in this block, after waiting for its holder; before that, call `waiting`.

    The hidden lock file beside `path`, whose folder is made, goes with the last holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if waiting is not None:
            waiting()
        lock.acquire()
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
