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
    """Load a pre-trained backbone or a fine-tuned network, for `stream` and `.step`; see `tespec.inference`."""
    from tespec.inference import load_network

    return load_network(path, height=height, width=width)


def stream(
    recording: str | Path,
    network: str | Path | Backbone | Network,
    *,
    height: int | None = None,
    width: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Yield a backbone's features, or predictions, and the state for each time window; see `tespec.inference`.

    Args:
        recording: file or folder of events, from any sensor.
        network: result of `load`, or a path that `load` accepts.
        height: sensor height in px, if the recording does not store it.
        width: sensor width in px, if the recording does not store it.
    """
    from tespec.inference import stream as play

    return play(recording, network, height=height, width=width)


def results(folder: str | Path | None = None) -> pandas.DataFrame:
    """Read all records of a results folder into a tidy DataFrame; see `tespec.comparison.frame.results`."""
    from tespec.comparison.frame import results as read_results

    return read_results(folder)
