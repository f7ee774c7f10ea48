"""Opens any recording by what it is. Nothing here writes: what is not packed is read through, or refused.

What is missing, of no known kind, empty, inconsistent or of another size than given is a `UserError`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from tespec.core.errors import UserError
from tespec.core.paths import cache_root
from tespec.events import readers
from tespec.events.packing import load
from tespec.events.provenance import files_of, is_of, is_recorded, quick_hash
from tespec.events.readers.hdf5 import SUFFIXES
from tespec.events.readers.sensor import resolve_size
from tespec.events.store import HEADER, PackedEvents, header_of, is_complete, open_store, store_of
from tespec.events.stream import Reader

NAME_LETTERS = 40  # of a recording, in the name of its store in the cache
Open = Callable[[Path, int | None, int | None], Reader]


def readers_in(package: ModuleType) -> dict[str, Open]:
    """Opening functions by suffix: `READS` of the modules of a package."""
    modules = (import_module(f"{package.__name__}.{found.name}") for found in iter_modules(package.__path__))
    return {suffix: reader for module in modules for suffix, reader in getattr(module, "READS", {}).items()}


READERS: dict[str, Open] = readers_in(readers)


class NotPacked(UserError):
    """A recording that can be read, but has no packed store."""


def dataset_of(path: Path) -> Any:
    """The registered data set whose own format a file or folder has, None where it has none of theirs."""
    from tespec.core.registry import DATASETS

    import_module("tespec.datasets")  # registers those of the harness
    return next((kind for kind in DATASETS.module_dict.values() if kind.reads(path)), None)


def open_events(path: str | Path, height: int | None = None, width: int | None = None) -> PackedEvents:
    """Open the packed store of a recording: the one beside it, or in it, or in the cache (`$TESPEC_CACHE/stores`).

    Args:
        path: of the recording, or of a store.
        height: rows of the sensor in px, for recordings that do not name them; given together with `width`. Where
            neither they nor the recording say it, the nearest `dataset.json` above does.
        width: columns, likewise.

    Raises:
        UserError: the recording is missing, of no known kind, empty or inconsistent, not packed (`NotPacked`), of
            another size, or of another version than the store beside it.
        ValueError: only one of height and width is given.
    """
    path = Path(path)
    require_both(height, width)
    store = store_of(path)
    if not (store / HEADER).is_file():
        store = cache_path(open_reader(path, height, width))
        if not is_complete(store):
            remedy = f"pack it (benchmarks/data.py prepare recordings {path}), or read it whole with load_events"
            raise NotPacked(path, "is not packed", remedy)
        return open_store(store)
    made_from = header_of(store)["source"]
    if store != path and made_from is not None and is_recorded(path):
        require_same(store, path, is_of(made_from, path))
    stream = open_store(store)
    resolve_size(path, height, width, (stream.height, stream.width))
    return stream


def load_events(path: str | Path, height: int | None = None, width: int | None = None) -> PackedEvents:
    """All events of a recording as it was recorded, in memory, 4 bytes each; a packed store is opened.

    See `open_events` for arguments and errors.
    """
    path = Path(path)
    return open_events(path, height, width) if store_of(path) == path else load(open_reader(path, height, width))


def open_reader(path: Path, height: int | None = None, width: int | None = None) -> Reader:
    """What reads a recording as it was recorded; see `open_events`."""
    require_both(height, width)
    if not path.exists():
        raise UserError(path, "no such file or folder", "check the path")
    suffix = path.suffix.lower()
    if path.is_file() and suffix in READERS:
        return READERS[suffix](path, height, width)
    if (dataset := dataset_of(path)) is not None:
        return dataset.reader(path, height, width)
    if path.is_dir():
        what, remedy = "neither a packed store nor a DDD17 recording", "give a recording's own folder, or a file"
    elif suffix in SUFFIXES:
        what, remedy = "holds no events (events/x, y, t, p, or davis/left/events)", "give the recording itself, a file"
    else:
        what, remedy = f"no reader for {suffix or 'files without a suffix'!r}", "give a file"
    raise UserError(path, what, f"{remedy} of {', '.join((*READERS, *SUFFIXES))}")


def require_both(height: int | None, width: int | None) -> None:
    """Refuse half a size.

    Raises:
        ValueError: only one of height and width is given.
    """
    if (height is None) != (width is None):
        raise ValueError("give both height and width, or neither")


def require_same(store: Path, path: Path, same: bool) -> None:
    """Refuse a store that was made from another version of a recording."""
    if not same:
        what = f"was made from another version of {path.name} than the one beside it"
        raise UserError(store, what, "remove the store and prepare the recording again")


def cache_path(reader: Reader) -> Path:
    """Where the cache has the store of a recording.

    The name says the sensor, and of each file the name, the size, the time of change and the sampled content: wherever
    the recording lies, it is the same, and another one when the recording has changed.
    """
    state = [[file.stat().st_mtime_ns, quick_hash(file)] for file in files_of(reader.path)]
    text = json.dumps([reader.width, reader.height, state])
    return (
        cache_root() / "stores" / f"{reader.path.name[:NAME_LETTERS]}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    )
