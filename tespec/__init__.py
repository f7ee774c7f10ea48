"""Benchmark harness for self-supervised pre-training on event cameras."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from tespec.models import Backbone
    from tespec.tasks.base import Network

__version__ = "0.1.0"


def load(path: str | Path, *, height: int | None = None, width: int | None = None) -> Backbone | Network:
    """Pre-trained backbone, or a task's network, for `stream` or `.step(histogram, state)`; see `tespec.inference`."""
    from tespec.inference import load_network

    return load_network(path, height=height, width=width)


def stream(
    recording: str | Path,
    network: str | Path | Backbone | Network,
    *,
    height: int | None = None,
    width: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Features and state of a backbone, or predictions, for each window of a recording; see `tespec.inference`.

    Args:
        recording: file or folder of events, of any sensor.
        network: what `load` gives, or the path it takes.
        height: rows of the sensor in px, for recordings that do not name it.
        width: columns, likewise.
    """
    from tespec.inference import stream as play

    return play(recording, network, height=height, width=width)


def results(folder: str | Path | None = None) -> pandas.DataFrame:
    """All records of a results folder as a tidy DataFrame; see `tespec.comparison.frame.results`."""
    from tespec.comparison.frame import results as read_results

    return read_results(folder)
