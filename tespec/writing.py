"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path


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
