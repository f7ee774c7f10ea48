"""Weights in the naming of whoever published them, renamed to ours; one file per source, recognised by content."""

from __future__ import annotations

from tespec.weights.convert.recognise import SOURCES, convert, recognised
from tespec.weights.convert.source import Converted, Source

__all__ = ["SOURCES", "Converted", "Source", "convert", "recognised"]
