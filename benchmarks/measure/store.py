"""Windows out of the packed store, against slices of a compressed HDF5 file as RVT reads them.

The first row has as many events on as many pixels as the row of the histogram alone; the second one is 1Mpx as it is.
"""

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
from benchmarks.measure.histogram import BINS, WINDOW_US, put_histogram
from benchmarks.measure.row import Row
from benchmarks.measure.scene import BUSY, HALF_1MPX, SENSOR_1MPX, make_store
from tespec.events.spatial import Region
from tespec.events.store import StoreStream, open_store
from tespec.events.stream import Events
from tespec.events.windows import window_histograms

WORD = 4  # bytes of a packed event
CHUNK = 131_072  # events of a chunk of the HDF5 file


def store(conditions: Conditions) -> Iterator[Row]:
    """All windows of a second, as they were recorded and as pre-training sees 1Mpx."""
    with TemporaryDirectory() as folder:
        yield _whole(conditions, Path(folder) / "half", conditions.size(HALF_1MPX, (24, 32)))
        yield _halved(conditions, Path(folder) / "full", conditions.size(SENSOR_1MPX, (24, 32)))


def _recording(conditions: Conditions, folder: Path, sensor: tuple[int, int]) -> tuple[StoreStream, Path, list[int]]:
    """A packed recording, the same as HDF5, and where its windows start."""
    rate, seconds = conditions.size((BUSY, 1.0), (20_000, 0.2))
    stream = open_store(make_store(folder, rate, seconds, sensor))
    file = folder.with_suffix(".h5")
    write_h5(file, stream.slice(0, stream.t_last + 1))
    return stream, file, list(range(0, round(seconds * 1e6), WINDOW_US))


def _whole(conditions: Conditions, folder: Path, sensor: tuple[int, int]) -> Row:
    """Every event counted where it was recorded."""
    stream, file, starts = _recording(conditions, folder, sensor)
    times, borders = _times(file), [*starts, starts[-1] + WINDOW_US]
    row = Row(
        "store", "slice and histogram", "cpu", f"{len(starts)} windows of {WINDOW_US // 1000} ms, {stream.count:,} "
        f"events on {sensor[0]}x{sensor[1]} px", "HDF5 (Blosc, zstd), put_", work=stream.count, unit="events",
        moved=WORD * stream.count + len(starts) * 2 * BINS * sensor[0] * sensor[1],
    )  # fmt: skip
    return conditions.compare(
        row,
        lambda: window_histograms(stream, borders, BINS),
        lambda: torch.stack([put_histogram(slice_h5(file, times, t), t, *sensor) for t in starts]),
        lambda ours, peers: np.array_equal(ours, peers.numpy()),
    )


def _halved(conditions: Conditions, folder: Path, sensor: tuple[int, int]) -> Row:
    """At half size: only the events that are left are counted, where peers count all and subsample."""
    stream, file, starts = _recording(conditions, folder, sensor)
    times, borders = _times(file), [*starts, starts[-1] + WINDOW_US]
    height, width = sensor[0] // 2, sensor[1] // 2
    region = Region(height, width, factor=2)
    row = Row(
        "store", "slice, halve and histogram", "cpu", f"{len(starts)} windows, {stream.count:,} events on "
        f"{sensor[0]}x{sensor[1]} px, to {height}x{width} px", "HDF5 (Blosc, zstd), put_, then nearest",
        work=stream.count, unit="events", moved=WORD * stream.count + len(starts) * 2 * BINS * height * width,
    )  # fmt: skip
    return conditions.compare(
        row,
        lambda: window_histograms(stream, borders, BINS, region=region),
        lambda: torch.stack([half(put_histogram(slice_h5(file, times, t), t, *sensor)) for t in starts]),
        lambda ours, peers: np.array_equal(ours, peers.numpy()),
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
