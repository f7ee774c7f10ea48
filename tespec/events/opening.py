"""Opens any recording by what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tespec.errors import UserError
from tespec.events.readers.ddd17 import EVENTS, TIMES, open_ddd17
from tespec.events.readers.prophesee_dat import open_dat
from tespec.events.readers.prophesee_raw import open_raw
from tespec.events.store import HEADER, open_store
from tespec.events.stream import EventStream

READERS: dict[str, Callable[[Path, int | None, int | None], EventStream]] = {".dat": open_dat, ".raw": open_raw}


def open_events(path: str | Path, height: int | None = None, width: int | None = None) -> EventStream:
    """Open a recording: Prophesee `.raw` or `.dat`, a packed store, or a recording folder of the DDD17 archive.

    Args:
        path: file or folder.
        height: rows of the sensor in px, for recordings that do not name them; given together with `width`.
        width: columns, likewise.

    Raises:
        UserError: the recording is missing, of no known kind, empty, truncated or inconsistent.
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
            "give a recording's own folder, or a .raw or .dat file",
        )
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise UserError(path, f"no reader for {suffix or 'files without a suffix'!r}", "give a .raw or .dat file")
    return READERS[suffix](path, height, width)


def _open_store(path: Path, height: int | None, width: int | None) -> EventStream:
    stream = open_store(path)
    if height is not None and (stream.height, stream.width) != (height, width):
        raise UserError(
            path, f"its sensor is {stream.width}x{stream.height} px, not {width}x{height}", "leave the size out"
        )
    return stream
