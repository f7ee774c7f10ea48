"""DDD17: zipped or extracted masks, times in us, recordings below `data`."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

NANOSECONDS = 1000  # per microsecond


def _recordings(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("dir*") if path.is_dir())


def extracted(root: Path) -> None:
    """Masks in a folder instead of a zip archive."""
    for folder in _recordings(root):
        with zipfile.ZipFile(folder / "segmentation_masks.zip") as archive:
            archive.extractall(folder)
        (folder / "segmentation_masks.zip").unlink()


def microseconds(root: Path) -> None:
    """Times in us instead of ns."""
    for folder in _recordings(root):
        times = np.fromfile(folder / "events.dat.t", "<i8")
        (times // NANOSECONDS).astype("<i8").tofile(folder / "events.dat.t")
        for path in (folder / "index").iterdir():
            index = np.load(path)
            index[:, 0] //= NANOSECONDS
            np.save(path, index)


def outer(root: Path) -> None:
    """Recordings below `data`, as the archive unpacks."""
    (root / "data").mkdir()
    for folder in _recordings(root):
        shutil.move(folder, root / "data" / folder.name)
    shutil.copy(root / "dataset.json", root / "data")


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "zip": lambda root: None,
    "folder": extracted,
    "us": microseconds,
    "outer": outer,
}
