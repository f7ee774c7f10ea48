"""File utilities: read JSON and YAML, write files atomically, lock files between processes."""

import errno
import hashlib
import json
import os
import re
import resource
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import yaml
from filelock import FileLock, Timeout
from yaml.constructor import ConstructorError

from tespec.core.progress import log

# the last one by values that are nested too deeply
UNREADABLE = (OSError, ValueError, RecursionError)
ALLOWED_FILES, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1: without limit
# Number of files that a cache of open files may hold: a quarter of those that the system allows.
OPEN_FILES = (min(1024, ALLOWED_FILES) if ALLOWED_FILES > 0 else 1024) // 4
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # no locks, as on some NFS


MAX_VALUES = 100_000  # of YAML, with those that aliases repeat

# Scalars of YAML 1.2's core schema, section 10.3.2: tag, first characters and pattern.
_SCALARS = (
    ("null", ("~", "n", "N", ""), r"~|null|Null|NULL|"),
    ("bool", "tTfF", r"true|True|TRUE|false|False|FALSE"),
    ("int", "-+0123456789", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    ("float", "-+.0123456789", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"),
    ("float", "-+.", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
)
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Loader of YAML 1.2: 010 is 10; yes, 12:00:00 and 1_000 are text; keys are unique."""

    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(_TAG + kind for kind in ("null", "bool", "float", "str", "seq", "map")))
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in mapping:
                problem = f"the key {key!r} is repeated"
                raise ConstructorError(problem=problem, problem_mark=key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping

    def construct_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)


_Loader.yaml_implicit_resolvers = {}
_Loader.add_constructor(_TAG + "int", _Loader.construct_int)
for _kind, _first, _pattern in _SCALARS:
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), list(_first))


def regular_file(path: Path) -> Path:
    """Return `path`; raise an `OSError` for a pipe, socket or device, which could block."""
    if not (path.is_file() or path.is_dir()) and path.exists():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def existing_parent(path: Path) -> Path:
    """Nearest path at or above this one that exists."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def read_json(path: Path) -> Any:
    """Parse a JSON file in UTF-8; one that cannot be read raises an error of `UNREADABLE`."""
    return parse_json(regular_file(path).read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """Parse JSON text; other text, or a repeated key, raises an error of `UNREADABLE`."""
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} is repeated")
    return mapping


def read_yaml(path: Path) -> Any:
    """Parse a YAML file in UTF-8; one that cannot be read raises an error of `UNREADABLE`."""
    return parse_yaml(regular_file(path).read_text(encoding="utf-8"))


def parse_yaml(text: str) -> Any:
    """Parse YAML 1.2 text into plain Python types; other text raises an error of `UNREADABLE`.

    >>> parse_yaml("{peak_lr: 1e-3, steps: 0500, time: 12:00:00}")
    {'peak_lr': 0.001, 'steps': 500, 'time': '12:00:00'}
    """
    try:
        value = yaml.load(text, _Loader)
    # Values that do not match their standard tag, such as !!int, raise these other exceptions.
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or f"not YAML ({type(error).__name__})"
        raise ValueError(f"line {mark.line + 1}: {problem}" if mark else problem) from error
    values = [value]
    for part in values:
        if isinstance(part, dict):
            values += part.values()
        elif isinstance(part, list):
            values += part
        if len(values) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values, with those that aliases repeat")
    return value


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


def sha256_of(*paths: Path) -> str:
    """Compute the SHA-256 of a file, or of concatenated files, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with regular_file(path).open("rb") as file:
            while block := file.read(1 << 20):
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
        log(
            f"{path.parent}: this file system does not support locks; start each command only once "
            "at a time"
        )
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):  # a file without a process that holds it locks nothing
                file.unlink()
            lock.release()
