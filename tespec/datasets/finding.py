"""Finds every recording below a folder, whatever its kind, and knows it by the name that a dataset gives it."""

from __future__ import annotations

from pathlib import Path

from tespec.datasets.prophesee.archive import is_archive
from tespec.datasets.sources import STORE
from tespec.errors import UserError
from tespec.events.opening import READERS
from tespec.events.readers.ddd17 import TIMES
from tespec.events.readers.hdf5 import SUFFIXES, recording_kind
from tespec.events.store import HEADER

ENDINGS = ("_td.dat.h5", "_td.dat", "_td.h5", "_data.hdf5")  # of event files, after the name of the recording


def find_recordings(root: Path) -> list[Path]:
    """Every recording at or under `root`, sorted by path.

    That is what `open_events` reads, and folders of RVT's archives of histograms. A packed store beside the recording
    that it was made from stands for it, under the recording's path. HDF5 files that hold other things are left alone.

    Raises:
        UserError: there is none.
    """
    if not root.exists():
        raise UserError(root, "no such file or folder", "check the path given to --data")
    if root.is_file() or _is_recording(root):
        return [root]
    found: set[Path] = set()
    for path in root.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        if path.is_dir():
            if _is_recording(path):
                found.add(_packed_from(path))
        elif path.suffix.lower() in READERS and (path.suffix.lower() not in SUFFIXES or recording_kind(path)):
            found.add(path)
    if not found:
        kinds = ", ".join((*READERS, "packed store", "DDD17 recording", "RVT's preprocessed archive"))
        raise UserError(root, f"holds no recording ({kinds})", "give another file or folder")
    return sorted(found)


def _is_recording(folder: Path) -> bool:
    return (folder / HEADER).is_file() or (folder / TIMES).is_file() or is_archive(folder)


def _packed_from(folder: Path) -> Path:
    """The recording that a packed store lies beside; the folder itself where it is none, or lies alone."""
    if not folder.name.endswith(STORE) or not (folder / HEADER).is_file():
        return folder
    name = folder.name.removesuffix(STORE)
    return folder.parent if name == "events" else folder.with_name(name)


def names_of(path: Path) -> set[str]:
    """What a dataset's splits may call a recording at `path` below it: its file, or a folder it lies in."""
    without = {path.name.removesuffix(ending) for ending in ENDINGS}
    return {*path.parts, path.stem, *without}
