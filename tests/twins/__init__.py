"""Broken twins: what goes wrong with real downloads, done on purpose to a copy."""

from __future__ import annotations

from pathlib import Path

from tespec.core.errors import UserError
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
    """Break a twin in place.

    Args:
        root: folder of the dataset.
        dataset: its key.
        way: a key of `WAYS[dataset]`.

    Returns:
        What was done, and what is to be expected.

    Raises:
        UserError: there is no such way.
    """
    known = WAYS.get(dataset, {})
    if way not in known:
        raise UserError(f"way {way!r} to break {dataset}", "no such way", f"choose from {', '.join(known)}")
    known[way].spoil(root)
    return known[way]
