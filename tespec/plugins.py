"""Imports what registers methods: the repository, installed packages, and files the user names."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from tespec.discovery import import_modules
from tespec.errors import UserError

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
