"""Opens any recording by its content or suffix. Nothing here writes: what is not packed is read whole, or refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tespec.core.errors import UserError
from tespec.core.paths import cache_root
from tespec.events.packing import files_of, is_of, is_recorded, load, quick_hash
from tespec.events.readers import Reader, aedat4, arrays, prophesee, resolve_size
from tespec.events.readers.hdf5 import COLUMNS, SUFFIXES, holds
from tespec.events.store import HEADER, PackedEvents, header_of, open_store, store_of

READERS: dict[str, Callable[[Path, int | None, int | None], Reader]] = {
    ".dat": prophesee.open_dat,
    ".raw": prophesee.open_raw,
    ".aedat4": aedat4.open_aedat4,
    ".npy": arrays.open_arrays,
    ".npz": arrays.open_arrays,
}
NAME_LETTERS = 40  # of a recording, in the name of its store in the cache


class NotPacked(UserError):
    """A recording that can be read, but has no packed store."""


def dataset_of(path: Path) -> Any:
    """The registered data set that reads a file or folder, None if none does."""
    from tespec.registry import DATASETS

    import_module("tespec.datasets")  # registers those of the harness
    return next((kind for kind in DATASETS.module_dict.values() if kind.reads(path)), None)


def in_columns(path: Path) -> bool:
    """Whether an HDF5 file has columns of events, which without a known layout are in unknown units."""
    return path.suffix.lower() in SUFFIXES and holds(path, *COLUMNS)


def open_events(path: str | Path, height: int | None = None, width: int | None = None) -> PackedEvents:
    """Open the packed store of a recording: the one beside it, or in it, or in the cache (`$TESPEC_CACHE/stores`).

    Height and width of the sensor in px are given together, for recordings that do not name them; where nobody says
    them, the nearest `dataset.json` above does.

    Raises:
        UserError: the recording is missing, of no known kind, empty or inconsistent, not packed (`NotPacked`), of
            another size, or of another version than the store beside it.
        ValueError: only one of height and width is given.
    """
    path = Path(path)
    store = store_of(path)
    if (store / HEADER).is_file():
        made_from = header_of(store)["source"]
        if store != path and is_recorded(path):
            require_same(store, path, is_of(made_from, path))
        stream = open_store(store)
        resolve_size(path, height, width, (stream.height, stream.width))
        return stream
    cached = cache_path(open_reader(path, height, width))
    try:
        return open_store(cached)
    except UserError as error:
        remedy = f"pack it (tespec data prepare recordings {path}), or read it whole with load_events"
        raise NotPacked(path, "is not packed", remedy) from error


def load_events(path: str | Path, height: int | None = None, width: int | None = None) -> PackedEvents:
    """All events of a recording as it was recorded, in memory, 4 bytes each; a packed store is opened.

    See `open_events` for arguments and errors.
    """
    path = Path(path)
    return open_events(path, height, width) if store_of(path) == path else load(open_reader(path, height, width))


def open_reader(path: Path, height: int | None = None, width: int | None = None) -> Reader:
    """The reader of a recording as it was recorded; see `open_events`."""
    if not (path.is_file() or path.is_dir()):
        raise UserError(path, "no such file or folder", "check the path")
    if not os.access(path, os.R_OK):
        raise UserError(path, "cannot be read (no permission)", "change its permissions")
    suffix = path.suffix.lower()
    if path.is_file() and suffix in READERS:
        return READERS[suffix](path, height, width)
    if (dataset := dataset_of(path)) is not None:
        return dataset.reader(path, height, width)
    if in_columns(path):
        what = "is an HDF5 file of events in no supported layout (DSEC, MVSEC)"
        raise UserError(path, what, "save x, y, t, p as .npz")
    remedy = f"give a file of {', '.join((*READERS, *SUFFIXES))}, a packed store, or a recording's own folder"
    raise UserError(path, "holds no events in a known format", remedy)


def require_same(store: Path, path: Path, same: bool) -> None:
    """Refuse a store that was made from another version of a recording."""
    if not same:
        what = f"was made from another version of {path.name} than the one beside it"
        raise UserError(store, what, "remove the store and prepare the recording again")


def cache_path(reader: Reader) -> Path:
    """Where the cache has the store of a recording: the same wherever it lies, and another when it has changed.

    The name depends on the sensor, and on name, size, time of change and sampled content of each file.
    """
    state = [[file.stat().st_mtime_ns, quick_hash(file)] for file in files_of(reader.path)]
    digest = hashlib.sha256(json.dumps([reader.width, reader.height, state]).encode()).hexdigest()
    return cache_root() / "stores" / f"{reader.path.name[:NAME_LETTERS]}-{digest[:24]}"
