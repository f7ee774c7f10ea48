"""The stages of events: histogram, packed store, packing, intensity; each beside how peers do it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import h5py
import hdf5plugin
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.networks import histograms
from benchmarks.measure.rows import Row
from tespec.core.paths import REPOSITORY
from tespec.datasets.prepare import Packing, pack_recording
from tespec.datasets.sources import EventSource
from tespec.events.histogram import event_histogram
from tespec.events.intensity import estimate_intensity
from tespec.events.packing import pack
from tespec.events.readers.prophesee_dat import RECORD, X_BITS, Y_BITS
from tespec.events.spatial import Region
from tespec.events.store import StoreStream, open_store
from tespec.events.stream import ArrayStream, Events
from tespec.events.windows import window_histograms

# Events per second of the full sensor that a busy 1Mpx recording has: one of 540 million in 60 s that evlib measures.
BUSY = 9_000_000
SENSOR_1MPX = (720, 1280)
HALF_1MPX = (360, 640)


def make_events(count: int, microseconds: int, height: int, width: int, seed: int = 0, start: int = 0) -> Events:
    """Random events in time order, normally distributed about the middle of the sensor."""
    generator = np.random.default_rng(seed)

    def places(side: int) -> np.ndarray:
        drawn = generator.standard_normal(count, np.float32) * (side / 5) + side / 2
        return drawn.clip(0, side - 1).astype(np.uint16)

    t = start + np.sort(generator.integers(0, microseconds, count))
    return Events(places(width), places(height), t, generator.integers(0, 2, count, np.uint8))


def make_store(folder: Path, rate: int, seconds: float, sensor: tuple[int, int] = SENSOR_1MPX) -> Path:
    """A packed recording of `rate` events/s at `folder`."""
    events = make_events(round(rate * seconds), round(seconds * 1e6), *sensor)
    return pack(ArrayStream(*events, height=sensor[0], width=sensor[1]), folder)


BINS = 10
WINDOW_US = 50_000
COUNT = 450_000  # of a busy window at full size


def put_histogram(events: Events, start: int, height: int, width: int) -> Tensor:
    """(2 * BINS, height, width) uint8 of the events of the window at `start` us, by `put_` into int16."""
    # RVT's h5 files and loader hold the columns as int64 tensors.
    columns, rows, times, polarity = (torch.from_numpy(values.astype(np.int64)) for values in events)
    counts = torch.zeros(2 * BINS * height * width, dtype=torch.int16)
    cell = ((polarity * BINS + (times - start) * BINS // WINDOW_US) * height + rows) * width + columns
    counts.put_(cell, torch.ones_like(cell, dtype=torch.int16), accumulate=True)
    return counts.clamp_(max=10).to(torch.uint8).view(2 * BINS, height, width)


def own_histogram(events: Events, start: int, height: int, width: int) -> NDArray[np.uint8]:
    """The same by the harness."""
    return event_histogram(
        *events, t_start=start, t_end=start + WINDOW_US, bins=BINS, height=height, width=width
    )  # fmt: skip


def histogram(conditions: Conditions) -> Iterator[Row]:
    """One window of a busy recording."""
    count = conditions.size(COUNT, 2_000)
    height, width = conditions.size(HALF_1MPX, (24, 32))
    events = make_events(count, WINDOW_US, height, width)
    bytes_of_event = sum(values.itemsize for values in events)
    row = Row(
        "histogram", "window", "cpu", f"{count:,} events on {height}x{width} px", "put_ into int16",
        work=count, unit="events", moved=count * bytes_of_event + 2 * BINS * height * width,
    )  # fmt: skip
    yield conditions.compare(
        row,
        lambda: own_histogram(events, 0, height, width),
        lambda: put_histogram(events, 0, height, width),
        lambda ours, peers: np.array_equal(ours, peers.numpy()),
    )


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


BLOCK_SECONDS = 1  # of events that differ; longer files repeat them
HEADER = "% Data file containing CD events.\n% Version 2\n% Height {}\n% Width {}\n"
PEAK = "VmHWM:"  # of /proc/self/status, in kB; that of a fresh process, which ru_maxrss is not


def prepare(conditions: Conditions) -> Iterator[Row]:
    """One file side by side, then the memory that a file several times as long takes."""
    rate, seconds, longer = conditions.size((BUSY, 3, 15), (20_000, 1, 2))
    sensor = conditions.size(SENSOR_1MPX, (24, 32))
    with TemporaryDirectory() as name:
        folder, numbers = Path(name), count()
        short, long = (write_dat(folder / f"{each}.dat", rate, each, sensor) for each in (seconds, longer))
        events = rate * seconds

        def ours() -> Path:
            return _packed(short, folder / f"out{next(numbers)}")

        row = Row(
            "prepare", "from .dat", "cpu", f"{events:,} events on {sensor[0]}x{sensor[1]} px, hashes included",
            "RVT: dense histograms", work=events, unit="events", moved=(RECORD.itemsize + WORD) * events,
            figures=_resident(long, folder / "long", rate * longer),
        )  # fmt: skip
        yield conditions.compare(
            row, ours, lambda: _dense(short, folder / "dense.h5", sensor), lambda a, b: _same(a, b, sensor)
        )


def write_dat(path: Path, rate: int, seconds: int, sensor: tuple[int, int]) -> Path:
    """A `.dat` file of `rate` events/s, written a block at a time."""
    x, y, t, p = make_events(rate * BLOCK_SECONDS, BLOCK_SECONDS * 1_000_000, *sensor)
    records = np.empty(len(t), RECORD)
    records["word"] = x.astype(np.uint32) | y.astype(np.uint32) << X_BITS | p.astype(np.uint32) << (X_BITS + Y_BITS)
    with path.open("wb") as file:
        file.write(HEADER.format(*sensor).encode() + bytes((12, RECORD.itemsize)))
        for block in range(0, seconds, BLOCK_SECONDS):
            records["t"] = t + block * 1_000_000
            records.tofile(file)
    return path


def _packed(path: Path, out: Path) -> Path:
    """Pack a file that was never opened before, in a cache of its own."""
    with patch.dict("os.environ", TESPEC_CACHE=str(out / "cache")):
        packing = Packing(path.stem, "train", EventSource(path), out / "events.store", ())
        pack_recording(packing, lambda *_: None)
    return packing.target


def _dense(path: Path, out: Path, sensor: tuple[int, int]) -> Path:
    """Read the whole file, and write a compressed chunk per window of histograms at half size."""
    with path.open("rb") as file:
        for _ in HEADER.splitlines():
            file.readline()
        file.read(2)
        records = np.fromfile(file, RECORD)
    word = records["word"]
    mask = (1 << X_BITS) - 1
    x, y, p = (word & mask).astype("u2"), (word >> X_BITS & mask).astype("u2"), (word >> (X_BITS + Y_BITS) & 1)
    events = Events(x, y, np.maximum.accumulate(records["t"].astype(np.int64)), p.astype("u1"))
    starts = range(0, int(events.t[-1]) + 1, WINDOW_US)
    shape = (len(starts), 2 * BINS, sensor[0] // 2, sensor[1] // 2)
    filters = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)
    with h5py.File(out, "w") as file:
        data = file.create_dataset("data", shape, "u1", chunks=(1, *shape[1:]), **filters)
        for window, start in enumerate(starts):
            begin, end = np.searchsorted(events.t, (start, start + WINDOW_US))
            part = Events(events.x[begin:end], events.y[begin:end], events.t[begin:end], events.p[begin:end])
            data[window] = half(put_histogram(part, start, *sensor)).numpy()
    return out


def _same(store: Path, archive: Path, sensor: tuple[int, int]) -> bool:
    """Whether the histograms of the packed events are those that were stored."""
    with h5py.File(archive) as file:
        dense = file["data"][:]
    borders = np.arange(len(dense) + 1) * WINDOW_US
    region = Region(sensor[0] // 2, sensor[1] // 2, factor=2)
    return np.array_equal(window_histograms(open_store(store), borders, BINS, region=region), dense)


def _resident(path: Path, out: Path, events: int) -> dict[str, float]:
    """Peak resident memory of a process that packs a file, mapped pages included."""
    code = (
        "import sys; from pathlib import Path; from benchmarks.measure.events import _packed;"
        "_packed(Path(sys.argv[1]), Path(sys.argv[2]));"
        f"print([line for line in open('/proc/self/status') if line.startswith({PEAK!r})][0].split()[1])"
    )
    if not Path("/proc/self/status").is_file():
        return {}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(out)],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {"resident_bytes": 1024 * float(done.stdout), "resident_at_events": float(events)}


SHAPE = (8, 15, 20, 360, 640)  # of a step of the paper's pre-training
ALPHA, BIN_SECONDS, NORM_EVENTS = 5.0, 0.005, 5000.0


def per_bin(counts: Tensor) -> Tensor:
    """Video (B, T, H, W) by Eq. 7 as it is written, bin after bin."""
    lanes, segments, channels, height, width = counts.shape
    image, video = torch.zeros(lanes, height, width, device=counts.device), []
    for segment in range(segments):
        for k in range(channels // 2):
            negative = counts[:, segment, k].float()
            positive = counts[:, segment, channels // 2 + k].float()
            events = (negative + positive).sum((1, 2), keepdim=True)
            image = torch.exp(-ALPHA * BIN_SECONDS * events / NORM_EVENTS) * image + positive - negative
        video.append(image)
    return torch.stack(video, dim=1)


def intensity(conditions: Conditions) -> Iterator[Row]:
    """A whole step at the paper's size."""
    shape = conditions.size(SHAPE, (2, 3, 20, 12, 16))
    for device in conditions.devices:
        counts = histograms(*shape, device=device)
        frames = shape[0] * shape[1]
        row = Row(
            "intensity", "step", device.type, " x ".join(map(str, shape)), "one pass per bin", work=frames,
            unit="frames", moved=counts.nbytes + 4 * frames * shape[-2] * shape[-1],
        )  # fmt: skip
        yield conditions.compare(
            row,
            lambda counts=counts: estimate_intensity(counts)[0],  # type: ignore[misc]
            lambda counts=counts: per_bin(counts),  # type: ignore[misc]
            lambda ours, peers: torch.allclose(ours, peers, atol=1e-4),
        )
    yield from conditions.without_gpu("intensity", "step")
