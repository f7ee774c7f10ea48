"""Open recordings of any format, recognised by suffix or content."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Size
from tespec.events.cache import cached_store, free_space
from tespec.events.files import has_original_files, matches_recording
from tespec.events.packing import pack, pack_in_memory
from tespec.events.readers import (
    Reader,
    aedat4,
    arrays,
    columns,
    dat,
    ddd17,
    ecf,
    ncaltech,
    raw,
    resolve_size,
    rosbag,
    text,
)
from tespec.events.readers.hdf5 import SUFFIXES
from tespec.events.store import HEADER, PackedEvents, open_store, store_of


class Format(Protocol):
    """A kind of file or folder with events: a module of `tespec.events.readers`, or an object."""

    def reads(self, path: Path, /) -> bool:
        """Whether a file or folder is of this kind, by its name and the names inside it."""

    def open_recording(self, path: Path, sensor: Size | None, default: Size | None, /) -> Reader:
        """Open a file or folder for which `reads` is true.

        Args:
            path: the file or folder.
            sensor: (height, width) in px given by the user.
            default: (height, width) in px if nothing else names it, see
                `tespec.events.readers.resolve_size`.
        """


# In order: the first that reads a path opens it. Custom formats come first (`FORMATS.insert(0,
# ...)`).
FORMATS: list[Format] = [
    dat,
    raw,
    aedat4,
    arrays,
    text,
    ncaltech,
    ddd17,
    ecf,
    columns,
    rosbag,
]
# suffixes of the formats that are recognised by suffix
FILES = (".dat", ".raw", ".aedat4", ".npz", ".bag")
IN_MEMORY = 1 << 24  # events, 64 MB: a recording with more is packed into the cache


def format_of(path: Path) -> Format | None:
    """Return the format of a file or folder, or None."""
    return next((kind for kind in FORMATS if kind.reads(path)), None)


def open_events(
    path: str | Path, sensor: Size | None = None, default: Size | None = None
) -> PackedEvents:
    """Open a recording of any supported format, packed or not.

    A packed store is memory-mapped: the one next to the file, inside the folder, or in the cache.
    Without one, a small recording is read into memory, 4 bytes an event; a larger one is packed
    into the cache, with a progress bar.

    Args:
        path: file or folder of a recording, or a packed store. The recording itself may be missing
            if its store exists.
        sensor: (height, width) in px, for recordings that do not name it.
        default: (height, width) in px if nothing else names it, see
            `tespec.events.readers.resolve_size`.

    Raises:
        UserError: the recording is missing or unreadable, or its store does not match it or cannot
            be written.

    Example:
        >>> recording = open_events("tests/data/davis.aedat4")
        >>> recording.width, recording.height, recording.count
        (346, 260, 117667)
        >>> x, y, t, p = recording.slice(recording.t_first, recording.t_first + 1000)
    """
    recording = find_events(Path(path), sensor, default)
    if isinstance(recording, PackedEvents):
        return recording
    if recording.events <= IN_MEMORY:
        return pack_in_memory(recording)
    store = cached_store(recording)
    free_space(recording.events)
    with progress(f"packing {recording.path.name} into {store.parent}", "events") as advance:
        pack(recording, store, lambda done, total: advance(done, total, ""))
    return open_store(store)


def find_events(
    path: Path, sensor: Size | None = None, default: Size | None = None
) -> PackedEvents | Reader:
    """Open the packed store of a recording, or return its reader if it has none.

    Args:
        path: file or folder of a recording, or a packed store.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it.
    """
    folder = store_of(path)
    if not (folder / HEADER).is_file():
        reader = open_reader(path, sensor, default)
        with suppress(UserError):  # no store in the cache, or a damaged one
            return open_store(cached_store(reader))
        return reader
    stream = open_store(folder)
    size = stream.height, stream.width
    if folder == path or not has_original_files(path):
        resolve_size(path, sensor, size)
    else:
        require_match(
            folder, path, matches_recording(folder, open_reader(path, sensor, default or size))
        )
    return stream


def open_reader(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Return the reader of an original recording.

    Args:
        path: file or folder of the recording.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it.

    Raises:
        UserError: the path does not exist, cannot be read, or is no recording.
    """
    require_file_or_folder(path)
    if not os.access(path, os.R_OK):
        raise UserError(path, "cannot be read (no permission)", "change its permissions")
    kind = format_of(path)
    if kind is not None:
        return kind.open_recording(path, sensor, default)
    if path.is_file() and path.suffix.lower() in text.SUFFIXES:
        return text.open_recording(path, sensor, default)  # refuses it, with the header to add
    by_content = (*text.SUFFIXES, ".npy", ".bin", *SUFFIXES)
    raise UserError(
        path,
        "holds no events in a supported format",
        f"give a {', '.join((*FILES, *by_content))} file, a packed store or a recording's folder",
    )


def require_file_or_folder(path: Path) -> None:
    """Refuse a path that does not exist, or is a pipe, socket or device."""
    if not (path.is_file() or path.is_dir()):
        what = "not a regular file" if path.exists() else "no such file or folder"
        raise UserError(path, what, "check the path")


def require_match(folder: Path, path: Path, same: bool) -> None:
    """Refuse a store that does not match its recording.

    Args:
        folder: the store.
        path: the recording.
        same: whether they match, see `matches_recording`.
    """
    if not same:
        raise UserError(
            folder,
            f"was made from another version of {path.name} or for another sensor size",
            "remove the store and prepare the recording again",
        )
