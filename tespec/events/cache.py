"""Packed stores in the cache: one for the content of a recording, wherever it is, and a limit of their total size."""

import hashlib
import json
import math
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from tespec.core.errors import UserError
from tespec.core.paths import cache_root
from tespec.core.progress import say
from tespec.events.files import SourceHash, files_of, quick_hash
from tespec.events.readers import Reader
from tespec.events.store import HEADER, header_of

LIMIT = "TESPEC_CACHE_LIMIT"  # environment variable, in GB
DEFAULT_LIMIT, DISK_FRACTION = 200e9, 0.25  # bytes, and part of the disk: the smaller one is the limit
ABANDONED = 3600.0  # seconds without a write, after which an unfinished store belongs to a killed process
NO_ROOM = f"free disk space, set TESPEC_CACHE to a folder on another disk, or set {LIMIT} to more GB"
EVENT_BYTES = 4  # of a packed event

_in_use: set[str] = set()  # names of the stores that this process has looked for


class CachedStore(NamedTuple):
    """A store in the cache."""

    path: Path
    source: str  # name of the recording; "unreadable" for another version, or what a killed process left
    bytes: int
    last_use: float  # seconds since 1970


def stores_folder() -> Path:
    """Folder of the stores in the cache, which may not exist yet."""
    return cache_root() / "stores"


def cached_store(reader: Reader) -> Path:
    """Return the path of a recording's store in the cache, whether it exists or not, and protect it from removal.

    The name of a store has two parts: a hash of the sensor size and of the size, first and last 64 kB of each file,
    and a hash of the files' modification times. If the times are new, the SHA-256 of all bytes is compared with those
    of the stores that agree in the first part; a link then leads from the new times to the store.
    """
    folder, files = stores_folder(), files_of(reader.path)
    samples = [[file["bytes"], file["sampled_sha256"]] for file in map(quick_hash, files)]
    content = _digest([reader.height, reader.width, samples])
    store = folder / f"{content}-{_digest([file.stat().st_mtime_ns for file in files])}"
    candidates = [] if store.exists() else [path for path in folder.glob(f"{content}-*") if (path / HEADER).is_file()]
    sha256 = SourceHash(reader.path).describe()["sha256"] if candidates else ""
    for candidate in candidates:
        with suppress(UserError, OSError):  # a damaged store; a cache that cannot be written to
            if header_of(candidate)["source"]["sha256"] == sha256:
                link, store = store, candidate
                link.unlink(missing_ok=True)  # to a removed store
                link.symlink_to(store.resolve().name)
    store = folder / store.resolve().name
    _in_use.add(store.name)
    with suppress(OSError):  # it does not exist, or the cache cannot be written to
        os.utime(store)
    return store


def _digest(facts: list[object]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def list_stores() -> list[CachedStore]:
    """List the stores in the cache except those that are being packed, the least recently used first."""
    stores = []
    for path in stores_folder().glob("*"):
        with suppress(OSError):  # removed by another process
            if path.is_symlink() or not path.is_dir():
                continue
            files = [file.stat() for file in path.iterdir()]
            last_use = max(facts.st_mtime for facts in (path.stat(), *files))
            source = "unreadable"
            with suppress(UserError):
                source = str(header_of(path)["source"]["name"])
            if path.name[0] != "." or time.time() - last_use > ABANDONED:
                stores.append(CachedStore(path, source, sum(facts.st_size for facts in files), last_use))
    return sorted(stores, key=lambda store: store.last_use)


def limit_bytes() -> int:
    """Largest total size of the stores: `$TESPEC_CACHE_LIMIT` in GB, else 200 GB or a quarter of the disk."""
    if not (text := os.environ.get(LIMIT)):
        return int(min(DEFAULT_LIMIT, DISK_FRACTION * shutil.disk_usage(_existing(stores_folder())).total))
    try:
        gigabytes = float(text.upper().removesuffix("GB"))
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise UserError(f"{LIMIT}={text}", "is not a size in GB", "give a number, such as 200")
    return int(gigabytes * 1e9)


def remove(store: Path) -> None:
    """Remove a store from the cache, and the links to it."""
    removed = store.with_name(f".{store.name}.removed")
    with suppress(OSError):  # removed by another process
        store.rename(removed)  # deleting it in place, if killed, would leave a folder without a header
        shutil.rmtree(removed)
    for link in store.parent.glob("*"):
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)


def make_room(events: int) -> None:
    """Remove the least recently used stores until `events` more events fit into the cache, with a message.

    Raises:
        UserError: the stores that this process uses and the new ones exceed the limit, or the disk is too full.
    """
    folder, limit, needed = stores_folder(), limit_bytes(), EVENT_BYTES * events
    stores = list_stores()
    removable = [store for store in stores if store.path.name not in _in_use]
    excess = sum(store.bytes for store in stores) + needed - limit
    if excess > sum(store.bytes for store in removable):
        what = f"may hold {size_text(limit)}, but the packed events of this run need {size_text(needed)} more"
        raise UserError(folder, what, f"set {LIMIT} to more GB, or pack beside the recordings (tespec data prepare)")
    removed = []
    while excess > 0:
        removed.append(removable.pop(0))
        remove(removed[-1].path)
        excess -= removed[-1].bytes
    if removed:
        names = f"{len(removed)} least recently used packed recording{'s' * (len(removed) > 1)}"
        say(f"{folder}: removed {names} to stay below {size_text(limit)} ({LIMIT})")
    require_disk(folder, events, NO_ROOM)


def require_disk(folder: Path, events: int, remedy: str) -> None:
    """Raise a `UserError` if the disk of a folder lacks space for this number of packed events."""
    free, needed = shutil.disk_usage(_existing(folder)).free, EVENT_BYTES * events
    if needed > free:
        raise UserError(folder, f"has {free:,} bytes free, but the packed events need about {needed:,}", remedy)


def size_text(size: float) -> str:
    """Format a number of bytes, as in "1.50GB"."""
    return tqdm.format_sizeof(size, "B")


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
