"""Packing a `.dat` recording, against RVT's preprocessing of it into dense histograms."""

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

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.histogram import BINS, WINDOW_US, put_histogram
from benchmarks.measure.row import Row
from benchmarks.measure.scene import BUSY, SENSOR_1MPX, make_events
from benchmarks.measure.store import WORD, half
from tespec.core.paths import REPOSITORY
from tespec.datasets.prepare import Job, pack_job
from tespec.datasets.sources import EventSource
from tespec.events.readers.prophesee_dat import RECORD, X_BITS, Y_BITS
from tespec.events.spatial import Region
from tespec.events.store import open_store
from tespec.events.stream import Events
from tespec.events.windows import window_histograms

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
        job = Job(path.stem, "train", EventSource(path), out / "events.store", ())
        pack_job(job, lambda *_: None)
    return job.target


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
        "import sys; from pathlib import Path; from benchmarks.measure.prepare import _packed;"
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
