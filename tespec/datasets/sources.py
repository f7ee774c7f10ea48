"""Events of a recording, packed or not, as the source of its histograms; each worker opens its own."""

import multiprocessing
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Size
from tespec.events import PackedEvents, files, load_events, open_events, opening, packing
from tespec.events.readers import Reader
from tespec.events.readers.hdf5 import AGAIN, dataset, translate_errors
from tespec.events.store import HEADER, header_of, store_of

RECTIFY_MAP = "rectify_map"
Windows = NDArray[np.int64]  # (N, 2) start and end of each in us, end exclusive


@dataclass(frozen=True)
class EventSource:
    """Events of a file or folder, from its packed store next to it or in the cache, or else loaded into memory."""

    path: Path  # for `open_events`; it may be missing if its store exists
    sensor: Size | None = None  # the user's (height, width) in px, for recordings that do not name it
    rectify_map: Path | None = None  # DSEC's file of rectified coordinates, to rectify the events; None: raw events
    default: Size | None = None  # (height, width) in px if nothing else specifies it

    @property
    def stream(self) -> PackedEvents:
        """The open recording, which is not part of this object's pickle."""
        return packed_events(self) or _in_memory(self)

    def opened(self, opener: Callable[..., PackedEvents]) -> PackedEvents:
        """Open the recording with `open_events` or `load_events`, and rectify it if there is a map."""
        stream = opener(self.path, self.sensor, self.default)
        if self.rectify_map is None:
            return stream
        return stream.rectified(read_rectification(self.rectify_map, stream.height, stream.width))

    def reader(self) -> Reader:
        """Reader of the original recording."""
        return opening.open_reader(self.path, self.sensor, self.default)

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
def packed_events(source: EventSource) -> PackedEvents | None:
    """Open a packed recording, or return None if it had no store since the last `pack_missing`."""
    # The cache is unbounded: an open store is small, and maps its files again after a long time without use.
    try:
        return source.opened(open_events)
    except opening.NotPacked:
        return None


@lru_cache(maxsize=1)
def _in_memory(source: EventSource) -> PackedEvents:
    return source.opened(load_events)


def read_rectification(path: Path, height: int, width: int) -> NDArray[np.int16]:
    """Read x and y (H, W, 2) int16 of the rectified pixel nearest to each raw pixel, -1 if outside of the sensor.

    `path` is a `rectify_map.h5` with floating-point x and y (uzh-rpg/DSEC). Labels are at rectified pixels.
    """
    if not path.is_file():
        raise UserError(path, "no such file, but the labels need rectified events", "copy it next to the events")
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
    sources: Iterable[object], *, beside: bool = False, processes: int = 1, skip_damaged: bool | None = None
) -> list[UserError]:
    """Pack every recording that has no store yet, with one progress bar; write nothing if the disk lacks space for all.

    Stores go into the cache or, if `beside`, next to their recordings, where they replace those of other versions.
    `skip_damaged` leaves out unreadable recordings and returns their errors; None: the user has no such option. If
    killed, it resumes at the first incomplete recording when called again.
    """
    packed_events.cache_clear()
    wanted = [source for source in sources if isinstance(source, EventSource)]
    missing: list[Packing] = []
    left_out: list[UserError] = []
    for source in wanted:
        try:
            missing += _missing(source, beside)
        except UserError as error:
            left_out.append(raise_or_leave_out(error, skip_damaged, len(wanted)))
    if not missing:
        return left_out
    folder, needed = missing[0].store.parent, 4 * sum(each.events for each in missing)  # bytes
    free = shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists())).free
    remedy = "free disk space" + ("" if beside else ", or set TESPEC_CACHE to a folder on another disk")
    if needed > free:
        recordings = f"{len(missing)} recording{'s' * (len(missing) > 1)}"
        what = f"has {free:,} bytes free, but the packed events of {recordings} need about {needed:,}"
        raise UserError(folder, what, remedy)
    done, total = 0, sum(each.events for each in missing)
    with ExitStack() as stack:
        advance = stack.enter_context(progress("packing" if beside else f"packing into {folder}", "events"))

        def packed(events: int, name: str) -> None:
            advance(done + events, max(total, done + events), name)

        run: Any = partial(map, partial(_pack, packed=packed))
        if processes > 1:
            spawn = multiprocessing.get_context("spawn")
            run = partial(stack.enter_context(ProcessPoolExecutor(min(processes, len(missing)), spawn)).map, _pack)
        for each, failure in zip(missing, run(missing), strict=True):
            packed(each.events, each.source.path.name)
            done += each.events
            if failure is None:
                continue
            if isinstance(failure, packing.NotWritable):
                # The store could not be written; no recording is damaged.
                raise UserError(failure.where, failure.what, failure.remedy if beside else remedy)
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
        if open_events(source.path, source.sensor, source.default).path == store or not beside:
            return []
    except UserError as error:  # no store, or the one next to the recording is damaged or of another version
        if not isinstance(error, opening.NotPacked) and not (beside and files.is_recorded(source.path)):
            raise
    reader = source.reader()
    return [Packing(source, store if beside else files.cache_path(reader), reader.events)]


def _pack(wanted: Packing, packed: Callable[[int, str], None] = lambda events, name: None) -> UserError | None:
    """Pack one recording in this process; return its error, if any."""
    try:
        reader = wanted.source.reader()
        packing.pack(reader, wanted.store, lambda events, _: packed(events, wanted.source.path.name))
        if (cached := files.cache_path(reader)) != wanted.store:
            shutil.rmtree(cached, ignore_errors=True)  # written by a training run, no longer needed
    except UserError as error:
        return error
    return None
