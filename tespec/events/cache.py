"""Packed stores in the cache: one for the content of a recording, wherever it is, and a limit of their total size."""

import hashlib
import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tespec.core.errors import UserError
from tespec.core.paths import cache_root
from tespec.core.progress import say
from tespec.events.files import content_sha256, files_of, quick_hash
from tespec.events.readers import Reader
from tespec.events.store import header_of

LIMIT = "TESPEC_CACHE_LIMIT"  # environment variable: GB; without it, a quarter of the disk
# seconds without a write, after which an unfinished store belongs to a killed process
ABANDONED = 3600.0
NO_ROOM = (
    "free disk space (tespec data cache --empty), or set TESPEC_CACHE to a folder on another disk"
)
EVENT_BYTES = 4  # of a packed event
NAME_LETTERS = 40  # of a recording's name, in the name of its store

_in_use: set[str] = set()  # names of the stores that this process has looked for


class CachedStore(NamedTuple):
    """A store in the cache."""

    path: Path
    bytes: int
    last_use: float  # seconds since 1970


def stores_folder() -> Path:
    """Folder of the stores in the cache, which may not exist yet."""
    return cache_root() / "stores"


def cached_store(reader: Reader) -> Path:
    """Return the path of a recording's store in the cache, whether it exists or not, and protect it from removal.

    The name of a store consists of that of the recording, a hash of sensor size, unit of time and
    the size, first and last 64 kB of each file, and the time of the latest modification. If name or
    time are new, the SHA-256 of all bytes is compared with those of stores with the same hash; a
    link then leads from the new name to the store.
    """
    files, folder = files_of(reader.path), stores_folder()
    samples = [[file["bytes"], file["sampled_sha256"]] for file in map(quick_hash, files)]
    state = json.dumps([reader.height, reader.width, reader.unit, samples]).encode()
    content = hashlib.sha256(state).hexdigest()[:16]
    name = re.sub("[^A-Za-z0-9._]+", "_", reader.path.name)[:NAME_LETTERS]
    store = folder / f"{name}-{content}-{max(file.stat().st_mtime_ns for file in files)}"
    for other in [] if store.exists() else folder.glob(f"*-{content}-*"):
        # a damaged store; a link to a removed one; a cache that is read-only
        with suppress(UserError, OSError):
            if header_of(other)["source"]["sha256"] == content_sha256(reader.path):
                store.symlink_to(other.resolve().name)
                break
    store = folder / store.resolve().name
    _in_use.add(store.name)
    with suppress(OSError):  # it does not exist, or the cache is read-only
        os.utime(store)
    return store


def list_stores() -> list[CachedStore]:
    """List the stores in the cache except those that are being packed, the least recently used first."""
    stores = []
    for path in stores_folder().glob("*"):
        with suppress(OSError):  # not a folder, or removed by another process
            files = [file.stat() for file in path.iterdir()]
            last_use = max(facts.st_mtime for facts in (path.stat(), *files))
            unfinished = path.name[0] == "." and time.time() - last_use < ABANDONED
            if not (path.is_symlink() or unfinished):
                stores.append(CachedStore(path, sum(facts.st_size for facts in files), last_use))
    return sorted(stores, key=lambda store: store.last_use)


def limit_bytes() -> int:
    """Largest total size of the stores: `$TESPEC_CACHE_LIMIT` in GB, else a quarter of the disk."""
    if not (text := os.environ.get(LIMIT)):
        return _disk(stores_folder()).total // 4
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise UserError(f"{LIMIT}={text}", "is not a size in GB", "give a number, such as 200")
    return int(float(text) * 1e9)


def remove(store: Path) -> None:
    """Remove a store from the cache."""
    removed = store.with_name(f".{store.name}.removed")
    with suppress(OSError):  # removed by another process
        # deleting it in place, if killed, would leave a folder without a header
        store.rename(removed)
        shutil.rmtree(removed)


def make_room(events: int) -> None:
    """Remove the least recently used stores until `events` more events fit into the cache, with a message.

    Raises:
        UserError: the stores that this process uses and the new ones exceed the limit, or the disk
            is too full.
    """
    folder, stores, limit, needed = (
        stores_folder(),
        list_stores(),
        limit_bytes(),
        EVENT_BYTES * events,
    )
    unused = [store for store in stores if store.path.name not in _in_use]
    excess = sum(store.bytes for store in stores) + needed - limit
    if excess > sum(store.bytes for store in unused):
        what = f"may hold {limit:,} bytes, but the packed events of this run need about {needed:,} more"
        raise UserError(
            folder,
            what,
            f"set {LIMIT} to more GB, or pack beside the recordings (tespec data prepare)",
        )
    removed = 0
    while excess > 0:
        remove(unused[removed].path)
        excess -= unused[removed].bytes
        removed += 1
    if removed:
        say(
            f"{folder}: least recently used recordings removed: {removed}, for its limit of {limit:,} bytes ({LIMIT})"
        )
    require_disk(folder, events, NO_ROOM)


def require_disk(folder: Path, events: int, remedy: str) -> None:
    """Raise a `UserError` if the disk of a folder lacks space for this number of packed events."""
    free, needed = _disk(folder).free, EVENT_BYTES * events
    if needed > free:
        raise UserError(
            folder, f"has {free:,} bytes free, but the packed events need about {needed:,}", remedy
        )


def _disk(folder: Path) -> shutil._ntuple_diskusage:
    return shutil.disk_usage(
        next(path for path in (folder, *folder.absolute().parents) if path.exists())
    )
