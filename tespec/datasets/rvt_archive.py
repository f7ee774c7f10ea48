"""Histograms as uzh-rpg/RVT's preprocessing stores them: read as they are, one HDF5 chunk a window."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.datasets.windows import Windows
from tespec.events import EventStream
from tespec.events.provenance import quick_hash
from tespec.events.readers.arrays import load_array, load_arrays
from tespec.events.readers.hdf5 import AGAIN, dataset, part, translate_errors
from tespec.events.readers.sensor import resolve_size
from tespec.events.spatial import Region

REPRESENTATIONS = Path("event_representations_v2") / "stacked_histogram_dt=50_nbins=10"
FACTORS = {"event_representations.h5": 1, "event_representations_ds2_nearest.h5": 2}  # of Gen1 and 1Mpx
FILES = tuple(FACTORS)
LABELS = Path("labels_v2") / "labels.npz"
BINS, RULE, WINDOW_US, LARGEST = 10, "rvt", 50_000, 10
SPACING_US = (45_000, 55_000)  # between windows; they are laid between labels, so that it varies a little


def is_archive(folder: Path) -> bool:
    """Whether a folder is a recording of a preprocessed archive."""
    return any((folder / REPRESENTATIONS / name).is_file() for name in FILES)


def archive_of(path: Path, sensor: Size | None = None) -> ArchiveSource:
    """The histograms in folder `path`, which have to be those of a `sensor` (height, width) in px where one is given.

    Raises:
        UserError: they are of another sensor, or damaged.
    """
    source = ArchiveSource(path)
    if sensor is not None:
        region, factor = source.region, source.factor
        resolve_size(path, *sensor, named=(factor * region.height, factor * region.width))
    return source


@dataclass(frozen=True)
class ArchiveSource:
    """Histograms of one recording; see `Source`.

    Attributes:
        path: folder of the recording.
    """

    path: Path

    @property
    def file(self) -> Path:
        """The HDF5 file.

        Raises:
            UserError: there is none.
        """
        folder = self.path / REPRESENTATIONS
        found = next((folder / name for name in FILES if (folder / name).is_file()), None)
        if found is None:
            raise UserError(folder, f"holds neither {' nor '.join(FILES)}", "unpack the archive again")
        return found

    @property
    def factor(self) -> int:
        """By which the sensor's size is divided in the histograms."""
        return FACTORS[self.file.name]

    @property
    def files(self) -> tuple[Path, ...]:
        """The histograms and their times."""
        return self.file, self.path / REPRESENTATIONS / "timestamps_us.npy"

    def identity(self) -> list[dict[str, Any]]:
        """Name, size and sampled SHA-256 of each file."""
        return [quick_hash(file) for file in self.files]

    @property
    def stream(self) -> EventStream:
        """Refused: the archive has no events.

        Raises:
            UserError: always.
        """
        raise UserError(self.path, "holds histograms, not events", "give the raw recordings")

    @property
    def region(self) -> Region:
        """Size of the stored histograms.

        Raises:
            UserError: they are damaged, or of another kind.
        """
        stored = dataset(self.file, "data", "u", 4)
        if stored.dtype != np.uint8 or stored.shape[1] != 2 * BINS:
            what = f"data is {stored.dtype} {stored.shape} instead of uint8 (windows, {2 * BINS}, H, W)"
            raise UserError(self.file, what, AGAIN)
        return Region(stored.shape[2], stored.shape[3])

    def windows(self) -> Windows:
        """(N, 2) windows in us that the histograms are of, border events included on both sides.

        Raises:
            UserError: times are missing, step back, or leave gaps between the windows.
        """
        path = self.path / REPRESENTATIONS / "timestamps_us.npy"
        ends = load_array(path)
        count = dataset(self.file, "data", "u", 4).shape[0]
        if ends.shape != (count,) or ends.dtype.kind not in "iu":
            raise UserError(path, f"is {ends.dtype} {ends.shape} for {count} histograms", AGAIN)
        times = ends.astype(np.int64)
        if not count or (np.diff(times) <= 0).any():
            raise UserError(path, "holds no times, or times that step back", AGAIN)
        check_spacing(path, times)
        return np.stack([times - WINDOW_US, times], axis=1)

    def histograms(self, windows: Windows, bins: int, rule: str, region: Region) -> NDArray[np.uint8]:
        """(N, 2*bins, H, W) uint8 of stored windows (N, 2) in us.

        Raises:
            UserError: other bins, another rule, or another size is asked for than is stored, or it is damaged.
        """
        for name, asked, stored in (("bins", bins, BINS), ("rule", rule, RULE)):
            if asked != stored:
                what = f"holds histograms with {name} {stored}, not {asked}"
                raise UserError(self.path, what, f"give --set {name}={stored}, or the raw recordings")
        if region.factor != 1:
            raise UserError(self.path, "its histograms cannot be downsampled", "set downsample.factor=1")
        ends = self.windows()[:, 1]
        places = np.searchsorted(ends, windows[:, 1])
        if (places >= len(ends)).any() or (ends[places] != windows[:, 1]).any():
            raise UserError(self.path, "has no histogram of one of the windows", "give the raw recordings")
        with translate_errors(self.file, "a histogram"):
            frames_on_disk = part(self.file, "data")
            frames = np.empty((len(places), *dataset(self.file, "data", "u", 4).shape[1:]), np.uint8)
            for row, place in enumerate(places.tolist()):
                frames[row] = frames_on_disk[place : place + 1][0]
        if frames.size and frames.max() > LARGEST:
            raise UserError(self.file, f"holds counts above {LARGEST}", AGAIN)
        return frames


def check_spacing(path: Path, ends: NDArray[np.int64]) -> None:
    """Refuse windows that do not follow each other.

    Gen1 archives that are made again with RVT's public script have windows of 50 ms every 125 ms, which lose 60 % of
    the events.

    Raises:
        UserError: the median spacing is not about 50 ms.
    """
    spacing = float(np.median(np.diff(ends))) if len(ends) > 1 else WINDOW_US
    if not SPACING_US[0] <= spacing <= SPACING_US[1]:
        what = f"windows of 50 ms are {spacing / 1000:g} ms apart, so that events between them are missing"
        raise UserError(path, what, "give RVT's own archive, or the raw recordings; its public script makes this one")


def read_places(folder: Path, windows: int) -> tuple[NDArray[np.generic], NDArray[np.int64], NDArray[np.int64]]:
    """Labels of a recording of an archive.

    Args:
        folder: of the recording.
        windows: number of its histograms.

    Returns:
        structured boxes (M,), the first box (K,) of each label frame, and the window (K,) that ends at it.

    Raises:
        UserError: a file is missing or damaged, or they do not fit each other.
    """
    path = folder / LABELS
    boxes, stored_first = load_arrays(path, ("labels", "objframe_idx_2_label_idx"))
    place_path = folder / REPRESENTATIONS / "objframe_idx_2_repr_idx.npy"
    places: NDArray[Any] = load_array(place_path)
    for where, numbers in ((path, stored_first), (place_path, places)):
        if numbers.dtype.kind not in "iu":
            raise UserError(where, f"holds indices of type {numbers.dtype}, not whole numbers", AGAIN)
    first, places = np.asarray(stored_first, np.int64), np.asarray(places, np.int64)
    if places.shape != first.shape or first.ndim != 1:
        raise UserError(place_path, f"has {places.shape} entries for {first.shape} label frames", AGAIN)
    if len(places) and ((np.diff(places) <= 0).any() or places[0] < 0 or places[-1] >= windows):
        raise UserError(place_path, f"points at other places than the {windows} histograms, in order", AGAIN)
    if len(first) and (first[0] != 0 or (np.diff(first) <= 0).any() or first[-1] >= len(boxes)):
        raise UserError(path, "objframe_idx_2_label_idx does not fit the labels", AGAIN)
    return boxes, first, places
