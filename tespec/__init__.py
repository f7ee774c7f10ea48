"""Benchmark harness for self-supervised pre-training on event cameras."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas
    from torch import nn

__version__ = "0.1.0"


def load(path: str | Path, *, height: int | None = None, width: int | None = None) -> nn.Module:
    """Pre-trained backbone, or a task's network, ready for `.step(histogram, state)`; see `tespec.inference.load`."""
    from tespec.inference.load import load_network

    return load_network(path, height=height, width=width)


def results(folder: str | Path | None = None) -> pandas.DataFrame:
    """All records of a results folder as a tidy DataFrame; see `tespec.comparison.frame.results`."""
    from tespec.comparison.frame import results as read_results

    return read_results(folder)
