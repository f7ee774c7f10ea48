"""Benchmark harness for self-supervised pre-training on event cameras.

Users call three functions; their pages, such as `help(tespec.load)`, have examples:

    load(path)                  a trained backbone or network, from a file
    stream(recording, network)  its output (time in us, output) for each window of a recording
    results(folder)             all measured numbers as one pandas DataFrame

Further parts for programs, each with its page:

    tespec.events.open_events   any event file as arrays x, y, t, p
    tespec.events.event_histogram, tespec.events.intensity.estimate_intensity
    tespec.datasets             Ddd17, Dsec, Gen1, Mvsec, OneMpx: labels and their events
    tespec.models.EventSwin     the recurrent backbone
    tespec.registry             registries of methods, backbones, data sets and tasks

The command `tespec --help` lists the verbs that pre-train, fine-tune and compare.
"""

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


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    # Imported when used: torch and pandas take seconds.
    if name not in MODULES:
        raise AttributeError(f"module 'tespec' has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)
