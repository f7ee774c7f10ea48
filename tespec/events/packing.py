"""Open recordings of any format, recognised by content or suffix; pack them into memory or a store in one pass."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time
from tespec.core.paths import cache_root
from tespec.core.progress import say
from tespec.core.settings import Size
from tespec.events import store
from tespec.events.readers import Events, Reader, aedat4, arrays, prophesee, resolve_size
from tespec.events.readers.hdf5 import COLUMNS, SUFFIXES, holds
from tespec.events.store import HEADER, MILLISECOND, PackedEvents, header_of, open_store, store_of

READERS: dict[str, Callable[[Path, Size | None, Size | None], Reader]] = {
    ".dat": prophesee.open_dat,
    ".raw": prophesee.open_raw,
    ".aedat4": aedat4.open_aedat4,
    ".npz": arrays.open_arrays,
}
NAME_LETTERS = 40  # of a recording's name, in the name of its store in the cache
LATEST = 10**17  # us since 1970: the year 5138; today's time in nanoseconds is a larger number
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
PROPHESEE = "CD/events"  # in HDF5 files of Prophesee's own codec
EVENTS, TIMES = "events.dat.xyp", "events.dat.t"  # files of a DDD17 recording, which is a folder
BLOCK = 1 << 20  # bytes hashed per block
SAMPLED = 1 << 16  # bytes hashed at the start and at the end of a file


class NotPacked(UserError):
    """Raised for a readable recording that has no packed store."""


class NotWritable(UserError):
    """Raised if a packed store cannot be written at its place."""


def dataset_of(path: Path) -> Any:
    """Return the registered data set that reads a file or folder, or None."""
    from tespec.registry import DATASETS

    import_module("tespec.datasets")  # registers the built-in data sets
    return next((kind for kind in DATASETS.module_dict.values() if kind.reads(path)), None)


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
    suffix = path.suffix.lower()
    if path.is_file() and suffix in READERS:
        return READERS[suffix](path, sensor, default)
    if (dataset := dataset_of(path)) is not None:
        return dataset.reader(path, sensor, default)
    if has_columns(path):
        if holds(path, PROPHESEE):
            what = "is in Prophesee's own HDF5 format, whose codec is not available"
            raise UserError(path, what, "convert it to .raw or .dat")
        what = "is an HDF5 file of events in an unsupported layout (supported: DSEC, MVSEC)"
        raise UserError(path, what, "save x, y, t, p as .npz")
    remedy = f"give a {', '.join((*READERS, *SUFFIXES))} file, a packed store or a recording's folder"
    raise UserError(path, "holds no events in a supported format", remedy)


def require_same(folder: Path, path: Path, same: bool) -> None:
    """Refuse a store that does not match its recording, see `is_of`."""
    if not same:
        what = f"was made from another version of {path.name} or for another sensor size"
        raise UserError(folder, what, "remove the store and prepare the recording again")


def cache_path(reader: Reader) -> Path:
    """Path of a recording's store in the cache; it depends on sensor size and files, not on the recording's folder."""
    state = [[file.stat().st_mtime_ns, quick_hash(file)] for file in files_of(reader.path)]
    digest = hashlib.sha256(json.dumps([reader.width, reader.height, state]).encode()).hexdigest()
    return cache_root() / "stores" / f"{reader.path.name[:NAME_LETTERS]}-{digest[:24]}"


def load(reader: Reader) -> PackedEvents:
    """Load all events of a recording into memory."""
    words, index, (first_ms, *_), raised = zip(*_packed(reader), strict=True)
    arrays = np.concatenate(words), np.concatenate(index)
    return PackedEvents(reader.path, (reader.height, reader.width), first_ms, sum(raised), lambda: arrays)


def pack(reader: Reader, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Write a recording as a packed store; its folder appears only when it is complete, and is returned.

    A complete store of the same recording is kept, any other store is replaced. If multiple processes pack into the
    same folder, one does the work and the others wait, with a message. `progress` is called with the number of events
    packed so far and the total.
    """
    unfinished, replaced = (folder.with_name(f".{folder.name}.{name}") for name in ("unfinished", "replaced"))
    try:
        with one_at_a_time(folder, lambda holder: say(f"{reader.path}: waiting for {holder}, which is packing it")):
            if folder.exists() and not (folder / HEADER).is_file():
                raise NotWritable(folder, "exists but is not a packed store", "remove it, or choose another place")
            with suppress(UserError):  # of an incomplete store
                open_store(folder)
                if is_of(folder, reader):
                    return folder
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
            try:
                unfinished.mkdir()
                _write(reader, unfinished, progress)
                shutil.rmtree(replaced, ignore_errors=True)  # left by a killed process
                if folder.exists():
                    folder.rename(replaced)  # deleting it in place, if killed, would leave a folder without a header
                unfinished.rename(folder)
            finally:
                for left in (unfinished, replaced):
                    shutil.rmtree(left, ignore_errors=True)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        what, remedy = f"cannot be written to ({error.strerror})", "free disk space, or choose a writable folder"
        raise NotWritable(folder.parent, what, remedy) from error
    return folder


def _write(reader: Reader, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write packed events, index and header."""
    source = SourceHash(reader.path)
    digests = {store.WORDS: hashlib.sha256(), store.INDEX: hashlib.sha256()}
    header: dict[str, Any] = {"format": store.FORMAT, "version": store.VERSION}
    header |= {"height": reader.height, "width": reader.width, "count": 0, "clamped": 0}
    with (
        (folder / store.WORDS).open("wb") as words,
        (folder / store.INDEX).open("wb") as index,
        ThreadPoolExecutor(1) as thread,
    ):

        def take_hashes(parts: tuple[NDArray[Any], ...], share: float) -> None:
            for digest, part in zip(digests.values(), parts, strict=True):
                digest.update(part.data)
            source.advance(share)

        hashing: Future[Any] = thread.submit(int)
        for chunk, starts, header["first_ms"], raised in _packed(reader):
            header["count"] += len(chunk)
            header["clamped"] += raised
            total = max(header["count"], reader.events)
            words.write(chunk.data)
            index.write(starts.data)
            hashing.result()  # wait for the previous part, to hold few in memory
            hashing = thread.submit(take_hashes, (chunk, starts), header["count"] / total)
            progress(header["count"], total)
        hashing.result()
        for file in (words, index):
            file.flush()
            os.fsync(file.fileno())
    header["source"] = source.describe()
    header["sha256"] = {name: digest.hexdigest() for name, digest in digests.items()}
    (folder / HEADER).write_text(json.dumps(header, indent=1) + "\n")


def _packed(reader: Reader) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64], int, int]]:
    """Yield parts of packed events and index, the recording's first millisecond, and the number of raised times."""
    if reader.width > store.MAX_WIDTH or reader.height > store.MAX_HEIGHT:
        what = f"its sensor of {reader.width}x{reader.height} px is too large for a packed store"
        raise UserError(reader.path, what, f"use at most {store.MAX_WIDTH}x{store.MAX_HEIGHT} px")
    first_ms, next_ms, written = 0, 0, 0
    for events, raised in in_order(reader):
        last_ms = int(events.t[-1]) // MILLISECOND
        if not written:
            first_ms = next_ms = int(events.t[0]) // MILLISECOND
        if last_ms - first_ms >= store.LONGEST_MS:
            what = f"lasts {(last_ms - first_ms) / 3.6e6:,.0f} h by its timestamps, so at least one is damaged"
            raise UserError(reader.path, what, "copy it again")
        # Later events are not before the last millisecond of these, so the index is final up to it.
        index = written + np.searchsorted(events.t, MILLISECOND * np.arange(next_ms, last_ms + 1))
        yield store.pack_words(*events), index, first_ms, raised
        next_ms, written = last_ms + 1, written + len(events.t)
    yield np.empty(0, np.uint32), np.array([written]), first_ms, 0


def in_order(reader: Reader) -> Iterator[tuple[Events, int]]:
    """Yield non-empty chunks of a recording's events, and how many of their times were raised.

    A time that steps back is raised to the latest time before it. A recording with no events, with events outside of
    its sensor or after the year 5138, or whose times nearly all step back raises a `UserError`.
    """
    latest, raised_of = None, np.zeros(2, np.int64)
    for x, y, t, p in reader.chunks():
        if not len(t):
            continue
        columns, rows = int(x.max()) + 1, int(y.max()) + 1
        if columns > reader.width or rows > reader.height:
            what = f"has events on {columns}x{rows} px, but its sensor has {reader.width}x{reader.height} px"
            raise UserError(reader.path, what, "copy it again, or correct the sensor size")
        times = np.maximum.accumulate(t if latest is None else np.maximum(t, latest))
        raised, latest = int(np.count_nonzero(times != t)), int(times[-1])
        if max(abs(int(times[0])), abs(latest)) > LATEST:
            what = f"has an event at {times[-1]} us, after the year 5138: it is damaged or its times are in nanoseconds"
            raise UserError(reader.path, what, "copy it again, or write its times in microseconds")
        raised_of += raised, len(t)
        yield Events(x, y, times, p), raised
    if latest is None:
        raise UserError(reader.path, "holds no events", "give a recording with events")
    if 10 * raised_of[0] > 9 * raised_of[1]:
        what = f"{raised_of[0]:,} of {raised_of[1]:,} times are earlier than one before them"
        raise UserError(reader.path, what, "sort its events by time, or copy it again")


def files_of(path: Path) -> tuple[Path, ...]:
    """Files that hold a recording's events: the file itself, the two of a DDD17 folder, or all files in a folder."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise UserError(path, "no such file or folder", "give the original recording")
    if (path / EVENTS).is_file():
        return tuple(path / name for name in (EVENTS, TIMES) if (path / name).is_file())
    return tuple(sorted(entry for entry in path.iterdir() if entry.is_file()))


def is_recorded(path: Path) -> bool:
    """Whether a recording's original event files exist, with or without a packed store."""
    return path.is_file() or (path / EVENTS).is_file()


def quick_hash(path: Path) -> dict[str, Any]:
    """Name and size of a file, and the SHA-256 of its first and last 64 kB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(SAMPLED))
        file.seek(max(0, size - SAMPLED))
        digest.update(file.read(SAMPLED))
    return {"name": path.name, "bytes": size, "sampled_sha256": digest.hexdigest()}


def is_of(folder: Path, reader: Reader) -> bool:
    """Whether a store matches a recording by sensor size, and its files by size and sampled SHA-256, ignoring names.

    A change between the samples that keeps the size is not detected.
    """
    header, found = header_of(folder), map(quick_hash, files_of(reader.path))
    same = [dict(file, name="") for file in header["source"]["files"]] == [dict(file, name="") for file in found]
    return same and (header["height"], header["width"]) == (reader.height, reader.width)


class SourceHash:
    """SHA-256 of a recording's concatenated files, updated while they are decoded: the disk is read only once."""

    def __init__(self, path: Path) -> None:
        self._path, self._files = path, files_of(path)
        self._bytes = sum(file.stat().st_size for file in self._files)
        self._digest, self._hashed, self._blocks = hashlib.sha256(), 0, self._read()

    def _read(self) -> Iterator[bytes]:
        for path in self._files:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    yield block

    def advance(self, share: float) -> None:
        """Hash the files up to this share of their bytes."""
        while self._hashed < share * self._bytes and (block := next(self._blocks, b"")):
            self._digest.update(block)
            self._hashed += len(block)

    def describe(self) -> dict[str, Any]:
        """Hash the rest; return the recording's name, size and SHA-256, and the `quick_hash` of each file."""
        self.advance(1.0)
        files = [quick_hash(file) for file in self._files]
        return {"name": self._path.name, "bytes": self._bytes, "sha256": self._digest.hexdigest(), "files": files}
