"""Files: JSON and YAML that others wrote, read as plain values; files written whole; and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import yaml

LARGEST = 1 << 24  # bytes; a value may take twenty times its text in memory
LARGEST_YAML = 1 << 20  # bytes; it is read by Python code, a MB in seconds
LONGEST_NUMBER = 1000  # letters
UNREADABLE = (OSError, ValueError, RecursionError)


def read_json(path: Path, **hooks: Callable[[str], Any]) -> Any:
    """Values of a JSON file in UTF-8.

    Args:
        path: of the file.
        hooks: of `json.loads`.

    Raises:
        OSError: the file cannot be read, or is none.
        ValueError: it is no JSON, or larger than 16 MB.
        RecursionError: it is nested too deep.
    """
    return json.loads(_text(path, LARGEST), **hooks)  # type: ignore[arg-type]  # hooks of one type, options of many


def read_yaml(path: Path) -> Any:
    """Values of a YAML file in UTF-8; see `parse_yaml`.

    Raises:
        OSError: the file cannot be read, or is none.
        ValueError: it is no YAML, or larger than 1 MB.
        RecursionError: it is nested too deep.
    """
    return parse_yaml(_text(path, LARGEST_YAML))


def parse_yaml(text: str) -> Any:
    """Values of a YAML text. No tags, and no aliases: a few lines of them stand for more values than fit any memory.

    Raises:
        ValueError: it is no such text.
        RecursionError: it is nested too deep.
    """
    try:
        return yaml.load(text, _Loader)
    # Values that a standard tag promises and the text does not hold raise whatever reading them does.
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise ValueError(f"not YAML ({type(error).__name__})") from error


class _Loader(yaml.SafeLoader):
    """PyYAML's, without aliases."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    # Python shows no number of many thousand digits, and takes its time to read one in base 60.
    if len(node.value) > LONGEST_NUMBER:
        raise yaml.YAMLError("a number without end")
    return int(loader.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def _text(path: Path, largest: int) -> str:
    # Opened without waiting: a pipe in a file's place would never answer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("no regular file")
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"larger than {largest:,} bytes")
    return content.decode("utf-8")


NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems that have none
HELD = (errno.EAGAIN, errno.EACCES)  # by another process


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
def one_at_a_time(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold `path` against other processes in this block, after waiting for the one that holds it.

    `waiting` is called before that.

    The hidden file beside `path` that is locked, whose folder is made, goes with the last holder.
    """
    place = path.with_name(f".{path.name}.lock")
    lock = take_lock(place, wait=False)
    if lock is None:
        if waiting is not None:
            waiting()
        lock = take_lock(place, wait=True)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        os.close(lock)


@overload
def take_lock(place: Path, *, wait: Literal[True]) -> int: ...
@overload
def take_lock(place: Path, *, wait: bool) -> int | None: ...
def take_lock(place: Path, *, wait: bool) -> int | None:
    """Descriptor of a lock file, whose folder is made, that this process holds now; None where another one does.

    Closing it frees the lock, and the system does where the holder ends, however it ends. Where the file system has no
    locks, nothing is held.

    Args:
        place: the lock file.
        wait: for the process that holds it.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Not flock: worker processes would inherit it, and outlive a killed holder by some seconds.
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(file)
                if error.errno in HELD:
                    return None
                raise
        if _is_at(file, place):
            return file
        os.close(file)  # its holder has removed it meanwhile; others may hold a new one


def _is_at(file: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), place.stat())
    except FileNotFoundError:
        return False
