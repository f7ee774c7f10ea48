"""Finds methods: those of the repository, of installed packages, and of files the user names."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from tespec.discovery import import_modules
from tespec.errors import UserError
from tespec.method import Method
from tespec.registry import METHODS

ENTRY_POINTS = "tespec.methods"


def register_methods(files: Sequence[Path] = ()) -> None:
    """Register every method: `baselines/`, entry points of group `tespec.methods`, then the given Python files.

    A file is code: it is run as it is imported.

    Raises:
        UserError: a file is missing or cannot be imported.
    """
    import_modules("baselines")
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()
    for file in files:
        _import_file(file)


def _import_file(file: Path) -> None:
    if not file.is_file():
        raise UserError(file, "no such file", "check the path given to --import")
    specification = importlib.util.spec_from_file_location(f"tespec_plugin_{file.stem}", file)
    if specification is None or specification.loader is None:
        raise UserError(file, "not a Python file", "give a file that ends in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    try:
        specification.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError, KeyError, AttributeError, TypeError) as error:
        del sys.modules[module.__name__]
        raise UserError(file, f"cannot be imported ({error})", "mend the file") from error


def find_method(name: str) -> Method:
    """The registered method of that name.

    Raises:
        UserError: there is none; the message names the nearest or all of them.
    """
    kind = METHODS.module_dict.get(name)
    if kind is None:
        close = difflib.get_close_matches(name, list(METHODS.module_dict), n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(sorted(METHODS.module_dict))}"
        raise UserError(f"--method {name}", "unknown method", remedy)
    method: Method = kind()
    if not method.title:
        raise UserError(f"--method {name}", "has no title for its table row", f"give {kind.__name__} a title")
    return method
