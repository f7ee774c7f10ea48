"""Opens any recording by what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tespec.core.errors import UserError
from tespec.events.readers.aedat4 import open_aedat4
from tespec.events.readers.ddd17 import EVENTS, TIMES, open_ddd17
from tespec.events.readers.dsec import open_dsec
from tespec.events.readers.hdf5 import open_file, recording_kind
from tespec.events.readers.mvsec import open_mvsec
from tespec.events.readers.prophesee_dat import open_dat
from tespec.events.readers.prophesee_raw import open_raw
from tespec.events.readers.rvt import open_rvt
from tespec.events.readers.sensor import resolve_size
from tespec.events.store import HEADER, open_store
from tespec.events.stream import EventStream

Open = Callable[[Path, int | None, int | None], EventStream]


def open_h5(path: Path, height: int | None = None, width: int | None = None) -> EventStream:
    """Open an HDF5 recording, of DSEC, MVSEC or RVT's preprocessing, by what it holds.

    Raises:
        UserError: it is none of them, or damaged.
    """
    open_file(path)
    kind = recording_kind(path)
    if kind is None:
        what = "holds no events (events/x, y, t, p, or davis/left/events)"
        raise UserError(path, what, "give the recording itself")
    return H5_KINDS[kind](path, height, width)


H5_KINDS: dict[str, Open] = {"dsec": open_dsec, "mvsec": open_mvsec, "rvt": open_rvt}
READERS: dict[str, Open] = {
    ".dat": open_dat,
    ".raw": open_raw,
    ".aedat4": open_aedat4,
    ".h5": open_h5,
    ".hdf5": open_h5,
}


def open_events(path: str | Path, height: int | None = None, width: int | None = None) -> EventStream:
    """Open a recording: `.raw`, `.dat`, `.aedat4`, HDF5 (DSEC, MVSEC, RVT), a packed store, or a DDD17 folder.

    Args:
        path: file or folder.
        height: rows of the sensor in px, for recordings that do not name them; given together with `width`. Where
            neither they nor the recording say it, the nearest `dataset.json` above does.
        width: columns, likewise.

    Raises:
        UserError: the recording is missing, of no known kind, empty, truncated or inconsistent, or of another size.
        ValueError: only one of height and width is given.
    """
    path = Path(path)
    if (height is None) != (width is None):
        raise ValueError("give both height and width, or neither")
    if not path.exists():
        raise UserError(path, "no such file or folder", "check the path")
    if path.is_dir():
        if (path / HEADER).is_file():
            return _open_store(path, height, width)
        if (path / TIMES).is_file() or (path / EVENTS).is_file():
            return open_ddd17(path, height, width)
        raise UserError(
            path,
            "neither a packed store nor a DDD17 recording",
            f"give a recording's own folder, or a file ({', '.join(READERS)})",
        )
    if not path.is_file():
        raise UserError(path, "neither a file nor a folder", "give a recording")
    suffix = path.suffix.lower()
    if suffix not in READERS:
        what = f"no reader for {suffix or 'files without a suffix'!r}"
        raise UserError(path, what, f"give a file of {', '.join(READERS)}")
    return READERS[suffix](path, height, width)


def _open_store(path: Path, height: int | None, width: int | None) -> EventStream:
    stream = open_store(path)
    resolve_size(path, height, width, (stream.height, stream.width))
    return stream
