"""Sources of a recording's histograms: its events, packed or not, or RVT's archive; each worker opens its own."""

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
from tespec.core.progress import progress
from tespec.core.settings import Binning, Rule, Size
from tespec.datasets.augment import FlipZoom, apply_maps
from tespec.events import PackedEvents, files, load_events, open_events, opening, packing
from tespec.events.histogram import Region
from tespec.events.readers import Reader, resolve_size
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import AGAIN, dataset, translate_errors
from tespec.events.store import CLIP, HEADER, header_of, store_of

RECTIFY_MAP = "rectify_map"
Windows = NDArray[np.int64]  # (N, 2) start and end of each in us, end exclusive
# RVT's archives: one HDF5 chunk per window of 50 ms (uzh-rpg/RVT, scripts/genx/preprocess_dataset.py).
REPRESENTATIONS = Path("event_representations_v2") / "stacked_histogram_dt=50_nbins=10"
FACTORS = {"event_representations.h5": 1, "event_representations_ds2_nearest.h5": 2}  # of Gen1 and 1Mpx
ENDS = REPRESENTATIONS / "timestamps_us.npy"
BINS, WINDOW_US = 10, 50_000
STORED_RULE: Rule = "rvt"
SPACING_US = (45_000, 55_000)  # of windows, which varies a little because windows are fitted between labels


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


@dataclass(frozen=True)
class ArchiveSource:
    """Histograms of one recording of RVT's archives."""

    path: Path  # folder of the recording
    sensor: Size | None = None  # the user's (height, width) in px, which the histograms must match; None: any

    @property
    def file(self) -> Path:
        """HDF5 file of the histograms."""
        folder = self.path / REPRESENTATIONS
        found = next((folder / name for name in FACTORS if (folder / name).is_file()), None)
        if found is None:
            raise UserError(folder, f"holds neither {' nor '.join(FACTORS)}", "unpack the archive again")
        return found

    @property
    def data(self) -> h5py.Dataset:
        """Stored histograms (N, 2*bins, H, W) uint8."""
        stored = dataset(self.file, "data", "u", 4)
        if stored.dtype != np.uint8 or stored.shape[1] != 2 * BINS:
            what = f"data is {stored.dtype} {stored.shape} instead of uint8 (windows, {2 * BINS}, H, W)"
            raise UserError(self.file, what, AGAIN)
        return stored

    @property
    def stream(self) -> PackedEvents:
        """Raise a `UserError`, since the archive has no events."""
        raise UserError(self.path, "holds histograms, not events", "give the raw recordings")

    @property
    def region(self) -> Region:
        """Region with the size and the downsampling factor of the stored histograms."""
        (height, width), factor = self.data.shape[2:], FACTORS[self.file.name]
        resolve_size(self.path, self.sensor, named=(factor * height, factor * width))
        return Region(height, width, factor)

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of the files of histograms and times."""
        return [files.quick_hash(file) for file in (self.file, self.path / ENDS)]

    @cached_property
    def windows(self) -> Windows:
        """Windows (N, 2) of the histograms in us; an event at a border is in both windows."""
        path, count = self.path / ENDS, len(self.data)
        ends = load_array(path)
        if ends.dtype.kind not in "iu" or ends.shape != (count,) or (ends[1:] <= ends[:-1]).any():
            raise UserError(path, f"does not hold {count} increasing times, one for each histogram", AGAIN)
        # Gen1 archives made with RVT's public script cover 50 ms of each 125 ms: 60 % of the events are lost.
        spacing = float(np.median(np.diff(ends))) if count > 1 else WINDOW_US
        if not SPACING_US[0] <= spacing <= SPACING_US[1]:
            what = f"windows of 50 ms are {spacing / 1000:g} ms apart, so events between them are missing"
            remedy = "give RVT's own archive (not one made with its public script), or the raw recordings"
            raise UserError(path, what, remedy)
        return ends.astype(np.int64)[:, None] - (WINDOW_US, 0)

    def require_window(self, length_ms: float | None) -> None:
        """Refuse windows of another length than the stored ones."""
        if length_ms is None or length_ms * 1000 != WINDOW_US:
            asked = "of all events since the previous label" if length_ms is None else f"{length_ms:g}"
            remedy = f"give --set window_ms={WINDOW_US // 1000}, or the raw recordings"
            raise UserError(self.path, f"holds windows of {WINDOW_US / 1000:g} ms, not {asked}", remedy)

    def fill(self, out: NDArray[np.uint8], windows: Windows, binning: Binning, flip_zoom: FlipZoom | None) -> None:
        """Write stored histograms, see `Recording.fill`; another binning and other windows are refused."""
        if (binning.bins, binning.rule) != (BINS, STORED_RULE):
            what = f"holds histograms of {BINS} bins with rule {STORED_RULE}, not {binning.bins} bins with rule"
            what += f" {binning.rule}"
            raise UserError(self.path, what, f"give --set bins={BINS} --set rule={STORED_RULE}, or the raw recordings")
        places = np.searchsorted(self.windows[:-1, 1], windows[:, 1])
        if (self.windows[places] != windows).any():
            raise UserError(self.path, "has no histogram for one of the windows", "give the raw recordings")
        data = self.data
        for histogram, place in zip(out, places.tolist(), strict=True):
            with translate_errors(self.file, "a histogram"):
                stored = data[place]
            if stored.max() > CLIP:
                raise UserError(self.file, f"holds counts above {CLIP}", AGAIN)
            histogram[...] = stored if flip_zoom is None else apply_maps(stored, flip_zoom, 0)


Source = EventSource | ArchiveSource


def is_archive(folder: Path) -> bool:
    """Whether a folder is a recording of one of RVT's archives."""
    return any((folder / REPRESENTATIONS / name).is_file() for name in FACTORS)


def source_of(path: Path, sensor: Size | None = None) -> Source:
    """Source of a recording, either events or histograms; `sensor` is the user's (height, width) in px."""
    return ArchiveSource(path, sensor) if is_archive(path) else EventSource(path, sensor)


def is_there(path: Path) -> bool:
    """Whether a recording, or its packed store, exists."""
    return path.exists() or (store_of(path) / HEADER).is_file()


class Packing(NamedTuple):
    """A recording to pack, the path of its store, and its number of events."""

    source: EventSource
    store: Path
    events: int


def pack_missing(
    sources: Iterable[Source], *, beside: bool = False, processes: int = 1, skip_damaged: bool | None = None
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
