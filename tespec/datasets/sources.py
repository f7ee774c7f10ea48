"""Events of a recording, packed or not, as the source of its histograms; each worker opens its own."""

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Size
from tespec.events import PackedEvents, files, open_events, opening, packing
from tespec.events.cache import NO_ROOM, cached_store, make_room, remove, require_disk
from tespec.events.packing import scan
from tespec.events.readers import Reader
from tespec.events.readers.hdf5 import AGAIN, dataset, translate_errors
from tespec.events.store import HEADER, Facts, header_of, store_of

RECTIFY_MAP = "rectify_map"
LOADED = 4  # recordings without a store that are kept in memory
Windows = NDArray[np.int64]  # (N, 2) start and end of each in us, end exclusive


@dataclass(frozen=True)
class EventSource:
    """Events of a file or folder, packed or not; see `tespec.events.open_events`."""

    path: Path  # for `open_events`; it may be missing if its store exists
    # the user's (height, width) in px, for recordings that do not name it
    sensor: Size | None = None
    # DSEC's file of rectified coordinates, to rectify the events; None: raw events
    rectify_map: Path | None = None
    default: Size | None = None  # (height, width) in px if nothing else specifies it
    # whether `facts` come from reading a recording that is not packed, which writes nothing
    scan_only: bool = False

    @property
    def stream(self) -> PackedEvents:
        """The open recording, see `tespec.events.open_events`; it is not part of this object's pickle."""
        found = find_events(self)
        return found if isinstance(found, PackedEvents) else _open(self)

    @cached_property
    def facts(self) -> Facts:
        """Facts of the open recording or, with `scan_only`, of one that is read once without keeping its events."""
        found = find_events(self)
        if isinstance(found, PackedEvents):
            return found.facts
        if not self.scan_only:
            return self.stream.facts
        if self.rectify_map is not None:
            read_rectification(self.rectify_map, found.height, found.width)
        return scan(found)

    def rectified(self, stream: PackedEvents) -> PackedEvents:
        """Rectify the events if there is a map."""
        if self.rectify_map is None:
            return stream
        return stream.rectified(read_rectification(self.rectify_map, stream.height, stream.width))

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of each file that determines the histograms, independent of its location.

        For a packed store without its recording, these are the files it was made from.
        """
        maps = [files.quick_hash(self.rectify_map)] if self.rectify_map else []
        store = store_of(self.path)
        if not files.is_recorded(self.path) and (store / HEADER).is_file():
            return [*header_of(store)["source"]["files"], *maps]
        return [*map(files.quick_hash, files.files_of(self.path)), *maps]


@cache
def find_events(source: EventSource) -> PackedEvents | Reader:
    """Open a packed recording, or return the reader of one that had no store since the last `pack_missing`."""
    # The cache is unbounded: an open store is small, and maps its files again after a long time
    # without use.
    found = opening.find_events(source.path, source.sensor, source.default)
    return source.rectified(found) if isinstance(found, PackedEvents) else found


@lru_cache(maxsize=LOADED)
def _open(source: EventSource) -> PackedEvents:
    return source.rectified(open_events(source.path, source.sensor, source.default))


def read_rectification(path: Path, height: int, width: int) -> NDArray[np.int16]:
    """Read x and y (H, W, 2) int16 of the rectified pixel nearest to each raw pixel, -1 if outside of the sensor.

    `path` is a `rectify_map.h5` with floating-point x and y (uzh-rpg/DSEC). Labels are at rectified
    pixels.
    """
    if not path.is_file():
        raise UserError(
            path, "no such file, but the labels need rectified events", "copy it next to the events"
        )
    with translate_errors(path, RECTIFY_MAP):
        pixels = dataset(path, RECTIFY_MAP, "f", 3)[()]
    if pixels.shape != (height, width, 2) or not np.isfinite(pixels).all():
        what = f"{RECTIFY_MAP} has the shape {pixels.shape}, not {(height, width, 2)}, or non-finite values"
        raise UserError(path, what, AGAIN)
    nearest = np.floor(pixels + 0.5)
    inside = ((nearest >= 0) & (nearest < (width, height))).all(axis=-1, keepdims=True)
    return np.where(inside, nearest, -1).astype(np.int16)


def is_there(path: Path) -> bool:
    """Whether a recording, or its packed store, exists."""
    return path.exists() or (store_of(path) / HEADER).is_file()


class Packing(NamedTuple):
    """A recording to pack, the path of its store, and its number of events."""

    source: EventSource
    store: Path
    events: int


def pack_missing(
    sources: Iterable[object],
    *,
    beside: bool = False,
    processes: int = 1,
    skip_damaged: bool | None = None,
) -> list[UserError]:
    """Pack every recording that has no store yet, with one progress bar; write nothing if the disk lacks space for all.

    Stores go into the cache or, if `beside`, next to their recordings, where they replace those of
    other versions. `skip_damaged` leaves out unreadable recordings and returns their errors; None:
    the user has no such option. If killed, it resumes at the first incomplete recording when called
    again.
    """
    find_events.cache_clear()
    wanted = [source for source in sources if isinstance(source, EventSource)]
    missing: list[Packing] = []
    left_out: list[UserError] = []
    with progress("looking for packed recordings", "recordings") as advance:
        for number, source in enumerate(wanted, start=1):
            try:
                missing += _missing(source, beside)
            except UserError as error:
                left_out.append(raise_or_leave_out(error, skip_damaged, len(wanted)))
            advance(number, len(wanted), source.path.name)
    if not missing:
        return left_out
    folder, events = missing[0].store.parent, sum(each.events for each in missing)
    if beside:
        require_disk(folder, events, "free disk space")
    else:
        make_room(events)
    done = 0
    with ExitStack() as stack:
        advance = stack.enter_context(
            progress("packing" if beside else f"packing into {folder}", "events")
        )

        def packed(count: int, name: str) -> None:
            advance(done + count, max(events, done + count), name)

        run: Any = partial(map, partial(_pack, packed=packed))
        if processes > 1:
            spawn = multiprocessing.get_context("spawn")
            run = partial(
                stack.enter_context(ProcessPoolExecutor(min(processes, len(missing)), spawn)).map,
                _pack,
            )
        for each, failure in zip(missing, run(missing), strict=True):
            packed(each.events, each.source.path.name)
            done += each.events
            if failure is None:
                continue
            if isinstance(failure, packing.NotWritable):
                # The store could not be written; no recording is damaged.
                raise UserError(failure.where, failure.what, failure.remedy if beside else NO_ROOM)
            left_out.append(raise_or_leave_out(failure, skip_damaged, len(wanted)))
    return left_out


def raise_or_leave_out(error: UserError, skip_damaged: bool | None, recordings: int) -> UserError:
    """Return the error of a recording that is to be left out, or raise it."""
    if skip_damaged:
        return error
    offered = ", or skip it with --skip-damaged" * (skip_damaged is not None and recordings > 1)
    raise UserError(error.where, error.what, error.remedy + offered) from error


def _missing(source: EventSource, beside: bool) -> list[Packing]:
    """List the packing that a recording needs: none if it has a store."""
    store = store_of(source.path)
    try:
        found = opening.find_events(source.path, source.sensor, source.default)
        if isinstance(found, PackedEvents) and (found.path == store or not beside):
            return []
    except UserError:
        # With `beside`, a store that is damaged or of another version is replaced.
        if not (beside and files.is_recorded(source.path)):
            raise
    reader = opening.open_reader(source.path, source.sensor, source.default)
    return [Packing(source, store if beside else cached_store(reader), reader.events)]


def _pack(
    wanted: Packing, packed: Callable[[int, str], None] = lambda events, name: None
) -> UserError | None:
    """Pack one recording in this process; return its error, if any."""
    try:
        source = wanted.source
        reader = opening.open_reader(source.path, source.sensor, source.default)
        packing.pack(reader, wanted.store, lambda events, _: packed(events, source.path.name))
        if (cached := cached_store(reader)) != wanted.store:
            remove(cached)  # written by a training run, no longer needed
    except UserError as error:
        return error
    return None
