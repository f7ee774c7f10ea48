"""Batches by step: item k of a dataset is the batch of training step k, whatever was asked for before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.settings import Augmentation, Finetuning, Mask, Pretraining
from tespec.datasets.augment import Maps, draw_maps, move_boxes
from tespec.datasets.labels import IGNORE
from tespec.datasets.lanes import Lanes, Slot, lengths_of
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.events.on_device import as_seen, count_words
from tespec.events.spatial import Region, apply_maps

# Of a batch whose histograms are counted on the device: packed events, how many of each bin, and how lanes are seen.
WORDS, COUNTS, ROWS, COLUMNS = "words", "counts", "rows", "columns"
Shard = tuple[int, int]  # which, of how many, pieces of a batch: one for each rank and gradient accumulation step
WHOLE: Shard = (0, 1)


def lanes_of(count: int, shard: Shard) -> range:
    """Which of a batch's `count` lanes a shard plays; all shards together play each once.

    Raises:
        ValueError: there is no such shard.
    """
    number, shards = shard
    if not 0 <= number < shards:
        raise ValueError(f"shard {number} of {shards}")
    return range(number * count // shards, (number + 1) * count // shards)


# Labels of a step, each with its lane's maps, and the (H, W) of the histograms, to tensors by name.
Collate = Callable[..., dict[str, Tensor]]


def stack_masks(labels: Sequence[tuple[NDArray[np.uint8], Maps]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`labels` (L, H, W) uint8 class of each pixel, 255 where there is none."""
    seen = [apply_maps(mask, maps, IGNORE) for mask, maps in labels]
    return {"labels": torch.from_numpy(np.array(seen, np.uint8).reshape(-1, *size))}


def stack_depths(labels: Sequence[tuple[NDArray[np.float32], Maps]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`labels` (L, H, W) float32 depth in m, NaN where there is none.

    Raises:
        UserError: the augmentation zooms, which changes the size of things but not their depth.
    """
    if any(abs(side) != 1.0 for _, maps in labels for side in maps.scale):
        raise UserError("augmentation.zoom", "zooming does not go with depth", "set it to 0")
    seen = [apply_maps(depth, maps, np.nan) for depth, maps in labels]
    return {"labels": torch.from_numpy(np.array(seen, np.float32).reshape(-1, *size))}


NO_BOX = -1  # class of what fills up the boxes of a label


def pad_boxes(labels: Sequence[tuple[Boxes, Maps]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`boxes` (L, M, 5) float32: class, left, top, right and bottom in px, M being the most of a label, at least 1.

    A label with fewer is filled up with boxes of the class `NO_BOX`.
    """
    seen = [move_boxes(boxes, maps) for boxes, maps in labels]
    most = max([1, *(len(boxes.label) for boxes in seen)])
    padded = np.full((len(seen), most, 5), NO_BOX, np.float32)
    for row, boxes in zip(padded, seen, strict=True):
        row[: len(boxes.label)] = np.column_stack([boxes.label, boxes.corners])
    return {"boxes": torch.from_numpy(padded)}


class Steps(Dataset[dict[str, Tensor]]):
    """Histograms and `fresh` flags of the lanes; subclasses add what belongs to them.

    The batches of all shards, one after the other, are the whole batch.

    Attributes:
        lanes: number of lanes of this shard.
        segments: windows per chunk.
        left_out: names of the recordings that are shorter than a chunk and hence never played.
        never_carries: whether streams are to be played, and none of them has a second chunk.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        lanes: Lanes,
        bins: int,
        rule: str,
        augmentation: Augmentation,
        shard: Shard = WHOLE,
    ) -> None:
        if not lanes.playable:
            where = recordings[0].path.parent if recordings else "recordings"
            what = f"none has the {lanes.segments} windows of a chunk, the longest has {max(lanes.lengths, default=0)}"
            raise UserError(where, what, "set fewer segments")
        self._share = lanes_of(lanes.count, shard)
        self.lanes, self.segments = len(self._share), lanes.segments
        self.left_out = tuple(recording.name for recording in recordings if len(recording) < lanes.segments)
        self.never_carries = lanes.never_carries
        self._recordings, self._lanes, self._bins, self._rule = recordings, lanes, bins, rule
        self._augmentation = augmentation
        self._counts = True

    def count_on_device(self) -> None:
        """From now on items hold packed events in place of `histograms`, which `arrived` counts where they are then.

        Raises:
            UserError: a recording has no packed events.
        """
        for recording in self._recordings:
            if not recording.has_words:
                what = f"{recording.name} is read as histograms, and so has no packed events"
                raise UserError("--count-on-device", what, "leave it out")
        self._counts = False

    def arrived(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch with its histograms, counted on the device that it is on where they are not there yet."""
        if WORDS not in batch:
            return batch
        own = dict(batch)
        histograms = count_words(own.pop(WORDS), own.pop(COUNTS), self._recordings[0].region)
        return own | {"histograms": as_seen(histograms, own.pop(ROWS), own.pop(COLUMNS))}

    def names(self, step: int) -> list[str]:
        """Names of the recordings that are played at a step."""
        return sorted({self._recordings[slot.recording].name for slot in self._slots(step)})

    def _slots(self, step: int) -> list[Slot]:
        return [self._lanes.slot(lane, step) for lane in self._share]

    def _seen(self, slots: Sequence[Slot]) -> tuple[dict[str, Tensor], list[Maps]]:
        """Histograms and `fresh` flags of a step, and how each lane sees the recording it plays."""
        drawn = []
        for lane, slot in zip(self._share, slots, strict=True):
            generator, region = self._lanes.generator("augmentation", lane, slot.play), self._region
            drawn.append(draw_maps(generator, self._augmentation, region.height, region.width))
        fresh = torch.tensor([slot.fresh for slot in slots])
        events = self._counted(slots, drawn) if self._counts else self._packed(slots, drawn)
        return events | {"fresh": fresh}, drawn

    @property
    def _region(self) -> Region:
        return self._recordings[0].region

    def _counted(self, slots: Sequence[Slot], drawn: Sequence[Maps]) -> dict[str, Tensor]:
        """`histograms` of the lanes."""
        size = (self._region.height, self._region.width)
        histograms = np.empty((len(slots), self.segments, 2 * self._bins, *size), np.uint8)
        for histogram, slot, maps in zip(histograms, slots, drawn, strict=True):
            self._recordings[slot.recording].fill(histogram, slot.first, self._bins, self._rule, maps)
        return {"histograms": torch.from_numpy(histograms)}

    def _packed(self, slots: Sequence[Slot], drawn: Sequence[Maps]) -> dict[str, Tensor]:
        """What `arrived` makes histograms of: packed events, how many of each bin, and how each lane is seen."""
        found = [
            self._recordings[slot.recording].words(slot.first, self.segments, self._bins, self._rule) for slot in slots
        ]
        return {
            WORDS: torch.from_numpy(np.concatenate([words for words, _ in found]).view(np.int32)),
            COUNTS: torch.from_numpy(np.stack([counts for _, counts in found])),
            ROWS: torch.from_numpy(np.stack([maps.rows for maps in drawn])),
            COLUMNS: torch.from_numpy(np.stack([maps.columns for maps in drawn])),
        }


class PretrainSteps(Steps):
    """Batches of a pre-training on events.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool and, where masks are drawn, `mask`
    (B, ceil(H/unit), ceil(W/unit)) bool, True where the events are hidden.

    Args:
        recordings: what is played.
        settings: of the pre-training.
        seed: of the run.
        shard: which lanes are played.
        mask: how masks are drawn; None: none are.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        settings: Pretraining,
        seed: int,
        shard: Shard = WHOLE,
        mask: Mask | None = None,
    ) -> None:
        lanes = Lanes(lengths_of(recordings), settings.segments, settings.batch_size, seed, settings.random_share)
        super().__init__(recordings, lanes, settings.bins, settings.rule, settings.augmentation, shard)
        self._mask = mask

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        batch, _ = self._seen(self._slots(step))
        if self._mask is None:
            return batch
        rows, columns = (-(-side // self._mask.unit) for side in (self._region.height, self._region.width))
        generators = [self._lanes.generator("mask", lane, step) for lane in self._share]
        masks = [draw_mask(generator, rows, columns, self._mask.ratio) for generator in generators]
        return batch | {"mask": torch.stack(masks)}


def draw_mask(seed: int | np.random.Generator, rows: int, cols: int, ratio: float) -> Tensor:
    """Mask of one lane for all segments of a step.

    Args:
        seed: the draw's seed, or a generator that it advances.
        rows: units from top to bottom.
        cols: units from left to right.
        ratio: share of units to hide, 0 to 1.

    Returns:
        (rows, cols) bool, True in exactly round(ratio * rows * cols) places.

    Raises:
        ValueError: ratio outside of 0 to 1.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"a mask ratio lies between 0 and 1, not at {ratio}")
    mask = np.zeros(rows * cols, dtype=bool)
    mask[np.random.default_rng(seed).permutation(mask.size)[: round(ratio * mask.size)]] = True
    return torch.from_numpy(mask.reshape(rows, cols))


class LabelledSteps(Steps):
    """Batches of a fine-tuning.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool, `label_place` (L, 2) int64, lane and
    segment of each label, lane by lane, and what `collate` makes of the labels. Of each chunk the setting
    `labels_per_chunk` takes that many labels, drawn for each lane and step, the last one always among them. Random
    chunks end at a label.

    Args:
        recordings: with labels.
        settings: of the fine-tuning.
        seed: of the run.
        collate: puts the labels into tensors.
        shard: which lanes are played.
    """

    def __init__(
        self,
        recordings: Sequence[LabelledRecording],
        settings: Finetuning,
        seed: int,
        collate: Collate,
        shard: Shard = WHOLE,
    ) -> None:
        ends = tuple(recording.labelled for recording in recordings)
        lanes = Lanes(lengths_of(recordings), settings.segments, settings.batch_size, seed, settings.random_share, ends)
        super().__init__(recordings, lanes, settings.bins, settings.rule, settings.augmentation, shard)
        self._labelled, self._per_chunk, self._collate = recordings, settings.labels_per_chunk, collate

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        batch, maps = self._seen(slots)
        places: list[tuple[int, int]] = []
        labels: list[tuple[Any, Maps]] = []
        for row, (lane, slot) in enumerate(zip(self._share, slots, strict=True)):
            recording = self._labelled[slot.recording]
            for label in self._choose(recording.labels_in(slot.first, self.segments), lane, step):
                places.append((row, int(recording.labelled[label]) - slot.first))
                labels.append((recording.labels[label], maps[row]))
        size = (self._region.height, self._region.width)
        place = torch.tensor(places, dtype=torch.int64).reshape(-1, 2)
        return batch | {"label_place": place} | self._collate(labels, size)

    def _choose(self, labels: range, lane: int, step: int) -> list[int]:
        if self._per_chunk is None or len(labels) <= self._per_chunk:
            return list(labels)
        last = len(labels) - 1
        others = self._lanes.generator("labels", lane, step).permutation(last)[: self._per_chunk - 1]
        return [labels[index] for index in sorted([*others.tolist(), last])]
