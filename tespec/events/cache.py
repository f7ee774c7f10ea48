"""Packed stores in the cache: one per content of a recording, with a limit of their total size."""

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
from tespec.core.progress import log
from tespec.events.files import content_sha256, files_of, quick_hash
from tespec.events.readers import Reader
from tespec.events.store import header_of

LIMIT = "TESPEC_CACHE_LIMIT"  # environment variable: GB; without it, a quarter of the disk
# seconds without a write, after which an unfinished store belongs to a killed process
ABANDONED = 3600.0
FREE_SPACE = (
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
    """Return the path of a recording's store in the cache, which may not exist yet.

    This process does not remove the store any more. The name of a store consists of that of the
    recording, a hash of sensor size, unit of time and the size, first and last 64 kB of all files,
    and the time of the latest modification. If name or time are new, the SHA-256 of all bytes is
    compared with those of stores with the same hash; a link then leads from the new name to the
    store.
    """
    folder = stores_folder()
    files = files_of(reader.path)
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
    """List the stores in the cache, the least recently used first, without unfinished ones."""
    stores = []
    for path in stores_folder().glob("*"):
        with suppress(OSError):  # not a folder, or removed by another process
            files = [file.stat() for file in path.iterdir()]
            last_use = max(stat.st_mtime for stat in (path.stat(), *files))
            is_unfinished = path.name[0] == "." and time.time() - last_use < ABANDONED
            if not (path.is_symlink() or is_unfinished):
                stores.append(CachedStore(path, sum(stat.st_size for stat in files), last_use))
    return sorted(stores, key=lambda store: store.last_use)


def limit_bytes() -> int:
    """Return the limit in bytes: `$TESPEC_CACHE_LIMIT` in GB, else a quarter of the disk."""
    if not (text := os.environ.get(LIMIT)):
        return _disk(stores_folder()).total // 4
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise UserError(f"{LIMIT}={text}", "is not a size in GB", "give a number, such as 200")
    return int(float(text) * 1e9)


def remove(store: Path) -> None:
    """Remove a store from the cache."""
    removed = store.with_name(f".{store.name}.removed")
    with suppress(OSError):  # removed by another process
        # a process killed while it deletes in place would leave a folder without a header
        store.rename(removed)
        shutil.rmtree(removed)


def free_space(events: int) -> None:
    """Remove the least recently used stores until `events` more fit into the cache.

    Raises:
        UserError: the stores that this process uses and the new ones exceed the limit, or the disk
            is too full.
    """
    folder = stores_folder()
    limit = limit_bytes()
    stores = list_stores()
    needed = EVENT_BYTES * events
    unused = [store for store in stores if store.path.name not in _in_use]
    excess = sum(store.bytes for store in stores) + needed - limit
    if excess > sum(store.bytes for store in unused):
        raise UserError(
            folder,
            f"may hold {limit:,} bytes, "
            f"but the packed events of this run need about {needed:,} more",
            f"set {LIMIT} to more GB, or pack beside the recordings (tespec data prepare)",
        )
    removed = 0
    while excess > 0:
        remove(unused[removed].path)
        excess -= unused[removed].bytes
        removed += 1
    if removed:
        log(
            f"{folder}: least recently used recordings removed: {removed}, "
            f"for its limit of {limit:,} bytes ({LIMIT})"
        )
    require_disk(folder, events, FREE_SPACE)


def require_disk(folder: Path, events: int, remedy: str) -> None:
    """Check that the disk of a folder has space for packed events.

    Args:
        folder: folder of the stores, which may not exist yet.
        events: number of events.
        remedy: end of the error message.

    Raises:
        UserError: the disk is too full.
    """
    free = _disk(folder).free
    needed = EVENT_BYTES * events
    if needed > free:
        what = f"has {free:,} bytes free, but the packed events need about {needed:,}"
        raise UserError(folder, what, remedy)


def _disk(folder: Path) -> shutil._ntuple_diskusage:
    parents = (folder, *folder.absolute().parents)
    return shutil.disk_usage(next(path for path in parents if path.exists()))
