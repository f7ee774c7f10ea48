"""MVSEC: files side by side or in a folder for each place, contiguous or compressed events."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py

EVENTS = "davis/left/events"


def compressed(root: Path) -> None:
    """Events in chunks, compressed by gzip."""
    for path in root.glob("*_data.hdf5"):
        with h5py.File(path, "a") as file:
            events = file[EVENTS][:]
            del file[EVENTS]
            file.create_dataset(EVENTS, data=events, chunks=(1 << 12, 4), compression="gzip", track_times=False)


def folders(root: Path) -> None:
    """A folder for the days and one for the nights, as the downloads are sorted."""
    for path in list(root.glob("outdoor_*.hdf5")):
        folder = root / ("outdoor_day" if "day" in path.name else "outdoor_night")
        folder.mkdir(exist_ok=True)
        shutil.move(path, folder / path.name)


LAYOUTS: dict[str, Callable[[Path], None]] = {"hdf5": lambda root: None, "compressed": compressed, "folders": folders}
