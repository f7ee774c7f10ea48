"""Where the recordings of a Prophesee dataset lie, in each of the layouts in which it is passed on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tespec.datasets.base import SPLITS
from tespec.datasets.prophesee.archive import LABELS, REPRESENTATIONS
from tespec.datasets.sources import STORE
from tespec.errors import UserError

DAT, H5, ARCHIVE = "Prophesee .dat", "RVT's intermediate .h5", "RVT's preprocessed archive"
BOXES = "_bbox.npy"
# What event files end with, by layout; each may have been replaced by its packed store.
ENDINGS = {"_td.dat": DAT, "_td.dat.h5": H5, "_td.h5": H5}


def find_root(root: Path) -> Path:
    """The folder that holds train, val and test: `root`, or the only one in it that does.

    Raises:
        UserError: there is none, or more than one.
    """
    if any((root / split).is_dir() for split in SPLITS):
        return root
    inside = [path for path in sorted(root.iterdir()) if any((path / split).is_dir() for split in SPLITS)]
    if len(inside) != 1:
        found = "none" if not inside else f"{len(inside)} folders in it do"
        what = f"holds no folders {', '.join(SPLITS)} ({found})"
        raise UserError(root, what, "give the folder that holds them")
    return inside[0]


def find_recordings(folder: Path) -> dict[str, tuple[Path, str]]:
    """Event file, or folder of an archive, and layout of each recording of a split, by name, in order.

    A folder that has the histograms of an archive, or the labels, counts as a recording: that the other is missing is
    said when it is opened, instead of it being passed over.

    Raises:
        UserError: a recording is there twice.
    """
    found: dict[str, tuple[Path, str]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        for name, event_file, layout in _recording(path):
            if name in found and found[name][0] != event_file:
                raise UserError(event_file, f"is there as {found[name][0].name} as well", "keep one of them")
            found[name] = (event_file, layout)
    return dict(sorted(found.items()))


def labels_without_events(folder: Path, names: Collection[str]) -> list[Path]:
    """Files of boxes in the folder of a split that belong to none of the recordings `names`, in order."""
    return [path for path in sorted(folder.glob(f"*{BOXES}")) if path.name.removesuffix(BOXES) not in names]


def _recording(path: Path) -> list[tuple[str, Path, str]]:
    if (path / REPRESENTATIONS).is_dir() or (path / LABELS).is_file():
        return [(path.name, path, ARCHIVE)]
    packed = path.is_dir() and path.name.endswith(STORE)
    file = path.with_name(path.name.removesuffix(STORE)) if packed else path
    if not packed and not path.is_file():
        return []
    endings = [ending for ending in ENDINGS if file.name.endswith(ending)]
    return [(file.name.removesuffix(ending), file, ENDINGS[ending]) for ending in endings]
