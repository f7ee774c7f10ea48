"""RVT's preprocessed archives of Gen1 and 1Mpx: histograms of windows of 50 ms."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.hashes import Contents
from tespec.core.settings import Binning, Rule, Size
from tespec.datasets.augment import FlipZoom, apply_maps
from tespec.datasets.sources import EventSource, Windows
from tespec.events import PackedEvents, files
from tespec.events.histogram import Region
from tespec.events.readers import resolve_size
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import COPY_AGAIN, dataset, translate_errors
from tespec.events.store import MAX_COUNT

# RVT's archives: one HDF5 chunk per window of 50 ms (uzh-rpg/RVT,
# scripts/genx/preprocess_dataset.py).
REPRESENTATIONS = Path("event_representations_v2") / "stacked_histogram_dt=50_nbins=10"
# of Gen1 and 1Mpx
FACTORS = {"event_representations.h5": 1, "event_representations_ds2_nearest.h5": 2}
TIMES = REPRESENTATIONS / "timestamps_us.npy"  # of windows: ends (N,), or starts and ends (N, 2)
WINDOW_OF_FRAME = REPRESENTATIONS / "objframe_idx_2_repr_idx.npy"  # (K,) for each label frame
BINS = 10
WINDOW_US = 50_000
STORED_RULE: Rule = "rvt"
# Limits of lengths and spacings of windows, which vary a little since windows are fitted between
# labels.
SHORTEST_US = 45_000
LONGEST_US = 55_000


@dataclass(frozen=True)
class ArchiveSource:
    """Histograms of one recording of RVT's archives."""

    path: Path  # folder of the recording
    # the user's (height, width) in px, which the histograms must match; None: any
    sensor: Size | None = None

    @property
    def file(self) -> Path:
        """HDF5 file of the histograms."""
        folder = self.path / REPRESENTATIONS
        for name in FACTORS:
            if (folder / name).is_file():
                return folder / name
        raise UserError(
            folder, f"holds neither {' nor '.join(FACTORS)}", "unpack the archive again"
        )

    @property
    def data(self) -> h5py.Dataset:
        """Stored histograms (N, 2*bins, H, W) uint8."""
        stored = dataset(self.file, "data", "u", 4)
        if stored.dtype != np.uint8 or stored.shape[1] != 2 * BINS:
            raise UserError(
                self.file,
                f"data is {stored.dtype} {stored.shape} "
                f"instead of uint8 (windows, {2 * BINS}, H, W)",
                COPY_AGAIN,
            )
        return stored

    @property
    def stream(self) -> PackedEvents:
        """Raise a `UserError`, since the archive has no events."""
        raise UserError(self.path, "holds histograms, not events", "give the raw recordings")

    facts = stream

    @property
    def region(self) -> Region:
        """Region with the size and the downsampling factor of the stored histograms."""
        height, width = self.data.shape[2:]
        factor = FACTORS[self.file.name]
        resolve_size(self.path, self.sensor, named=(factor * height, factor * width))
        return Region(height, width, factor)

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of the files of histograms and times, to detect copies."""
        return [files.quick_hash(file) for file in (self.file, self.path / TIMES)]

    def contents(self) -> Contents:
        """Files of histograms and times, by name."""
        return {file.name: (file,) for file in (self.file, self.path / TIMES)}

    @cached_property
    def windows(self) -> Windows:
        """Windows (N, 2) of the histograms in us; an event at a border is in both windows.

        RVT's archive of Gen1 stores their starts and ends, that of 1Mpx only their ends.
        """
        path = self.path / TIMES
        count = len(self.data)
        times = load_array(path)
        is_readable = times.dtype.kind in "iu" and times.shape in ((count,), (count, 2))
        if not is_readable or (times[1:] <= times[:-1]).any():
            raise UserError(
                path, f"does not hold {count} increasing times, one for each histogram", COPY_AGAIN
            )
        windows = times.astype(np.int64)
        if windows.ndim == 1:
            windows = np.stack([windows - WINDOW_US, windows], axis=1)
        lengths = windows[:, 1] - windows[:, 0]
        if ((lengths < SHORTEST_US) | (lengths > LONGEST_US)).any():
            raise UserError(
                path,
                f"its windows last {lengths.min()} to {lengths.max()} us, not {WINDOW_US}",
                COPY_AGAIN,
            )
        # Gen1 archives of RVT's public script cover 50 ms of each 125 ms: 60 % of the events are
        # lost.
        spacing = float(np.median(np.diff(windows[:, 1]))) if count > 1 else WINDOW_US
        if not SHORTEST_US <= spacing <= LONGEST_US:
            raise UserError(
                path,
                f"windows of 50 ms are {spacing / 1000:g} ms apart, "
                "so events between them are missing",
                "give RVT's own archive (not one made with its public script), "
                "or the raw recordings",
            )
        return windows

    def window_of_frame(self) -> NDArray[np.int64]:
        """Index (K,) of the window of each label frame, rising.

        As in uzh-rpg/RVT (data/genx_utils/sequence_base.py), which does not match times.
        """
        index = load_array(self.path / WINDOW_OF_FRAME)
        count = len(self.windows)
        is_rising = index.ndim == 1 and index.dtype.kind in "iu" and (index[1:] > index[:-1]).all()
        if not is_rising or ((index < 0) | (index >= count)).any():
            raise UserError(
                self.path / WINDOW_OF_FRAME,
                f"does not hold rising indices of {count} histograms",
                COPY_AGAIN,
            )
        return index.astype(np.int64)

    def require_window(self, length_ms: float | None) -> None:
        """Refuse windows of another length than the stored ones."""
        if length_ms is None or length_ms * 1000 != WINDOW_US:
            requested = f"{length_ms:g}" if length_ms else "of all events since the previous label"
            raise UserError(
                self.path,
                f"holds windows of {WINDOW_US // 1000} ms, not {requested}",
                f"give --set window_ms={WINDOW_US // 1000}, or the raw recordings",
            )

    def fill(
        self, out: NDArray[np.uint8], windows: Windows, binning: Binning, flip_zoom: FlipZoom | None
    ) -> None:
        """Write stored histograms of T windows to `out`, see `Recording.fill`.

        Args:
            out: (T, 2*bins, H, W) uint8.
            windows: (T, 2) in us.
            binning: bins and rule.
            flip_zoom: flip and zoom of the histograms; None: neither.

        Raises:
            UserError: if the archive has another binning or other windows.
        """
        available = Binning(BINS, STORED_RULE).describe()
        if binning.describe() != available:
            raise UserError(
                self.path,
                f"holds histograms of {available}, not {binning.describe()}",
                f"give --set representation=histogram --set bins={BINS} --set rule={STORED_RULE}, "
                "or the raw recordings",
            )
        indices = np.searchsorted(self.windows[:-1, 1], windows[:, 1])
        if (self.windows[indices] != windows).any():
            raise UserError(
                self.path, "has no histogram for one of the windows", "give the raw recordings"
            )
        data = self.data
        for histogram, index in zip(out, indices.tolist(), strict=True):
            with translate_errors(self.file, "a histogram"):
                stored = data[index]
            if stored.max() > MAX_COUNT:
                raise UserError(self.file, f"holds counts above {MAX_COUNT}", COPY_AGAIN)
            histogram[...] = stored if flip_zoom is None else apply_maps(stored, flip_zoom, 0)


Source = EventSource | ArchiveSource


def is_archive(folder: Path) -> bool:
    """Whether a folder is a recording of one of RVT's archives."""
    return any((folder / REPRESENTATIONS / name).is_file() for name in FACTORS)


def source_of(path: Path, sensor: Size | None = None) -> Source:
    """Make the source of a recording, either events or histograms.

    Args:
        path: file or folder of the recording.
        sensor: the user's (height, width) in px; None: not given.
    """
    return ArchiveSource(path, sensor) if is_archive(path) else EventSource(path, sensor)
