"""Pre-training data, split into training and validation: events, images, or pairs of both."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.settings import Pretraining, Size
from tespec.datasets import images
from tespec.datasets.batches import StepBatches
from tespec.datasets.ddd17 import IMAGES
from tespec.datasets.folder import TrainValSplit, divide, find_recordings
from tespec.datasets.lanes import WHOLE, Shard
from tespec.datasets.recording import Recording, event_corrections, fingerprint
from tespec.models import Backbone
from tespec.models.backbone import reset

SHOWN = 8  # names per line
VAL_RECORDINGS, VAL_WINDOWS = 8, 900  # at most: recordings, and leading windows of each
VAL_IMAGES, VAL_PAIRS = 512, 256
VAL_BATCH = 64  # images or pairs; a ResNet-50 needs under 4 GB for 64 pairs of 260 x 346 px
Batch = dict[str, Tensor]


class _Data:
    """Base class of pre-training data for a method, a subclass of `PretrainMethod`, and its `own` settings.

    `size` is (H, W) in px of the backbone's input; None: set by `open`. Before `open`, only
    `blank_batch` works.
    """

    # description of samples that have no order in time and so no recurrent state
    unordered: ClassVar[str] = ""
    size: Size
    channels: int | None = None  # input channels of the backbone; None: those of histograms
    notes: tuple[str, ...] = ()  # lines for the user
    damaged: tuple[str, ...] = ()  # names of unreadable recordings that were skipped
    root: Path

    def __init__(
        self, settings: Pretraining, method: Any, own: Any, size: Size | None = None
    ) -> None:
        self.settings, self.method, self.own = settings, method, own
        if size is not None:
            self.size = size
        if self.unordered and settings.recurrent:
            raise UserError(
                "recurrent", f"{self.unordered} have no order in time", "set it to false"
            )
        if settings.recurrent and settings.sampling == "random" and settings.segments == 1:
            what = "clips of one window have no state to carry, so memory is not trained"
            raise UserError("recurrent", what, "set sampling to stream, or segments to 2 or more")


class EventData(_Data):
    """Event histograms of recordings.

    A batch holds `histograms` (B, T, 2 * bins, H, W) uint8 and `fresh` (B,) bool, True where a
    lane's state is reset.
    """

    train: Sequence[Recording]
    held_out: Sequence[Recording]

    def open(self, root: Path, skip_damaged: bool = False) -> None:
        """Split the recordings in `root`, without unreadable ones if `skip_damaged`; too little data is refused."""
        split, segments = self.split(root, skip_damaged), self.settings.segments
        self.train, self.held_out = split.train, split.held_out
        least = min(self.method.min_batch_size, self._val_lanes)
        found = sum(min(VAL_WINDOWS, len(recording)) // segments for recording in self._played)
        if found < least:
            longest = max(map(len, self.held_out))
            what = f"the validation recordings contain {found} sequences of {segments} windows, fewer than {least}"
            what += f"; the longest has {longest} windows of {self.settings.window_ms:g} ms"
            fewer = (
                f"--set segments={longest}, or "
                if 0 < longest < segments
                else "fewer segments, or "
            )
            raise UserError(root, what, f"use {fewer}longer recordings")

    def split(self, root: Path, skip_damaged: bool) -> TrainValSplit:
        """Split the recordings in `root` into training and validation; sets `root`, `size`, `damaged` and `notes`."""
        settings, self.root = self.settings, root
        split = divide(root, settings.window_ms, settings.downsample, settings.sensor, skip_damaged)
        self.damaged = tuple(split.damaged)
        region = split.train[0].region  # `divide` refuses recordings of different sizes
        self.size = region.height, region.width
        self.notes = (
            *_unused(split),
            *(f"skipped (damaged): {error}" for error in split.damaged.values()),
            *map(": ".join, event_corrections((*split.train, *split.held_out)).items()),
        )
        return split

    def fingerprint(self) -> str:
        return fingerprint(self.train, self.held_out)

    def recordings(self) -> dict[str, dict[str, float]]:
        """Number of windows, or pairs, of each recording in "train" or "held_out"."""
        splits = {"train": self.train, "held_out": self.held_out}
        return {each.name: {name: len(each)} for name, split in splits.items() for each in split}

    def steps(self, seed: int, shard: Shard = WHOLE) -> Any:
        """Training batches by step."""
        return StepBatches(self.train, self.settings, seed, shard)

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        """Batch of `lanes` sequences of zeros, for estimating the cost of a step."""
        shape = (lanes, self.settings.segments, 2 * self.settings.bins, *self.size)
        histograms = torch.zeros(shape, dtype=torch.uint8, device=device)
        return {
            "histograms": histograms,
            "fresh": torch.zeros(lanes, dtype=torch.bool, device=device),
        }

    @property
    def _val_lanes(self) -> int:
        """Lanes of a validation batch: 1 with memory, since its state follows one recording."""
        if self.settings.recurrent:
            return 1
        lanes = min(self.method.val_batch_size, self.settings.batch_size)
        return max(self.method.min_batch_size, lanes)

    @property
    def _played(self) -> list[Recording]:
        """Recordings of which validation plays the first windows."""
        return [each for each in self.held_out if len(each) >= self.settings.segments][
            :VAL_RECORDINGS
        ]

    def val_chunks(self, frames: int | None = None) -> Iterator[Batch]:
        """Yield the chunks of each validation recording in turn, without augmentation.

        Args:
            frames: about how many frames to yield, from up to four recordings; None: all.
        """
        segments, windows, played = self.settings.segments, VAL_WINDOWS, self._played
        if frames is not None:
            played = played[:4]
            windows = max(segments, frames // len(played))
        for recording in played:
            for first in range(0, min(windows, len(recording)) // segments * segments, segments):
                histograms = recording.histograms(first, segments, self.settings.binning)
                yield {
                    "histograms": torch.from_numpy(histograms)[None],
                    "fresh": torch.tensor([first == 0]),
                }

    def val_batches(self, device: torch.device, frames: int | None = None) -> Iterator[Batch]:
        """Yield batches of `val_batch_size` validation chunks; a last batch below `min_batch_size` is dropped.

        `frames` limits them to about that many frames, from the first chunks of up to four
        recordings.
        """
        chunks, size = self.val_chunks(frames), self._val_lanes
        while len(several := list(islice(chunks, size))) >= min(self.method.min_batch_size, size):
            yield {
                name: torch.cat([each[name] for each in several]).to(device) for name in several[0]
            }

    def features(self, backbone: Backbone, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features (B, T, C, h, w) of the four stages, and the state carried along each recording (none for pairs)."""
        return backbone(
            batch["histograms"], reset(state, batch["fresh"]) if "fresh" in batch else None
        )


class ImageData(_Data):
    """Views of images, for a feed-forward backbone with 1 or 3 input channels.

    A batch holds `views` (B, views, C, H, W), uint8 or float32, which
    `tespec.datasets.images.as_input` converts to the backbone's input, and `labels` (B,) int64, the
    index of each image's folder.
    """

    unordered = "images"

    def __init__(
        self, settings: Pretraining, method: Any, own: Any, size: Size | None = None
    ) -> None:
        self.channels = own.channels
        super().__init__(settings, method, own, (own.size, own.size))

    def open(self, root: Path, skip_damaged: bool = False) -> None:
        """Find the images in `root`; too few are refused."""
        self.root, self.images = root, images.open_images(root)
        if len(self.images.held_out) < self.method.min_batch_size:
            what = f"fewer than {self.method.min_batch_size} images are left for validation"
            raise UserError(root, what, "add images")
        self.notes = tuple(_unused(self.images))

    def fingerprint(self) -> str:
        return self.images.fingerprint()

    def recordings(self) -> dict[str, dict[str, float]]:
        return self.images.counts()

    def steps(self, seed: int, shard: Shard = WHOLE) -> images.ImageBatches:
        return images.ImageBatches(
            self.images, self.method.views(self.own), self.settings.batch_size, seed, shard
        )

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        shape, zeros = (
            (len(self.method.views(self.own)), self.own.channels, *self.size),
            partial(torch.zeros, lanes),
        )
        views, labels = (
            zeros(*shape, dtype=torch.uint8, device=device),
            zeros(dtype=torch.int64, device=device),
        )
        return {"views": views, "labels": labels}

    def val_batches(self, device: torch.device, frames: int | None = None) -> Iterator[Batch]:
        """Yield batches of validation images, balanced over the classes, in the method's validation views."""
        numbers: defaultdict[int, count[int]] = defaultdict(count)  # of the images of each class
        labelled = [(self.images.label(path), path) for path in self.images.held_out]
        turns = sorted((next(numbers[label]), label, path) for label, path in labelled)
        paths = [path for _, _, path in turns[: frames or max(VAL_IMAGES, len(numbers))]]
        views, least = self.method.views(self.own, training=False), self.method.min_batch_size
        size = min(max(self.settings.batch_size, least), VAL_BATCH)
        for first in range(0, len(paths) - least + 1, size):
            batch = images.held_out_batch(self.images, paths[first : first + size], views)
            yield {name: value.to(device) for name, value in batch.items()}

    def features(self, backbone: Backbone, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        return backbone(images.as_input(batch["views"][:, :1]))


class PairData(EventData):
    """Pairs of an event histogram and the grey image at its end, for feed-forward backbones.

    A batch holds `histograms` (B, 1, 2 * bins, H, W) uint8 and `images` (B, 1, 1, H, W) uint8,
    which `tespec.datasets.images.as_input` converts to a backbone's input.
    """

    unordered = "pairs of events and image"
    train: Sequence[images.Paired]
    held_out: Sequence[images.Paired]

    def open(self, root: Path, skip_damaged: bool = False) -> None:
        """Split the recordings and find the image at the end of each window; too few pairs are refused."""
        if not any(
            (path / IMAGES).is_dir() for path in find_recordings(root)
        ):  # before the recordings are packed
            raise UserError(
                root,
                f"no recording has images in {IMAGES}/",
                "give recordings of the DDD17 archive",
            )
        split, window_ms = self.split(root, skip_damaged), self.settings.window_ms
        self.train = images.paired(split.train, window_ms)
        self.held_out = images.subsample(images.paired(split.held_out, window_ms), VAL_PAIRS)
        if sum(map(len, self.held_out)) < self.method.min_batch_size:
            what = f"fewer than {self.method.min_batch_size} pairs are left for validation"
            raise UserError(root, what, "use longer recordings, or more of them")

    def fingerprint(self) -> str:
        """Hash of the recordings, and of the names and sizes of their images."""
        digest = hashlib.sha256(super().fingerprint().encode())
        for path in (path for each in (*self.train, *self.held_out) for path in each.images):
            digest.update(f"{path.name}|{path.stat().st_size}\n".encode())
        return digest.hexdigest()[:12]

    def steps(self, seed: int, shard: Shard = WHOLE) -> images.PairBatches:
        return images.PairBatches(
            self.train, self.settings, seed, shard, partial(self.method.augment, self.own)
        )

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        shapes = {
            "histograms": (1, 2 * self.settings.bins, *self.size),
            "images": (1, 1, *self.size),
        }
        return {
            name: torch.zeros(lanes, *each, dtype=torch.uint8, device=device)
            for name, each in shapes.items()
        }

    def val_batches(self, device: torch.device, frames: int | None = None) -> Iterator[Batch]:
        """Yield batches of validation pairs of equal size, at most that of a training batch and `VAL_BATCH`."""
        still = replace(self.settings.augmentation, flip=0.0, zoom=0.0)
        pairs, least = sum(map(len, self.held_out)), self.method.min_batch_size
        size = max(least, pairs // -(-pairs // min(self.settings.batch_size, VAL_BATCH)))
        steps = images.PairBatches(
            self.held_out, replace(self.settings, augmentation=still, batch_size=size), 0
        )
        for step in range(min(pairs, frames or pairs) // size):
            yield {name: value.to(device) for name, value in steps[step].items()}


PretrainData = EventData | ImageData


def _unused(found: TrainValSplit | images.ImageFolder) -> Iterator[str]:
    """Yield lines for the user about recordings, or folders of images, of a test split or of no split."""
    for why, names in (
        ("skipped (test split)", found.excluded_test),
        ("skipped (outside the split folders, or not listed in dataset.json)", found.left_out),
    ):
        more = "" if len(names) <= SHOWN else f" and {len(names) - SHOWN} more"
        if names:
            yield f"{why}: {', '.join(names[:SHOWN])}{more}"
