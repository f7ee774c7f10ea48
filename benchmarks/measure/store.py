"""Windows out of the packed store, against slices of a compressed HDF5 file as RVT reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import hdf5plugin
import numpy as np
import torch
from torch import Tensor

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.histogram import BINS, WINDOW_US, own_histogram, put_histogram
from benchmarks.measure.row import Row
from benchmarks.measure.scene import BUSY, SENSOR_1MPX, make_store
from tespec.events.spatial import Region
from tespec.events.store import StoreStream, open_store
from tespec.events.stream import Events
from tespec.events.windows import window_histograms

WORD = 4  # bytes of a packed event
CHUNK = 131_072  # events of a chunk of the HDF5 file


def store(conditions: Conditions) -> Iterator[Row]:
    """All windows of a second, at full size and as pre-training sees 1Mpx."""
    rate, seconds = conditions.size((BUSY, 1.0), (20_000, 0.2))
    height, width = conditions.size(SENSOR_1MPX, (24, 32))
    with TemporaryDirectory() as folder:
        stream = open_store(make_store(Path(folder) / "recording", rate, seconds, (height, width)))
        file = Path(folder) / "recording.h5"
        write_h5(file, stream.slice(0, stream.t_last + 1))
        starts = range(0, round(seconds * 1e6), WINDOW_US)
        times = _times(file)
        moved = WORD * stream.count + len(starts) * 2 * BINS * height * width
        row = Row(
            "store", "slice and histogram", "cpu", f"{len(starts)} windows of {WINDOW_US // 1000} ms, {stream.count:,} "
            f"events on {height}x{width} px", "HDF5 (Blosc, zstd), put_", work=stream.count, unit="events", moved=moved,
        )  # fmt: skip
        yield conditions.compare(
            row,
            lambda: [own_histogram(stream.slice(t, t + WINDOW_US), t, height, width) for t in starts],
            lambda: [put_histogram(slice_h5(file, times, t), t, height, width) for t in starts],
            lambda ours, peers: np.array_equal(np.stack(ours), torch.stack(peers).numpy()),
        )
        yield _halved(conditions, stream, file, list(starts))


def _halved(conditions: Conditions, stream: StoreStream, file: Path, starts: list[int]) -> Row:
    """At half size: only the events that are left are counted, where peers count all and subsample."""
    height, width = stream.height // 2, stream.width // 2
    borders, region = [*starts, starts[-1] + WINDOW_US], Region(height, width, factor=2)
    times = _times(file)

    def subsampled() -> list[Tensor]:
        whole = [put_histogram(slice_h5(file, times, t), t, stream.height, stream.width) for t in starts]
        return [half(each) for each in whole]

    row = Row(
        "store", "slice, halve and histogram", "cpu", f"{len(starts)} windows, {stream.count:,} events, to "
        f"{height}x{width} px", "HDF5 (Blosc, zstd), put_, then nearest", work=stream.count, unit="events",
        moved=WORD * stream.count + len(starts) * 2 * BINS * height * width,
    )  # fmt: skip
    return conditions.compare(
        row,
        lambda: window_histograms(stream, borders, BINS, region=region),
        subsampled,
        lambda ours, peers: np.array_equal(ours, torch.stack(peers).numpy()),
    )


def half(histogram: Tensor) -> Tensor:
    """Nearest-exact subsampling by 2, as RVT preprocesses 1Mpx."""
    return torch.nn.functional.interpolate(histogram[None], scale_factor=0.5, mode="nearest-exact")[0]


def write_h5(path: Path, events: Events) -> None:
    """Columns as DSEC and RVT store them: Blosc with zstd, byte shuffle."""
    with h5py.File(path, "w") as file:
        for name, values in zip(Events._fields, events, strict=True):
            chunk = min(CHUNK, len(events.t))
            filters = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)
            file.create_dataset(f"events/{name}", data=values, chunks=(chunk,), **filters)


def _times(path: Path) -> np.ndarray:
    """All times, which RVT's reader holds in memory to find a window."""
    with h5py.File(path) as file:
        times: np.ndarray = file["events/t"][:]
        return times


def slice_h5(path: Path, times: np.ndarray, start: int) -> Events:
    """The window at `start` us."""
    begin, end = np.searchsorted(times, (start, start + WINDOW_US))
    with h5py.File(path) as file:
        return Events(*(file[f"events/{name}"][begin:end] for name in Events._fields))
