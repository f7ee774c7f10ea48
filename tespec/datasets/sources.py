"""Events of a recording, packed or not, from which each worker computes histograms."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.hashes import Contents
from tespec.core.progress import progress
from tespec.core.settings import Size
from tespec.events import PackedEvents, files, open_events, opening
from tespec.events.cache import (
    FREE_SPACE,
    cached_store,
    free_space,
    remove,
    require_disk,
    stores_folder,
)
from tespec.events.packing import NotWritable, pack, scan
from tespec.events.readers import Reader
from tespec.events.readers.hdf5 import COPY_AGAIN, dataset, translate_errors
from tespec.events.store import HEADER, Facts, header_of, store_of, verify_store

RECTIFY_MAP = "rectify_map"
LOADED = 4  # recordings without a store that stay in memory
Windows = NDArray[np.int64]  # (N, 2) start and end of each in us, end exclusive


@dataclass(frozen=True)
class EventSource:
    """Events of a file or folder, packed or not; see `tespec.events.open_events`.

    Args:
        path: file or folder of the recording; it may be missing if its store exists.
        sensor: the user's (height, width) in px, for recordings that do not name it.
        rectify_map: DSEC's file of rectified coordinates, to rectify the events; None: raw events.
        default: (height, width) in px if nothing else specifies it.
        known: facts that were read before, see `scanned`.
    """

    path: Path
    sensor: Size | None = None
    rectify_map: Path | None = None
    default: Size | None = None
    known: Facts | None = field(default=None, compare=False)

    @property
    def stream(self) -> PackedEvents:
        """The open recording; it is not pickled with this object."""
        events = find_events(self)
        return events if isinstance(events, PackedEvents) else _open(self)

    @property
    def facts(self) -> Facts:
        """Sensor size, times and counts of the events."""
        return self.known or self.stream.facts

    def scanned(self) -> "EventSource":
        """Return a source with `known` facts: it reads all events once, unless they are packed."""
        events = find_events(self)
        if isinstance(events, PackedEvents):
            return replace(self, known=events.facts)
        if self.rectify_map is not None:
            read_rectification(self.rectify_map, events.height, events.width)
        return replace(self, known=scan(events))

    def rectified(self, stream: PackedEvents) -> PackedEvents:
        """Rectify the events if there is a map."""
        if self.rectify_map is None:
            return stream
        return stream.rectified(read_rectification(self.rectify_map, stream.height, stream.width))

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of the files of events and map, to detect copies."""
        maps = [files.quick_hash(self.rectify_map)] if self.rectify_map else []
        if self._is_store_alone:
            return [*header_of(store_of(self.path))["source"]["files"], *maps]
        return [*map(files.quick_hash, files.files_of(self.path)), *maps]

    def contents(self) -> Contents:
        """Files that determine the histograms, by name, wherever they are.

        A packed store without its recording gives the SHA-256 of the files that it was made from.
        """
        maps = {self.rectify_map.name: (self.rectify_map,)} if self.rectify_map else {}
        if self._is_store_alone:
            return {"events": header_of(store_of(self.path))["source"]["sha256"], **maps}
        paths = files.files_of(self.path)
        return {", ".join(path.name for path in paths): paths, **maps}

    def verify(self, *, again: bool) -> None:
        """Compare packed events with their checksums, and with their recording if it exists.

        Args:
            again: whether to read a recording whose SHA-256 is remembered.
        """
        events = find_events(self)
        if not isinstance(events, PackedEvents):
            return
        verify_store(events.path)
        if files.has_original_files(self.path):
            sha256 = files.content_sha256(self.path, again=again)
            is_same = sha256 == header_of(events.path)["source"]["sha256"]
            if not is_same and events.path.parent == stores_folder():
                remove(events.path)
                what = "changed, but not its size and time; its packed events were removed"
                raise UserError(self.path, what, "give the same command again")
            opening.require_match(events.path, self.path, is_same)

    @property
    def _is_store_alone(self) -> bool:
        is_stored = (store_of(self.path) / HEADER).is_file()
        return is_stored and not files.has_original_files(self.path)


@cache
def find_events(source: EventSource) -> PackedEvents | Reader:
    """Open a packed recording, or return the reader of one without a store.

    The result holds until the next `pack_missing`.
    """
    # The cache is unbounded: an open store is small, and maps its files again after a long time
    # without use.
    events = opening.find_events(source.path, source.sensor, source.default)
    return source.rectified(events) if isinstance(events, PackedEvents) else events


@lru_cache(maxsize=LOADED)
def _open(source: EventSource) -> PackedEvents:
    return source.rectified(open_events(source.path, source.sensor, source.default))


def read_rectification(path: Path, height: int, width: int) -> NDArray[np.int16]:
    """Read the rectified pixel nearest to each raw pixel; DSEC's labels are at rectified pixels.

    Args:
        path: `rectify_map.h5` with floating-point x and y (uzh-rpg/DSEC).
        height: rows of the sensor.
        width: columns of the sensor.

    Returns:
        x and y (H, W, 2) int16, -1 if outside of the sensor.

    Raises:
        UserError: if the file is missing, unreadable, or of another sensor size.
    """
    with translate_errors(path, RECTIFY_MAP):
        pixels = dataset(path, RECTIFY_MAP, "f", 3)[()]
    if pixels.shape != (height, width, 2) or not np.isfinite(pixels).all():
        raise UserError(
            path,
            f"{RECTIFY_MAP} has the shape {pixels.shape}, not {(height, width, 2)}, "
            "or non-finite values",
            COPY_AGAIN,
        )
    nearest = np.floor(pixels + 0.5)
    inside = ((nearest >= 0) & (nearest < (width, height))).all(axis=-1, keepdims=True)
    return np.where(inside, nearest, -1).astype(np.int16)


def recording_exists(path: Path) -> bool:
    """Whether a recording, or its packed store, exists."""
    try:
        return path.exists() or (store_of(path) / HEADER).is_file()
    except PermissionError:  # such as in "lost+found", beside the recordings
        return False


def unique_path(paths: Sequence[Path]) -> Path:
    """Return the first of one or more paths; refuse those that do not link to the same file."""
    if len({path.resolve() for path in paths}) > 1:
        raise UserError(paths[0], f"also exists as {paths[1]}", "keep one of them")
    return paths[0]


class Packing(NamedTuple):
    """A recording to pack, the path of its store, and its number of events."""

    source: EventSource
    store: Path
    events: int


def pack_missing(
    sources: Iterable[object],
    *,
    in_place: bool = False,
    processes: int = 1,
    initializer: Callable[[], None] | None = None,
    skip_damaged: bool | None = None,
) -> list[UserError]:
    """Pack every recording that has no store yet, with one progress bar.

    If killed, it resumes at the first incomplete recording when called again. Nothing is written if
    the disk lacks space for all stores.

    Args:
        sources: sources of recordings; those other than `EventSource` are ignored.
        in_place: write stores next to their recordings instead of into the cache, and replace those
            of other versions.
        processes: number of recordings that are packed concurrently.
        initializer: called first in each of these processes, such as to import the user's formats.
        skip_damaged: leave out unreadable recordings; None: refuse them, and the user has no such
            option.

    Returns:
        The errors of the recordings that are left out.
    """
    find_events.cache_clear()
    event_sources = [source for source in sources if isinstance(source, EventSource)]
    missing: list[Packing] = []
    left_out: list[UserError] = []
    with progress("looking for packed recordings", "recordings") as advance:
        for number, source in enumerate(event_sources, start=1):
            try:
                missing += _missing(source, in_place)
            except UserError as error:
                left_out.append(raise_or_leave_out(error, skip_damaged, len(event_sources)))
            advance(number, len(event_sources), source.path.name)
    if not missing:
        return left_out
    folder = missing[0].store.parent
    total = sum(packing.events for packing in missing)
    if in_place:
        require_disk(folder, total, "free disk space")
    else:
        free_space(total)
    done = 0
    with ExitStack() as stack:
        advance = stack.enter_context(
            progress("packing" if in_place else f"packing into {folder}", "events")
        )

        def report(count: int, name: str) -> None:
            advance(done + count, max(total, done + count), name)

        errors: Iterator[UserError | None] = map(partial(_pack, report=report), missing)
        if processes > 1:
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(min(processes, len(missing)), spawn, initializer)
            stack.callback(pool.shutdown, cancel_futures=True)
            errors = pool.map(_pack, missing)
        for packing, failure in zip(missing, errors, strict=True):
            report(packing.events, packing.source.path.name)
            done += packing.events
            if isinstance(failure, NotWritable):
                # The store could not be written; no recording is damaged.
                raise UserError(
                    failure.where, failure.what, failure.remedy if in_place else FREE_SPACE
                )
            if failure is not None:
                left_out.append(raise_or_leave_out(failure, skip_damaged, len(event_sources)))
    return left_out


def raise_or_leave_out(error: UserError, skip_damaged: bool | None, recordings: int) -> UserError:
    """Return the error of a recording that is to be left out, or raise it.

    Args:
        error: the reason why the recording is unreadable.
        skip_damaged: whether to leave it out; None: the user has no such option.
        recordings: number of recordings of which it is one.
    """
    if skip_damaged:
        return error
    offered = ", or skip it with --skip-damaged" * (skip_damaged is not None and recordings > 1)
    raise UserError(error.where, error.what, error.remedy + offered) from error


def _missing(source: EventSource, in_place: bool) -> list[Packing]:
    """List the packing that a recording needs: none if it has a store."""
    store = store_of(source.path)
    try:
        events = opening.find_events(source.path, source.sensor, source.default)
        if isinstance(events, PackedEvents) and (events.path == store or not in_place):
            return []
    except UserError:
        # With `in_place`, a store that is damaged or of another version is replaced.
        if not (in_place and files.has_original_files(source.path)):
            raise
    reader = opening.open_reader(source.path, source.sensor, source.default)
    return [Packing(source, store if in_place else cached_store(reader), reader.events)]


def _pack(
    packing: Packing, report: Callable[[int, str], None] = lambda events, name: None
) -> UserError | None:
    """Pack one recording in this process; return its error, if any."""
    source = packing.source
    try:
        reader = opening.open_reader(source.path, source.sensor, source.default)
        pack(reader, packing.store, lambda events, _: report(events, source.path.name))
        cached = cached_store(reader)
        if cached != packing.store:
            remove(cached)  # written by a training run, no longer needed
    except UserError as error:
        return error
    return None
