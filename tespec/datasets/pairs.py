"""Events and the grey frame of their moment, from recordings of the DDD17 archive, which holds both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.errors import UserError
from tespec.core.settings import Pretraining
from tespec.datasets.augment import draw_maps
from tespec.datasets.batches import WHOLE, Shard, lanes_of
from tespec.datasets.ddd17 import image_index
from tespec.datasets.images import GREY_MEAN, pixels_of, read_image
from tespec.datasets.lanes import Shuffled
from tespec.datasets.recording import Recording
from tespec.datasets.windows import windows_of_length
from tespec.events.spatial import apply_maps

FOLDER = "imgs"
MIDDLE = round(255 * GREY_MEAN)  # what lies outside of an image


@dataclass(frozen=True, eq=False)
class Paired(Recording):
    """A recording whose windows each end at an image.

    Attributes:
        images: one for each window.
    """

    images: tuple[Path, ...]

    def image(self, index: int) -> NDArray[np.uint8]:
        """(1, H, W) uint8 of the image at the end of a window, of the size of the histograms."""
        grey = read_image(self.images[index], 1)
        size = (self.region.width, self.region.height)
        return pixels_of(grey.resize(size, Image.Resampling.BILINEAR) if grey.size != size else grey)


def paired(recordings: Sequence[Recording], window_ms: float) -> list[Paired]:
    """Those recordings that have images, with windows of `window_ms` that end at them, within the parts given.

    Raises:
        UserError: none has.
    """
    found = []
    for recording in recordings:
        if not (recording.path / FOLDER).is_dir() or not len(recording.windows):
            continue
        times, _ = image_index(recording.path)
        paths = {int(path.stem.rpartition("_")[2]): path for path in (recording.path / FOLDER).glob("img_*.png")}
        first, last = int(recording.windows[0, 0]) + round(1000 * window_ms), int(recording.windows[-1, 1])
        kept = [number for number, time in enumerate(times.tolist()) if first <= time <= last and number + 1 in paths]
        if kept:
            windows = windows_of_length(times[kept], round(1000 * window_ms))
            images = tuple(paths[number + 1] for number in kept)
            found.append(Paired(recording.name, recording.source, recording.region, windows, images))
    if not found:
        where = recordings[0].path if recordings else "recordings"
        raise UserError(where, f"no recording has images in {FOLDER}/", "give recordings of the DDD17 archive")
    return found


class PairSteps(Dataset[dict[str, Tensor]]):
    """Batches by step: `histograms` (B, 1, 2*bins, H, W) uint8 and `images` (B, 1, 1, H, W) uint8, at random times.

    Both are mirrored and zoomed alike, drawn anew for each.
    """

    left_out: tuple[str, ...] = ()
    segments = 1

    def __init__(self, recordings: Sequence[Paired], settings: Pretraining, seed: int, shard: Shard = WHOLE) -> None:
        self._recordings, self._settings, self._seed = recordings, settings, seed
        self._share = lanes_of(settings.batch_size, shard)
        self._ends = np.cumsum([len(recording) for recording in recordings])
        self._order = Shuffled(int(self._ends[-1]), seed)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        settings, histograms, images = self._settings, [], []
        for position in (step * settings.batch_size + row for row in self._share):
            number = self._order[position]
            index = int(np.searchsorted(self._ends, number, side="right"))
            recording = self._recordings[index]
            window = number - int(self._ends[index]) + len(recording)
            generator = np.random.default_rng([self._seed, *b"augmentation", position])
            size = (recording.region.height, recording.region.width)
            maps = draw_maps(generator, settings.augmentation, *size)
            histogram = np.empty((1, 2 * settings.bins, *size), np.uint8)
            recording.fill(histogram, window, settings.bins, settings.rule, maps)
            histograms.append(histogram)
            images.append(apply_maps(recording.image(window), maps, MIDDLE)[None])
        return {
            "histograms": torch.from_numpy(np.stack(histograms)),
            "images": torch.from_numpy(np.stack(images)),
        }


def some(recordings: Sequence[Paired], count: int) -> list[Paired]:
    """`count` windows at most, spread evenly over each recording."""
    each = max(1, count // len(recordings))
    parts = []
    for recording in recordings:
        places = np.unique(np.linspace(0, len(recording) - 1, min(each, len(recording))).round().astype(int))
        images = tuple(recording.images[place] for place in places.tolist())
        parts.append(replace(recording, windows=recording.windows[places], images=images))
    return parts
