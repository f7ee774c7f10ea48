"""The recordings of a twin in the other layouts in which its dataset is passed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tespec.core.errors import UserError
from tespec.world.layouts import ddd17, dsec, mvsec, prophesee

Relayout = Callable[[Path], None]
LAYOUTS: dict[str, dict[str, Relayout]] = {
    "ddd17": ddd17.LAYOUTS,
    "dsec": dsec.LAYOUTS,
    "gen1": prophesee.LAYOUTS | prophesee.GEN1_LAYOUTS,
    "1mpx": prophesee.LAYOUTS | prophesee.ONE_MPX_LAYOUTS,
    "mvsec": mvsec.LAYOUTS,
}


def relayout(root: Path, dataset: str, layout: str) -> None:
    """Bring a twin, as the writers leave it, into another layout, in place.

    Args:
        root: folder of the dataset.
        dataset: its key.
        layout: a key of `LAYOUTS[dataset]`.

    Raises:
        UserError: there is no such layout.
    """
    known = LAYOUTS.get(dataset, {})
    if layout not in known:
        raise UserError(f"layout {layout!r} of {dataset}", "no such layout", f"choose from {', '.join(known)}")
    known[layout](root)
