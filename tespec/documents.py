"""Reads JSON and YAML that others wrote: plain values, of a size and depth that no hand and no run exceeds."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
