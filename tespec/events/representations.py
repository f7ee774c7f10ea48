"""Representations of events that published backbones were trained on, other than histograms.

They follow the authors' code, at the commits of `tespec.weights.released`. A representation is
computed from the events at the pixels of the network's input, so that flip, zoom and downsampling
come before its scaling, and empty pixels have the same value everywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.settings import Binning
from tespec.events.histogram import PixelMaps, Region
from tespec.events.store import PackedEvents

Image = NDArray[np.float32]  # (C, H, W)
HOT = 10  # standard deviations above the mean, of a hot pixel
PERCENTILE = 90  # of the counts, at which GEP clips them
# GEP's mean and standard deviation of DSEC's pictures (src/config.py)
GEP_MEAN = np.array([0.8993729784963826, 0.7969581014619264, 0.8928228776286392]).reshape(3, 1, 1)
GEP_STD = np.array([0.22043360769748688, 0.2921656668186188, 0.22049927711486816]).reshape(3, 1, 1)


@dataclass(frozen=True)
class GridEvents:
    """Events at the pixels of an image; zooming in repeats events, zooming out drops some."""

    size: tuple[int, int]  # (H, W)
    total: int  # number N of the events of the window on the full sensor
    cell: NDArray[np.int64]  # (M,) pixel, row by row
    index: NDArray[np.int64]  # (M,) number of the event, from 0 to N - 1 in the order of time
    time: NDArray[np.float64]  # (M,) from 0 at the first of the N events to 1 at the last
    p: NDArray[np.int64]  # (M,) polarity, 0 or 1

    def sums(self, planes: int, plane: NDArray[np.int64], weights: Any = None) -> Image:
        """Add up the events of each pixel.

        Args:
            planes: number of planes.
            plane: (M,) plane of each event; those from `planes` on are dropped.
            weights: (M,); None: 1.

        Returns:
            (planes, H, W) float32.
        """
        area = self.size[0] * self.size[1]
        sums = np.bincount(plane * area + self.cell, weights, minlength=planes * area)
        return sums[: planes * area].reshape(planes, *self.size).astype(np.float32)


def voxels(events: GridEvents, bins: int) -> Image:
    """Sum the polarities, -1 or 1, bilinearly in time: (bins, H, W).

    Of ECDDP (data/event_utils.py) and EventPretrain (dataset/dataset_utils/
    events_to_voxel_grid.py): the first event is in the first bin, the last in the last.
    """
    position = events.time * (bins - 1)
    earlier = position.astype(np.int64)
    later_weight = position - earlier
    sign = 2 * events.p - 1
    grid = events.sums(bins, earlier, sign * (1 - later_weight))
    return grid + events.sums(bins, earlier + 1, sign * later_weight)


def ecdp(events: GridEvents, bins: int) -> Image:
    """Count positive, then negative events, each scaled by its maximum + 1 to [-1, 1): (2, H, W).

    Of ECDP (data/imagenet_dataset.py, trainer/pr_trainer.py).
    """
    counts = events.sums(2, 1 - events.p)
    return 2 * counts / (counts.max(axis=(1, 2), keepdims=True) + 1) - 1


def mem(events: GridEvents, bins: int) -> Image:
    """Count positive events, nothing, and negative events, divided by their maximum: (3, H, W).

    Of MEM (mem/datasets.py, mem/transforms.py): counts are of 8 bits, and overflow; a hot pixel
    loses the counts of both polarities.
    """
    counts = events.sums(2, 1 - events.p) % 256
    hot = (counts > counts.mean() + HOT * counts.std(ddof=1)).any(axis=0)  # (H, W)
    counts[:, hot] = 0
    counts /= max(counts.max(), 1)
    return np.stack([counts[0], np.zeros(events.size, np.float32), counts[1]])


def gep(events: GridEvents, bins: int) -> Image:
    """Draw positive events red and negative ones blue on white, normalised as GEP does: (3, H, W).

    Of GEP (src/utils.py, src/pre_dse.py): each pixel has the polarity with the higher share of its
    clipped counts. The channels are blue, green and red, since the authors save RGB by cv2.
    """
    negative, positive = map(_clipped, events.sums(2, events.p))
    red = np.where(positive >= negative, positive, 0)
    blue = np.where(positive >= negative, 0, negative)
    picture = np.stack([1 - red, 1 - red - blue, 1 - blue])
    normalised = (np.floor(255 * picture) / 255 - GEP_MEAN) / GEP_STD
    return normalised.astype(np.float32)


def _clipped(counts: Image) -> Image:
    """Clip counts (H, W) at a percentile of those above 0, and divide them by it."""
    if not counts.any():
        return counts
    limit = np.percentile(counts[counts > 0], PERCENTILE)
    return (np.minimum(counts, limit) / limit).astype(np.float32)


def ecddp(events: GridEvents, bins: int) -> Image:
    """Count negative and positive events of `bins` equal numbers of events: (2*bins, H, W).

    Of ECDDP's fine-tuning (data/DESC_dataset.py): oldest first, each negative first, not scaled;
    the remainder of the division, the newest events, is dropped.
    """
    part = events.index // max(events.total // bins, 1)
    return events.sums(2 * bins, 2 * part + events.p)


REPRESENTATIONS: Mapping[str, Callable[[GridEvents, int], Image]] = {
    function.__name__: function for function in (voxels, ecdp, mem, gep, ecddp)
}


def represent(
    stream: PackedEvents,
    window: tuple[int, int],
    binning: Binning,
    region: Region,
    maps: PixelMaps | None = None,
) -> Image:
    """Compute the representation of a window's events.

    Args:
        stream: an open recording.
        window: start and end in us, end exclusive; with `last_events` only the end counts.
        binning: names the representation.
        region: part of the sensor to use, and its downsampling.
        maps: flip and zoom of the region; None: neither.

    Returns:
        (C, H, W) float32.
    """
    if binning.last_events:
        events = stream.latest(window[1], binning.last_events)
    else:
        events = stream.slice(*window)
    elapsed = events.t - events.t[:1]  # us
    rows, columns = region.cell_maps(maps)
    cell, index = _locate(events.x, events.y, rows, columns, region.width)
    on_grid = GridEvents(
        size=(region.height, region.width),
        total=len(elapsed),
        cell=cell,
        index=index,
        time=elapsed[index] / max(int(elapsed.max(initial=0)), 1),
        p=events.p[index].astype(np.int64),
    )
    return REPRESENTATIONS[binning.representation](on_grid, binning.bins)


def empty_pixel(representation: str, bins: int) -> Image:
    """Compute the representation (C, 1, 1) of a pixel without events."""
    none = np.empty(0, np.int64)
    events = GridEvents((1, 1), 0, cell=none, index=none, time=none.astype(np.float64), p=none)
    return REPRESENTATIONS[representation](events, bins)


@njit(cache=True, nogil=True)
def _locate(x, y, rows, columns, width):  # type: ignore[no-untyped-def]
    """Find the pixels of events (N,) by the rows (K, 2048) and columns (L, 2048) that show them.

    Returns (M,) int64 pixels, row by row, and the number of the event at each of them.
    """
    most = len(x) * len(rows) * len(columns)
    cells, index = np.empty(most, np.int64), np.empty(most, np.int64)
    count = np.int64(0)
    for i in range(len(x)):
        for row in rows[:, y[i]]:
            for column in columns[:, x[i]]:
                cells[count] = row * width + column
                index[count] = i
                count += np.int64((row | column) >= 0)
    return cells[:count], index[:count]
