"""Registries of methods, tasks, backbones, models and data sets, filled by this repository, packages and plug-ins."""

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry

from tespec.core.errors import UserError
from tespec.core.paths import BASELINES, PACKAGE

ENTRY_POINTS = "tespec.methods"
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
    """Return the class registered under `name`, the value of `setting`; an unknown name is refused."""
    # Registry.get imports modules named by dotted names, and `name` may come from an untrusted
    # file.
    if name not in registry.module_dict:
        there = ", ".join(sorted(registry.module_dict))
        raise UserError(setting, f"unknown {registry.name} {name!r}", f"choose from {there}")
    return registry.module_dict[name]


def register_methods(files: Sequence[Path] = ()) -> None:
    """Register every method: TESPEC, `baselines/`, entry points of group `tespec.methods`, then the given files."""
    _register_shipped()
    import_files(files)


def pretrained_methods() -> list[str]:
    """Names of the registered methods that have a pre-training recipe."""
    register_methods()
    return sorted(name for name, method in METHODS.module_dict.items() if method.recipe is not None)


def shipped_methods() -> list[str]:
    """Names of this repository's methods, read from its files without importing them; [] if entry points add others."""
    if entry_points(group=ENTRY_POINTS):
        return []
    files = [*BASELINES.glob("*.py"), *(PACKAGE / "pretraining").glob("*.py")]
    found = (
        re.findall(r'^@METHODS\.register_module\(name="(.+)"\)', file.read_text(), re.MULTILINE)
        for file in files
    )
    return sorted(name for names in found for name in names)


@cache
def _register_shipped() -> None:
    """Import the shipped methods and entry points; `baselines` is imported by path, also from a wheel."""
    import_modules("tespec.pretraining")
    if "baselines" not in sys.modules:
        _import("baselines", BASELINES / "__init__.py", [str(BASELINES)])
    import_modules("baselines")
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()


def import_files(files: Sequence[Path]) -> None:
    """Import Python files outside any package, which runs their code, as modules `PLUGIN` + the file's stem."""
    for file in files:
        if file.suffix != ".py" or not file.is_file():
            raise UserError(file, "not an existing .py file", "check the path given to --import")
        try:
            _import(f"{PLUGIN}{file.stem}", file)
        except (ImportError, SyntaxError, NameError, KeyError, AttributeError, TypeError) as error:
            raise UserError(file, f"cannot be imported ({error})", "fix the file") from error


def _import(name: str, file: Path, folders: list[str] | None = None) -> None:
    place = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    assert place
    assert place.loader
    module = importlib.util.module_from_spec(place)
    sys.modules[name] = module  # dataclasses look up their module here
    try:
        place.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
