"""Open recordings of any format, recognised by suffix or content."""

import os
from pathlib import Path
from typing import Protocol

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.files import cache_path, is_of, is_recorded
from tespec.events.packing import load
from tespec.events.readers import Reader, aedat4, arrays, dat, ddd17, dsec, mvsec, ncaltech, raw, resolve_size, text
from tespec.events.readers.hdf5 import COLUMNS, SUFFIXES, holds
from tespec.events.store import HEADER, PackedEvents, open_store, store_of


class Format(Protocol):
    """A kind of file or folder with events: a module of `tespec.events.readers`, or an object of one's own."""

    def reads(self, path: Path, /) -> bool:
        """Whether a file or folder is of this kind, judging by its name and by the names inside it."""

    def open_recording(self, path: Path, sensor: Size | None, default: Size | None, /) -> Reader:
        """Open a file or folder for which `reads` is true; for the sizes, see `tespec.events.readers.resolve_size`."""


# In order: the first that reads a path opens it. Formats of one's own come first (`FORMATS.insert(0, ...)`).
FORMATS: list[Format] = [dat, raw, aedat4, arrays, text, ncaltech, ddd17, dsec, mvsec]
FILES = (".dat", ".raw", ".aedat4", ".npz")  # suffixes of the formats that are recognised by suffix
PROPHESEE = "CD/events"  # in HDF5 files of Prophesee's own codec


class NotPacked(UserError):
    """Raised for a readable recording that has no packed store."""


def format_of(path: Path) -> Format | None:
    """Return the format of a file or folder, or None."""
    return next((each for each in FORMATS if each.reads(path)), None)


def has_columns(path: Path) -> bool:
    """Whether an HDF5 file has columns of events, whose units are unknown, or events of Prophesee's own codec."""
    return path.suffix.lower() in SUFFIXES and holds(path, *COLUMNS, PROPHESEE)


def open_events(path: str | Path, sensor: Size | None = None, default: Size | None = None) -> PackedEvents:
    """Open the packed store of a recording: next to it, inside it, or in the cache (`$TESPEC_CACHE/stores`).

    Nothing is written: a recording without a store raises `NotPacked`. `sensor`, (height, width) in px, is for
    recordings that do not name it; for `default`, see `resolve_size`. A recording that is missing or unreadable, or a
    store that does not match it, raises a `UserError`.
    """
    path = Path(path)
    folder = store_of(path)
    if (folder / HEADER).is_file():
        stream = open_store(folder)
        if folder != path and is_recorded(path):
            reader = open_reader(path, sensor, default or (stream.height, stream.width))
            require_same(folder, path, is_of(folder, reader))
        else:
            resolve_size(path, sensor, (stream.height, stream.width))
        return stream
    reader = open_reader(path, sensor, default)
    try:
        return open_store(cache_path(reader))
    except UserError as error:
        remedy = f"pack it (tespec data prepare recordings {path}), or load it into memory with load_events"
        raise NotPacked(path, "is not packed", remedy) from error


def load_events(path: str | Path, sensor: Size | None = None, default: Size | None = None) -> PackedEvents:
    """Load all events of an original recording into memory, 4 bytes each; open a packed store. See `open_events`."""
    path = Path(path)
    if store_of(path) == path:
        return open_events(path, sensor)
    return load(open_reader(path, sensor, default))


def open_reader(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Return the reader of an original recording; see `open_events`."""
    if not (path.is_file() or path.is_dir()):
        raise UserError(path, "no such file or folder", "check the path")
    if not os.access(path, os.R_OK):
        raise UserError(path, "cannot be read (no permission)", "change its permissions")
    if (found := format_of(path)) is not None:
        return found.open_recording(path, sensor, default)
    if path.suffix.lower() in text.SUFFIXES:
        return text.open_recording(path, sensor, default)  # refuses it, with the header to add
    if has_columns(path):
        if holds(path, PROPHESEE):
            what = "is in Prophesee's own HDF5 format, whose codec is not available"
            raise UserError(path, what, "convert it to .raw or .dat")
        what = "is an HDF5 file of events in an unsupported layout (supported: DSEC, MVSEC)"
        raise UserError(path, what, "save x, y, t, p as .npz")
    by_content = (*text.SUFFIXES, ".npy", ".bin", *SUFFIXES)
    remedy = f"give a {', '.join((*FILES, *by_content))} file, a packed store or a recording's folder"
    raise UserError(path, "holds no events in a supported format", remedy)


def require_same(folder: Path, path: Path, same: bool) -> None:
    """Refuse a store that does not match its recording, see `is_of`."""
    if not same:
        what = f"was made from another version of {path.name} or for another sensor size"
        raise UserError(folder, what, "remove the store and prepare the recording again")
