"""Finds what registers itself: a new method, task or data set is a new file in its folder, and no edit elsewhere."""

from __future__ import annotations

import importlib
import pkgutil


def import_modules(package: str) -> None:
    """Import every module that lies directly in a package, so that it registers what it holds."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.ispkg:
            importlib.import_module(f"{package}.{module.name}")
