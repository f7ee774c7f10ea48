"""Benchmark harness for self-supervised pre-training on event cameras."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tespec.models import EventSwin

__version__ = "0.1.0"


def load(path: str | Path, *, height: int | None = None, width: int | None = None) -> EventSwin:
    """Pre-trained backbone ready for `.step(histogram, state)`; see `tespec.weights.load.load`."""
    from tespec.weights.load import load as load_weights

    return load_weights(path, height=height, width=width)
