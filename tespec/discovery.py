"""Finds what registers itself: a new method, task or data set is a new file in its folder, and no edit elsewhere."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from mmengine.registry import Registry

from tespec.errors import UserError


def import_modules(package: str) -> None:
    """Import every module that lies directly in a package, so that it registers what it holds."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.ispkg:
            importlib.import_module(f"{package}.{module.name}")


def find_registered(registry: Registry, name: str, setting: str) -> Any:
    """What is registered under `name`, the value of a setting.

    Raises:
        UserError: nothing is; the message names what there is.
    """
    # Registry.get would import what a dotted name leads to, and the name may be a stranger's.
    kind = registry.module_dict.get(name)
    if kind is None:
        there = ", ".join(sorted(registry.module_dict))
        raise UserError(setting, f"unknown {registry.name} {name!r}", f"choose from {there}")
    return kind
