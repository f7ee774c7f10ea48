"""Pre-training data, split into training and validation: events, images, or pairs of both."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tespec.core.errors import UserError, require
from tespec.core.hashes import Contents
from tespec.core.settings import Pretraining, Size
from tespec.datasets import images
from tespec.datasets.batches import StepBatches
from tespec.datasets.ddd17 import IMAGES
from tespec.datasets.folder import TrainValSplit, find_recordings, split_train_val
from tespec.datasets.lanes import FULL_BATCH, Shard
from tespec.datasets.recording import Recording, contents_of, event_corrections
from tespec.models import Backbone
from tespec.models.backbone import reset

NAMES_PER_LINE = 8
VAL_RECORDINGS = 8  # at most
FEW_RECORDINGS = 4  # at most, if only some frames are asked for
VAL_WINDOWS = 900  # leading windows of each recording, at most
VAL_IMAGES = 512
VAL_PAIRS = 256
VAL_BATCH = 64  # images or pairs; a ResNet-50 needs under 4 GB for 64 pairs of 260 x 346 px
Batch = dict[str, Tensor]
Losses = dict[str, Tensor]


class _Data:
    """Base class of the data that a method learns from.

    Before `open`, only `blank_batch` works.

    Args:
        settings: of the pre-training.
        method: subclass of `PretrainMethod`.
        cfg: settings of the method.
        size: height and width in px of the backbone's input; None: `open` sets it.
    """

    # description of samples that have no order in time and so no recurrent state
    unordered: ClassVar[str] = ""
    size: Size
    channels: int | None = None  # input channels of the backbone; None: those of histograms
    notes: tuple[str, ...] = ()  # lines for the user
    damaged: tuple[str, ...] = ()  # names of unreadable recordings that were skipped
    root: Path

    def __init__(
        self, settings: Pretraining, method: Any, cfg: Any, size: Size | None = None
    ) -> None:
        self.settings = settings
        self.method = method
        self.cfg = cfg
        if size is not None:
            self.size = size
        require(
            not (settings.recurrent and self.unordered),
            "recurrent",
            f"{self.unordered} have no order in time",
            "set it to false",
        )
        carries_no_state = settings.sampling == "random" and settings.segments == 1
        require(
            not (settings.recurrent and carries_no_state),
            "recurrent",
            "chunks of one window have no state to carry, so memory is not trained",
            "set sampling to stream, or segments to 2 or more",
        )


class EventData(_Data):
    """Event histograms of recordings.

    A batch holds `histograms` (B, T, 2 * bins, H, W) uint8 and `is_first` (B,) bool, True where a
    lane's state is reset.
    """

    train: Sequence[Recording]
    held_out: Sequence[Recording]

    def open(self, root: Path, skip_damaged: bool = False) -> None:
        """Split the recordings of a folder into training and validation.

        Args:
            root: folder of the recordings.
            skip_damaged: whether to skip unreadable recordings instead of refusing them.

        Raises:
            UserError: if the validation recordings are too short for a validation batch.
        """
        self.split(root, skip_damaged)
        segments = self.settings.segments
        min_count = min(self.method.min_batch_size, self._val_lanes)
        chunks = self._val_chunks()
        if len(chunks) < min_count:
            longest = max(map(len, self.held_out))
            option = f"--set segments={longest}" if 0 < longest < segments else "fewer segments"
            raise UserError(
                root,
                f"the validation recordings contain {len(chunks)} sequences of {segments} windows, "
                f"fewer than {min_count}; the longest has {longest} windows of "
                f"{self.settings.window_ms:g} ms",
                f"use {option}, or longer recordings",
            )

    def split(self, root: Path, skip_damaged: bool) -> None:
        """Split the recordings of a folder, and set all attributes that they determine.

        Args:
            root: folder of the recordings.
            skip_damaged: whether to skip unreadable recordings instead of refusing them.
        """
        settings = self.settings
        split = split_train_val(
            root, settings.window_ms, settings.downsample, settings.sensor, skip_damaged
        )
        self.root = root
        self.train = split.train
        self.held_out = split.held_out
        self.damaged = tuple(split.damaged)
        region = split.train[0].region  # `split_train_val` refuses recordings of different sizes
        self.size = (region.height, region.width)
        self.notes = (
            *_skipped(split),
            *(f"skipped (damaged): {error}" for error in split.damaged.values()),
            *map(": ".join, event_corrections((*split.train, *split.held_out)).items()),
        )

    def contents(self) -> Contents:
        """What determines the data, see `tespec.datasets.recording.contents_of`."""
        return contents_of(self.train, self.held_out)

    def recordings(self) -> dict[str, dict[str, float]]:
        """Return the number of windows, or pairs, of each recording in "train" or "held_out"."""
        return {
            recording.name: {name: len(recording)}
            for name, split in (("train", self.train), ("held_out", self.held_out))
            for recording in split
        }

    def steps(self, seed: int, shard: Shard = FULL_BATCH) -> Any:
        """Return the training batches, indexed by step.

        Args:
            seed: of the order and augmentation.
            shard: index and number of the ranks that share a batch.
        """
        return StepBatches(self.train, self.settings, seed, shard)

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        """Return a batch of zeros, for estimating the cost of a step.

        Args:
            lanes: number of sequences.
            device: device of the batch, such as "meta".
        """
        shape = (lanes, self.settings.segments, 2 * self.settings.bins, *self.size)
        return {
            "histograms": torch.zeros(shape, dtype=torch.uint8, device=device),
            "is_first": torch.zeros(lanes, dtype=torch.bool, device=device),
        }

    @property
    def _val_lanes(self) -> int:
        """Lanes of a validation batch: 1 with memory, since its state follows one recording."""
        if self.settings.recurrent:
            return 1
        lanes = min(self.method.val_batch_size, self.settings.batch_size)
        return max(self.method.min_batch_size, lanes)

    def _val_chunks(self, frames: int | None = None) -> list[tuple[Recording, int]]:
        """Recording and first window of each validation chunk; `frames` as in `val_batches`."""
        segments = self.settings.segments
        long_enough = [recording for recording in self.held_out if len(recording) >= segments]
        recordings = long_enough[:VAL_RECORDINGS]
        windows = VAL_WINDOWS
        if frames is not None:
            recordings = recordings[:FEW_RECORDINGS]
            windows = max(segments, frames // len(recordings))
        return [
            (recording, first)
            for recording in recordings
            for first in range(0, min(windows, len(recording)) - segments + 1, segments)
        ]

    def val_batches(self, device: torch.device, frames: int | None = None) -> Iterator[Batch]:
        """Yield the chunks of each validation recording in turn, without augmentation.

        A last batch below `min_batch_size` is dropped.

        Args:
            device: device of the batches.
            frames: about how many frames to yield, from `FEW_RECORDINGS` at most; None: all.
        """
        settings = self.settings
        chunks = self._val_chunks(frames)
        lanes = self._val_lanes
        min_count = min(self.method.min_batch_size, lanes)
        for start in range(0, len(chunks) - min_count + 1, lanes):
            histograms = [
                torch.from_numpy(recording.histograms(first, settings.segments, settings.binning))
                for recording, first in chunks[start : start + lanes]
            ]
            is_first = [first == 0 for _, first in chunks[start : start + lanes]]
            yield {
                "histograms": torch.stack(histograms).to(device),
                "is_first": torch.tensor(is_first, device=device),
            }

    def features(self, backbone: Backbone, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Compute the features of a validation batch.

        Args:
            backbone: of the method.
            batch: of `val_batches`.
            state: returned for the batch before; None for the first batch.

        Returns:
            Features (B, T, C, h, w) of the four stages, and the state.
        """
        return backbone(batch["histograms"], reset(state, batch["is_first"]) if state else None)


class ImageData(_Data):
    """Augmented crops of images, for a feed-forward backbone with 1 or 3 input channels.

    A batch holds `views` (B, crops, C, H, W), uint8 or float32, which
    `tespec.datasets.images.normalise` converts to the backbone's input, and `labels` (B,) int64,
    the index of each image's folder.
    """

    unordered = "images"

    def __init__(
        self, settings: Pretraining, method: Any, cfg: Any, size: Size | None = None
    ) -> None:
        self.channels = cfg.channels
        super().__init__(settings, method, cfg, (cfg.size, cfg.size))

    def open(self, root: Path, skip_damaged: bool = False) -> None:
        """Find the images of a folder.

        Args:
            root: folder of the images.
            skip_damaged: unused; images are read during the training.

        Raises:
            UserError: if there are too few for a validation.
        """
        self.root = root
        self.images = images.open_images(root)
        min_count = self.method.min_batch_size
        require(
            len(self.images.held_out) >= min_count,
            root,
            f"fewer than {min_count} images are left for validation",
            "add images",
        )
        self.notes = tuple(_skipped(self.images))

    def contents(self) -> Contents:
        """All images, by split and path."""
        return self.images.contents()

    def recordings(self) -> dict[str, dict[str, float]]:
        """Return the number of images of each class in "train" or "held_out"."""
        return self.images.counts()

    def steps(self, seed: int, shard: Shard = FULL_BATCH) -> images.ImageBatches:
        """Return the training batches, indexed by step.

        Args:
            seed: of the order and augmentation.
            shard: index and number of the ranks that share a batch.
        """
        return images.ImageBatches(
            self.images, self.method.views(self.cfg), self.settings.batch_size, seed, shard
        )

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        """Return a batch of `lanes` black images, for estimating the cost of a step."""
        shape = (lanes, len(self.method.views(self.cfg)), self.cfg.channels, *self.size)
        return {
            "views": torch.zeros(shape, dtype=torch.uint8, device=device),
            "labels": torch.zeros(lanes, dtype=torch.int64, device=device),
        }

    def val_batches(self, device: torch.device, frames: int | None = None) -> Iterator[Batch]:
        """Yield batches of validation images, balanced over the classes.

        Args:
            device: device of the batches.
            frames: number of images, at most; None: `VAL_IMAGES`, or one of each class.
        """
        label_of = self.images.label
        by_class = groupby(sorted(self.images.held_out, key=label_of), label_of)
        # An image of each class in turn; classes with fewer images have None in the last rounds.
        rounds = list(zip_longest(*(list(paths) for _, paths in by_class)))
        limit = frames or max(VAL_IMAGES, len(rounds[0]))
        paths = [path for paths in rounds for path in paths if path][:limit]
        views = self.method.views(self.cfg, training=False)
        min_count = self.method.min_batch_size
        size = min(max(self.settings.batch_size, min_count), VAL_BATCH)
        for first in range(0, len(paths) - min_count + 1, size):
            batch = images.held_out_batch(self.images, paths[first : first + size], views)
            yield {name: value.to(device) for name, value in batch.items()}

    def features(self, backbone: Backbone, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Compute the features of the first crop of each image; see `EventData.features`."""
        return backbone(images.normalise(batch["views"][:, :1]))


class PairData(EventData):
    """Pairs of an event histogram and the grey image at its end, for feed-forward backbones.

    A batch holds `histograms` (B, 1, 2 * bins, H, W) uint8 and `images` (B, 1, 1, H, W) uint8,
    which `tespec.datasets.images.normalise` converts to a backbone's input.
    """

    unordered = "pairs of events and image"
    train: Sequence[images.FrameRecording]
    held_out: Sequence[images.FrameRecording]

    def open(self, root: Path, skip_damaged: bool = False) -> None:
        """Split the recordings, and find the image at the end of each window.

        Args:
            root: folder of the recordings.
            skip_damaged: whether to skip unreadable recordings instead of refusing them.

        Raises:
            UserError: if the recordings have no images, or too few pairs.
        """
        # before the recordings are packed
        require(
            any((path / IMAGES).is_dir() for path in find_recordings(root)),
            root,
            f"no recording has images in {IMAGES}/",
            "give recordings of the DDD17 archive",
        )
        self.split(root, skip_damaged)
        window_ms = self.settings.window_ms
        self.train = images.pair_with_frames(self.train, window_ms)
        pairs = images.pair_with_frames(self.held_out, window_ms)
        self.held_out = images.subsample(pairs, VAL_PAIRS)
        min_count = self.method.min_batch_size
        require(
            sum(map(len, self.held_out)) >= min_count,
            root,
            f"fewer than {min_count} pairs are left for validation",
            "use longer recordings, or more of them",
        )

    def steps(self, seed: int, shard: Shard = FULL_BATCH) -> images.PairBatches:
        """Return the training batches, indexed by step.

        Args:
            seed: of the order and augmentation.
            shard: index and number of the ranks that share a batch.
        """
        return images.PairBatches(
            self.train, self.settings, seed, shard, partial(self.method.augment, self.cfg)
        )

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        """Return a batch of `lanes` pairs of zeros, for estimating the cost of a step."""
        histograms = super().blank_batch(lanes, device)["histograms"][:, :1]
        return {"histograms": histograms, "images": histograms[:, :, :1].clone()}

    def val_batches(self, device: torch.device, frames: int | None = None) -> Iterator[Batch]:
        """Yield batches of validation pairs of equal size.

        Args:
            device: device of the batches.
            frames: number of pairs, at most; None: `VAL_PAIRS`.
        """
        pairs = sum(map(len, self.held_out))
        batch_count = -(-pairs // min(self.settings.batch_size, VAL_BATCH))
        size = max(self.method.min_batch_size, pairs // batch_count)
        no_augmentation = replace(self.settings.augmentation, flip=0.0, zoom=0.0)
        settings = replace(self.settings, augmentation=no_augmentation, batch_size=size)
        steps = images.PairBatches(self.held_out, settings, 0)
        for step in range(min(pairs, frames or pairs) // size):
            yield {name: value.to(device) for name, value in steps[step].items()}


PretrainData = EventData | ImageData


def _skipped(split: TrainValSplit | images.ImageFolder) -> Iterator[str]:
    """Yield a line for the user for each reason why recordings or images were skipped."""
    reasons = {
        "test split": split.excluded_test,
        "outside the split folders, or not listed in dataset.json": split.left_out,
    }
    for reason, names in reasons.items():
        if names:
            listed = ", ".join(names[:NAMES_PER_LINE])
            more = len(names) - NAMES_PER_LINE
            yield f"skipped ({reason}): {listed}" + (f" and {more} more" if more > 0 else "")
