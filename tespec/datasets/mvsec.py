"""MVSEC's depth, read from the official HDF5 files without a conversion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pydantic
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.registry import DATASETS
from tespec.core.settings import choice
from tespec.datasets.base import LabelledDataset, RecordingFiles
from tespec.datasets.labels import DepthMaps, open_depths, speed_at, speed_file
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import STORE, EventSource
from tespec.events.readers.arrays import as_events
from tespec.events.readers.hdf5 import AGAIN, AT_ONCE, SUFFIXES, dataset, holds, part, translate_errors
from tespec.events.readers.sensor import resolve_size
from tespec.events.spatial import Region
from tespec.events.stream import Events, Reader

DATA, TRUTH = "_data.hdf5", "_gt.hdf5"
DEPTHS = ("raw",)
SENSOR = (260, 346)
EVENTS = "davis/left/events"
X, Y, T, P = range(4)
LATEST = 1e11  # s, the year 5138; in us it is exact in 64 bits


@pydantic.dataclasses.dataclass(frozen=True)
class MvsecProtocol:
    """Which depth is the truth: "raw", the only one that fits MVSEC's events, which are not rectified."""

    depth: Annotated[str, choice(*DEPTHS)]


@DATASETS.register_module()
class Mvsec(LabelledDataset):
    """MVSEC; see `LabelledDataset`.

    The depth maps' own times are the clock; images are not used. A label's events are those since the label before
    it; labels of which this period begins before the first event or after the last are left out and counted. Maps
    without any depth stay labels.
    """

    title = "MVSEC"
    layout = "official hdf5 files, one of events and one of ground truth for each sequence"
    protocol_type = MvsecProtocol
    not_downsampled = "depth is"
    protocol: MvsecProtocol

    @classmethod
    def reads(cls, path: Path) -> bool:
        """Whether an HDF5 file has MVSEC's events of the left camera."""
        return path.suffix.lower() in SUFFIXES and holds(path, EVENTS)

    @classmethod
    def reader(cls, path: Path, height: int | None = None, width: int | None = None) -> Reader:
        """What reads a `_data.hdf5`: float64 rows of x, y, time in s since 1970, and polarity -1 or 1."""
        shape = dataset(path, EVENTS, "f", 2).shape
        if shape[1] != 4:
            raise UserError(path, f"{EVENTS} has the shape {shape} instead of (events, 4)", AGAIN)
        count, size = shape[0], resolve_size(path, height, width, default=SENSOR)
        if not count:
            raise UserError(path, "holds no events", "give a recording with events")

        def chunks() -> Iterator[Events]:
            for begin in range(0, count, AT_ONCE):
                with translate_errors(path, "a part of the events"):
                    rows = part(path, EVENTS)[begin : begin + AT_ONCE]
                seconds, values = np.asarray(rows[:, T], np.float64), rows[:, (X, Y, P)]
                if not (np.isfinite(seconds).all() and (np.abs(seconds) < LATEST).all()):
                    raise UserError(path, f"{EVENTS} holds times that are none", AGAIN)
                if not (values == np.rint(values)).all():
                    raise UserError(path, f"{EVENTS} holds coordinates that are no whole numbers", AGAIN)
                yield as_events(path, size, values[:, 0], values[:, 1], seconds_to_us(seconds), values[:, 2])

        return Reader(path, *size, count, chunks)

    def find(self, split: str, name: str) -> RecordingFiles:
        """What one sequence consists of."""
        found = {path.with_name(f"{name}{DATA}") for path in self._search(f"{name}{DATA}*")}
        if not found:
            path = self.root / f"{name}{DATA}"
            raise UserError(path, f"recording of the {split} split is missing", "copy it into the folder")
        if len(found) > 1:
            raise UserError(self.root, f"holds {name}{DATA} more than once", "keep one of them")
        (data,) = found
        truth = data.with_name(f"{name}{TRUTH}")
        if not truth.is_file():
            raise UserError(truth, "no such file", "copy the ground truth beside the events")
        beside = [truth, speed_file(self.root, name)]
        source = EventSource(data, self.given_sensor)
        return RecordingFiles(name, split, source, tuple(path for path in beside if path.exists()))

    def _search(self, pattern: str) -> list[Path]:
        """Recordings, or their packed stores, in the folder or in the folders in it."""
        paths = [*self.root.glob(pattern), *self.root.glob(f"*/{pattern}")]
        return [path for path in paths if path.name.endswith((DATA, DATA + STORE))]

    def open(self, files: RecordingFiles) -> LabelledRecording:
        """One sequence with its depth."""
        stream, truth = files.source.stream, files.beside[0]
        name = f"davis/left/depth_image_{self.protocol.depth}"
        count = open_depths(truth, name, stream.height, stream.width)
        times = read_times(truth, f"{name}_ts")
        if len(times) != count:
            raise UserError(truth, f"{name} has {count} maps for {len(times)} times", AGAIN)
        spacing = int(np.median(np.diff(times))) if count > 1 else 50_000
        begin = times - spacing
        kept = np.flatnonzero((begin >= stream.t_first) & (begin <= stream.t_last))
        if not len(kept):
            what = f"its depth lies at {times[0]} to {times[-1]} us, the events at {stream.t_first} to {stream.t_last}"
            raise UserError(truth, what, "copy events and ground truth again")
        windows, labelled = self.rule.apply(times[kept], int(times[kept[0]]) - spacing)
        return LabelledRecording(
            name=files.name,
            source=files.source,
            region=Region(stream.height, stream.width),
            windows=windows,
            labels=DepthMaps(truth, name, tuple(kept.tolist()), stream.height, stream.width),
            labelled=labelled,
            ego_speed=speed_at(self.root, files.name, times[kept]),
            left_out=count - len(kept),
        )

    def describe(self) -> dict[str, str]:
        """The protocol in words."""
        return super().describe() | {
            "labels": f"depth_image_{self.protocol.depth} at its own times; those whose period begins before the first "
            "event or after the last are left out",
            "coordinates": "raw pixels",
        }


def read_times(path: Path, name: str) -> NDArray[np.int64]:
    """Times (N,) int64 in us since 1970, from seconds in dataset `name` of a file.

    Raises:
        UserError: it is missing, empty, or its times step back.
    """
    with translate_errors(path, name):
        dataset(path, name, "f")
        seconds = part(path, name)[()].astype(np.float64)
    if not len(seconds) or not (np.abs(seconds) < LATEST).all():
        raise UserError(path, f"{name} holds no times", AGAIN)
    times = seconds_to_us(seconds)
    if (np.diff(times) <= 0).any():
        raise UserError(path, f"the times in {name} step back or repeat", AGAIN)
    return times


def seconds_to_us(seconds: NDArray[np.floating]) -> NDArray[np.int64]:
    """Times in us (int64) of times in s (float64).

    Seconds since 1970 in float64 are 0.24 us apart, so that the nearest microsecond is the one that was meant.
    Events and ground truth go through this function alike, and so share one clock.
    """
    return np.rint(np.asarray(seconds, np.float64) * 1e6).astype(np.int64)
