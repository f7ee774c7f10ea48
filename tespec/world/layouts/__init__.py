"""One file per dataset: how a film of a street is written, and the other layouts in which the dataset is passed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tespec.core.errors import UserError
from tespec.world.contents import Take
from tespec.world.layouts import ddd17, dsec, mvsec, objects, prophesee
from tespec.world.street import Film

WRITERS: dict[str, Callable[[Film, Path, Take], None]] = {
    "ddd17": ddd17.write,
    "gen1": prophesee.write,
    "1mpx": prophesee.write,
    "dsec": dsec.write,
    "mvsec": mvsec.write,
    "objects": objects.write,
}
LAYOUTS: dict[str, dict[str, Callable[[Path], None]]] = {
    "ddd17": ddd17.LAYOUTS,
    "dsec": dsec.LAYOUTS,
    "gen1": prophesee.LAYOUTS | prophesee.GEN1_LAYOUTS,
    "1mpx": prophesee.LAYOUTS | prophesee.ONE_MPX_LAYOUTS,
    "mvsec": mvsec.LAYOUTS,
}
# Time of the first frame by each recording's clock, in us.
STARTS = {"ddd17": 0, "gen1": 0, "1mpx": 0, "dsec": dsec.OFFSET_US, "mvsec": mvsec.EPOCH_US}
SPEEDS_BESIDE = ("gen1", "1mpx", "dsec", "mvsec")


def write_recording(film: Film, root: Path, take: Take) -> None:
    """Write one recording into the folder of its dataset, in that dataset's layout.

    By the camera's speed driving and standing can be scored apart: `ego_speed/<name>.npy`, float64 (N, 2), holds the
    time in us by the recording's clock and the speed in m/s.
    """
    moments: list[tuple[int, float]] = []

    def watched() -> Film:
        for frame, events in film:
            moments.append((STARTS.get(take.dataset, 0) + frame.time_us, frame.ego_speed))
            yield frame, events

    WRITERS[take.dataset](watched(), root, take)
    if take.dataset in SPEEDS_BESIDE:
        (root / "ego_speed").mkdir(exist_ok=True)
        np.save(root / "ego_speed" / f"{take.name}.npy", np.array(moments, np.float64))


def relayout(root: Path, dataset: str, layout: str) -> None:
    """Bring a dataset of the world, as its writer leaves it, into another layout, in place.

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
