"""Benchmark harness for self-supervised pre-training on event cameras."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tespec.comparison.frame import results
    from tespec.inference import load, stream

__all__ = ["load", "results", "stream"]
__version__ = "0.1.0"

MODULES = {
    "load": "tespec.inference",
    "stream": "tespec.inference",
    "results": "tespec.comparison.frame",
}


def __getattr__(name: str) -> Any:
    # Imported when used: torch and pandas take seconds.
    if name not in MODULES:
        raise AttributeError(f"module 'tespec' has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)
