"""Broken twins: what goes wrong with real downloads, done on purpose to a copy of the sample world."""

from __future__ import annotations

from pathlib import Path

from twins import ddd17, dsec, mvsec, prophesee
from twins.files import Way

WAYS: dict[str, dict[str, Way]] = {
    "ddd17": ddd17.WAYS,
    "dsec": dsec.WAYS,
    "gen1": prophesee.WAYS,
    "1mpx": prophesee.WAYS,
    "mvsec": mvsec.WAYS,
}


def damage(root: Path, dataset: str, way: str) -> Way:
    """Break the twin in folder `root`; says what was done and what is to be expected."""
    done = WAYS[dataset][way]
    done.spoil(root)
    return done
