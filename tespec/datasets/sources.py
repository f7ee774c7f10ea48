"""Where the histograms of a recording come from: its events, packed or not, or RVT's archive of histograms.

Sources are opened where they are used, so that workers open their own. What is missing, damaged or does not fit is a
`UserError`, and so is a recording that cannot be packed.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.progress import progress, say
from tespec.core.settings import Size
from tespec.events import PackedEvents, load_events, open_events, window_histograms
from tespec.events.histogram import FlipZoom, Region, apply_maps
from tespec.events.packing import (
    NotPacked,
    cache_path,
    disk_needed,
    files_of,
    is_of,
    is_recorded,
    open_reader,
    pack,
    quick_hash,
    require_same,
)
from tespec.events.readers import Reader, resolve_size
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import AGAIN, dataset, translate_errors
from tespec.events.store import CLIP, HEADER, header_of, is_complete, store_of

RECTIFY_MAP = "rectify_map"
Windows = NDArray[np.int64]  # (N, 2) first time and end of each, in us, end exclusive
# RVT's archives: one HDF5 chunk a window of 50 ms (uzh-rpg/RVT, scripts/genx/preprocess_dataset.py).
REPRESENTATIONS = Path("event_representations_v2") / "stacked_histogram_dt=50_nbins=10"
FACTORS = {"event_representations.h5": 1, "event_representations_ds2_nearest.h5": 2}  # of Gen1 and 1Mpx
ENDS = REPRESENTATIONS / "timestamps_us.npy"
BINS, RULE, WINDOW_US = 10, "rvt", 50_000
SPACING_US = (45_000, 55_000)  # between windows; they are laid between labels, so that it varies a little


@dataclass(frozen=True)
class EventSource:
    """Events of a file or folder, of the packed store beside it or in the cache; without one, read whole into memory.

    Attributes:
        path: what `open_events` opens; it may be missing where the store is there.
        sensor: its (height, width) in px as the user gives it, for recordings that do not name it.
        rectify_map: DSEC's file of rectified coordinates, where they are to be applied.
        default: (height, width) in px where nothing else says it.
    """

    path: Path
    sensor: Size | None = None
    rectify_map: Path | None = None
    default: Size | None = None

    @property
    def stream(self) -> PackedEvents:
        """The open recording; pickles of this object do not hold it."""
        try:
            return packed_events(self)
        except NotPacked:
            return _in_memory(self)

    def opened(self, opener: Callable[..., PackedEvents]) -> PackedEvents:
        """The recording as `open_events` or `load_events` opens it, rectified where it is to be."""
        stream = opener(self.path, *(self.sensor or (None, None)), default=self.default)
        if self.rectify_map is None:
            return stream
        return stream.rectified(read_rectification(self.rectify_map, stream.height, stream.width))

    def reader(self) -> Reader:
        """What reads the events as they were recorded."""
        height, width = self.sensor or (None, None)
        return open_reader(self.path, height, width, self.default)

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of each file that determines the histograms, wherever it lies.

        Of a packed recording these are the files it was made from.
        """
        maps = [quick_hash(self.rectify_map)] if self.rectify_map else []
        store = store_of(self.path)
        if not is_recorded(self.path) and (store / HEADER).is_file():
            return [*header_of(store)["source"]["files"], *maps]
        return [*map(quick_hash, files_of(self.path)), *maps]

    def fill(
        self, out: NDArray[np.uint8], windows: Windows, bins: int, rule: str, region: Region, view: FlipZoom | None
    ) -> None:
        """Write histograms of windows (N, 2) in us, as `view` shows them, into `out` (N, 2*bins, H, W) uint8."""
        window_histograms(self.stream, windows, bins, rule=rule, region=region, view=view, out=out)


@cache
def packed_events(source: EventSource) -> PackedEvents:
    """The open recording; `NotPacked` where it has no packed store."""
    # As many as there are: an open store is small, and maps its files anew where they have not been used for long.
    return source.opened(open_events)


@lru_cache(maxsize=1)
def _in_memory(source: EventSource) -> PackedEvents:
    return source.opened(load_events)


def read_rectification(path: Path, height: int, width: int) -> NDArray[np.int16]:
    """Nearest rectified pixel of each raw one (DSEC): the frame that labels live in.

    Args:
        path: `rectify_map.h5` with (H, W, 2) floating-point x and y (uzh-rpg/DSEC).
        height: rows of the sensor in px.
        width: columns of the sensor in px.

    Returns:
        (H, W, 2) int16 x and y; -1 where the place lies outside of the sensor.
    """
    if not path.is_file():
        raise UserError(path, "no such file, and labels need rectified events", "copy it beside the events")
    with translate_errors(path, RECTIFY_MAP):
        pixels = dataset(path, RECTIFY_MAP, "f", 3)[()]
    if pixels.shape != (height, width, 2) or not np.isfinite(pixels).all():
        what = f"{RECTIFY_MAP} has the shape {pixels.shape}, not {(height, width, 2)}, or places that are no numbers"
        raise UserError(path, what, AGAIN)
    nearest = np.floor(pixels + 0.5)
    inside = ((nearest >= 0) & (nearest < (width, height))).all(axis=-1, keepdims=True)
    return np.where(inside, nearest, -1).astype(np.int16)


@dataclass(frozen=True)
class ArchiveSource:
    """Histograms of one recording of RVT's archives, in folder `path`.

    `sensor` is the (height, width) in px that they have to be of, where the user gives one.
    """

    path: Path
    sensor: Size | None = None

    @property
    def file(self) -> Path:
        """The HDF5 file of the histograms."""
        folder = self.path / REPRESENTATIONS
        found = next((folder / name for name in FACTORS if (folder / name).is_file()), None)
        if found is None:
            raise UserError(folder, f"holds neither {' nor '.join(FACTORS)}", "unpack the archive again")
        return found

    @property
    def data(self) -> h5py.Dataset:
        """(N, 2*bins, H, W) uint8 histograms of the file."""
        stored = dataset(self.file, "data", "u", 4)
        if stored.dtype != np.uint8 or stored.shape[1] != 2 * BINS:
            what = f"data is {stored.dtype} {stored.shape} instead of uint8 (windows, {2 * BINS}, H, W)"
            raise UserError(self.file, what, AGAIN)
        return stored

    @property
    def factor(self) -> int:
        """By which the sensor's size is divided in the histograms."""
        return FACTORS[self.file.name]

    @property
    def stream(self) -> PackedEvents:
        """Refused: the archive has no events."""
        raise UserError(self.path, "holds histograms, not events", "give the raw recordings")

    @property
    def region(self) -> Region:
        """Size of the stored histograms."""
        height, width = self.data.shape[2:]
        if self.sensor is not None:
            resolve_size(self.path, *self.sensor, named=(self.factor * height, self.factor * width))
        return Region(height, width)

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of the histograms and of their times."""
        return [quick_hash(file) for file in (self.file, self.path / ENDS)]

    @cached_property
    def windows(self) -> Windows:
        """(N, 2) windows in us that the histograms are of, border events included on both sides."""
        path, count = self.path / ENDS, len(self.data)
        ends = load_array(path)
        if ends.dtype.kind not in "iu" or ends.shape != (count,) or (ends[1:] <= ends[:-1]).any():
            raise UserError(path, f"does not hold {count} times that rise, one for each histogram", AGAIN)
        # Gen1 archives that are made again with RVT's public script have 50 ms of each 125 ms: 60 % of events are lost.
        spacing = float(np.median(np.diff(ends))) if count > 1 else WINDOW_US
        if not SPACING_US[0] <= spacing <= SPACING_US[1]:
            what = f"windows of 50 ms are {spacing / 1000:g} ms apart, so that events between them are missing"
            remedy = "give RVT's own archive, or the raw recordings; its public script makes this one"
            raise UserError(path, what, remedy)
        return ends.astype(np.int64)[:, None] - (WINDOW_US, 0)

    def require_window(self, length_ms: float | None) -> None:
        """Refuse windows of another length than the stored ones."""
        if length_ms is None or length_ms * 1000 != WINDOW_US:
            asked = "of all events since the previous label" if length_ms is None else f"{length_ms:g}"
            remedy = f"give --set window_ms={WINDOW_US // 1000}, or the raw recordings"
            raise UserError(self.path, f"holds windows of {WINDOW_US / 1000:g} ms, not {asked}", remedy)

    def fill(
        self, out: NDArray[np.uint8], windows: Windows, bins: int, rule: str, region: Region, view: FlipZoom | None
    ) -> None:
        """Write stored histograms, see `EventSource.fill`; other bins, rule and windows than theirs are refused."""
        if (bins, rule) != (BINS, RULE):
            what = f"holds histograms of {BINS} bins by rule {RULE}, not of {bins} by rule {rule}"
            raise UserError(self.path, what, f"give --set bins={BINS} and --set rule={RULE}, or the raw recordings")
        places = np.searchsorted(self.windows[:-1, 1], windows[:, 1])
        if (self.windows[places] != windows).any():
            raise UserError(self.path, "has no histogram of one of the windows", "give the raw recordings")
        data = self.data
        for histogram, place in zip(out, places.tolist(), strict=True):
            with translate_errors(self.file, "a histogram"):
                stored = data[place]
            if stored.max() > CLIP:
                raise UserError(self.file, f"holds counts above {CLIP}", AGAIN)
            histogram[...] = stored if view is None else apply_maps(stored, view, 0)


Source = EventSource | ArchiveSource


def is_archive(folder: Path) -> bool:
    """Whether a folder is a recording of one of RVT's archives."""
    return any((folder / REPRESENTATIONS / name).is_file() for name in FACTORS)


def source_of(path: Path, sensor: Size | None = None) -> Source:
    """Events or histograms of a recording; `sensor` is its (height, width) in px as the user gives it."""
    return ArchiveSource(path, sensor) if is_archive(path) else EventSource(path, sensor)


def is_there(path: Path) -> bool:
    """Whether a recording, or its packed store, exists."""
    return path.exists() or (store_of(path) / HEADER).is_file()


class Packing(NamedTuple):
    """A recording to pack, where its store goes, and its number of events."""

    source: EventSource
    store: Path
    events: int


def pack_missing(
    sources: Iterable[Source], *, beside: bool = False, processes: int = 1, skip_damaged: bool | None = None
) -> list[UserError]:
    """Pack what has no packed store, with one bar; nothing is written where the disk has too little for all of it.

    Killed at any point, it goes on with the first recording that is not whole when it is called again.

    Args:
        sources: of recordings that are about to be read many times.
        beside: whether stores go beside their recordings, where those of older versions are replaced, and not into the
            cache.
        processes: recordings packed at once.
        skip_damaged: whether recordings that cannot be read are left out; None: that cannot be asked for.

    Returns:
        What is wrong with those left out.
    """
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
    folder, needed = missing[0].store.parent, sum(disk_needed(packing.events) for packing in missing)
    free = shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists())).free
    if needed > free:
        recordings = f"{len(missing)} recording{'s' * (len(missing) > 1)}"
        what = f"has {free:,} bytes free, the packed events of {recordings} need about {needed:,}"
        raise UserError(folder, what, "make room, or let TESPEC_CACHE name a folder on another disk")
    done, total = 0, sum(packing.events for packing in missing)
    with ExitStack() as stack:
        advance = stack.enter_context(progress("packing" if beside else f"packing into {folder}", "events"))

        def packed(events: int, name: str) -> None:
            advance(done + events, max(total, done + events), name)

        run: Any = partial(map, partial(_pack, packed=packed))
        if processes > 1:
            spawn = multiprocessing.get_context("spawn")
            run = partial(stack.enter_context(ProcessPoolExecutor(min(processes, len(missing)), spawn)).map, _pack)
        for packing, failure in zip(missing, run(missing), strict=True):
            packed(packing.events, packing.source.path.name)
            done += packing.events
            if failure is None:
                continue
            if failure.where == str(packing.store.parent) or failure.where.startswith(str(packing.store)):
                # No recording is damaged.
                remedy = failure.remedy if beside else "make room, or let TESPEC_CACHE name another folder"
                raise UserError(failure.where, failure.what, remedy)
            left_out.append(raise_or_leave_out(failure, skip_damaged, len(wanted)))
    return left_out


def raise_or_leave_out(error: UserError, skip_damaged: bool | None, recordings: int) -> UserError:
    """What is wrong with one of several recordings: returned where it is to be left out, else raised."""
    if skip_damaged:
        return error
    offered = ", or leave it out with --skip-damaged" * (skip_damaged is not None and recordings > 1)
    raise UserError(error.where, error.what, error.remedy + offered) from error


def _missing(source: EventSource, beside: bool) -> list[Packing]:
    """What is to be done about a recording: nothing where it has a store."""
    path, store = source.path, store_of(source.path)
    if not is_recorded(path) and is_complete(store):
        return []
    reader = source.reader()
    if is_complete(store):
        same = is_of(header_of(store)["source"], path)
        if same or not beside:
            require_same(store, path, same)
            return []
    target = store if beside else cache_path(reader)
    return [] if target != store and is_complete(target) else [Packing(source, target, reader.events)]


def _pack(packing: Packing, packed: Callable[[int, str], None] = lambda events, name: None) -> UserError | None:
    """Pack one recording in this process; returns what is wrong with it, if anything is."""
    path = packing.source.path
    try:
        reader = packing.source.reader()
        waiting = f"{path}: another process packs it; waiting for it"
        pack(reader, packing.store, lambda events, _: packed(events, path.name), lambda: say(waiting))
        if (cached := cache_path(reader)) != packing.store:
            shutil.rmtree(cached, ignore_errors=True)  # of a training, which is needed no more
    except UserError as error:
        return error
    return None
