"""Registries of methods, tasks, backbones, models and data sets.

This repository, installed packages and files given to `--import` fill them.
"""

import ast
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry
from pydantic import ValidationError

from tespec.core.errors import UserError
from tespec.core.paths import PACKAGES, REPOSITORY

ENTRY_POINTS = "tespec.methods"
# folders of the standard library and of installed packages
INSTALLED = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
PLUGIN = "tespec_plugin_"  # prefix of the module name of a file given to --import

METHODS = Registry("method", scope="tespec")
TASKS = Registry("task", scope="tespec")
BACKBONES = Registry("backbone", scope="tespec")
MODELS = Registry("model", parent=ROOT_MODELS, scope="tespec")
DATASETS = Registry("dataset", parent=ROOT_DATASETS, scope="tespec")


def import_modules(package: str) -> None:
    """Import every module directly inside a package, which registers its classes."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.ispkg:
            importlib.import_module(f"{package}.{module.name}")


def find_registered(registry: Registry, name: str, setting: str) -> Any:
    """Return the class registered under a name.

    Args:
        registry: of one kind of class.
        name: value of the setting.
        setting: name of the setting, for the message.

    Raises:
        UserError: if the name is unknown; lists the known ones.
    """
    # Registry.get imports modules named by dotted names, and `name` may come from an untrusted
    # file.
    if name not in registry.module_dict:
        names = ", ".join(sorted(registry.module_dict))
        raise UserError(setting, f"unknown {registry.name} {name!r}", f"choose from {names}")
    return registry.module_dict[name]


def register_methods(files: Sequence[Path] = ()) -> None:
    """Register all methods: those of this repository, of entry points, and of the given files."""
    _register_installed()
    import_files(files)


def pretrained_methods() -> list[str]:
    """Names of the registered methods that have a pre-training recipe."""
    register_methods()
    return sorted(name for name, method in METHODS.module_dict.items() if method.recipe is not None)


def shipped_methods() -> list[str]:
    """Names of this repository's methods, without importing torch; [] if packages add others."""
    return [] if entry_points(group=ENTRY_POINTS) else sorted(_shipped_modules())


def _shipped_modules() -> dict[str, str]:
    packages = map(importlib.import_module, ("tespec.pretraining", "baselines"))
    return {name: module for package in packages for name, module in package.MODULES.items()}


@cache
def _register_installed() -> None:
    for module in _shipped_modules().values():
        importlib.import_module(module)
    for entry in entry_points(group=ENTRY_POINTS):
        with _named_errors(f"entry point {entry.name}"):
            entry.load()


def import_files(files: Sequence[Path]) -> None:
    """Import Python files outside any package, which runs their code.

    A file becomes the module `PLUGIN` + the file's stem + a hash of its path.

    Raises:
        UserError: names the file, line and type of an error.
    """
    for file in files:
        if file.suffix != ".py" or not file.is_file():
            raise UserError(file, "not an existing .py file", "check the path given to --import")
        digest = hashlib.sha256(os.fsencode(file.absolute())).hexdigest()
        name = f"{PLUGIN}{file.stem}_{digest[:8]}"
        spec: Any = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look up their module here
        try:
            with _named_errors(file):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise


def is_user_code(file: str) -> bool:
    """Whether a file of a traceback belongs to the user, not to the harness or its packages."""
    shipped = (*INSTALLED, *(f"{REPOSITORY / package}/" for package in PACKAGES))
    return Path(file).is_file() and not file.startswith(shipped)


def source_files(module: str) -> set[Path]:
    """Find the source of an imported module and of the modules that it imports.

    Sources of this package, of the standard library and, unless `module` is one, of installed
    packages are left out.

    Args:
        module: name in `sys.modules`.
    """
    files: set[Path] = set()
    names = [module]
    while names:
        name = names.pop()
        source = getattr(sys.modules.get(name), "__file__", None)
        is_installed = source and source.startswith(INSTALLED) and name != module
        if not source or is_installed or name.partition(".")[0] in PACKAGES:
            continue
        path = Path(source)
        if path.suffix == ".py" and path not in files:
            files.add(path)
            names += _imported(path, sys.modules[name].__package__ or "")
    return files


def _imported(path: Path, package: str) -> Iterator[str]:
    """Names of the modules that a source imports anywhere, and of their packages' members."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            name = ".".join(filter(None, [base, node.module]))
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def _reason(error: BaseException) -> str:
    """Describe an error in one line, without the file and the line, which are named before."""
    if isinstance(error, ValidationError):
        return f"{error.title}: " + ", ".join(
            f"{'.'.join(map(str, part['loc']))}: {part['msg']}"
            for part in error.errors(include_url=False)
        )
    return error.msg if isinstance(error, SyntaxError) else str(error)


@contextmanager
def _named_errors(source: str | Path) -> Iterator[None]:
    """Raise an error of the imported code as a `UserError` with the line and type of the error."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [(frame.filename, frame.lineno) for frame in frames]
        if isinstance(error, SyntaxError):
            lines.append((str(error.filename), error.lineno))
        where = str(source)
        for file, line in lines:
            if is_user_code(file):
                where = f"{source if Path(file) == Path(source).absolute() else file}:{line}"
        raise UserError(
            where, f"cannot be imported ({type(error).__name__}: {_reason(error)})", "fix the file"
        ) from error
