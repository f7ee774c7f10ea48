"""Batches by step: item k is the batch of step k, whatever was asked for before; of trainings and of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.settings import Augmentation, Finetuning, Mask, Pretraining
from tespec.datasets.augment import FlipZoom, sample_flip_zoom, transform_boxes
from tespec.datasets.labels import IGNORE
from tespec.datasets.lanes import Lanes, Slot, balance_lanes, lengths_of
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.events.on_device import as_seen, count_words
from tespec.events.spatial import apply_maps

# Of a batch whose histograms are counted on the device: packed events, how many of each bin, and each lane's view.
WORDS, COUNTS, ROWS, COLUMNS = "words", "counts", "rows", "columns"
NO_BOX = -1  # class of the padding of a label's boxes
Shard = tuple[int, int]  # which, of how many, pieces of a batch: one for each rank and gradient accumulation step
WHOLE: Shard = (0, 1)
# Labels of a step, each with its lane's view, and the (H, W) of the histograms, to tensors by name.
Collate = Callable[..., dict[str, Tensor]]


def lanes_of(count: int, shard: Shard) -> range:
    """Which of a batch's `count` lanes a shard plays; all shards together play each once.

    Raises:
        ValueError: there is no such shard.
    """
    number, shards = shard
    if not 0 <= number < shards:
        raise ValueError(f"shard {number} of {shards}")
    return range(number * count // shards, (number + 1) * count // shards)


def stack_masks(labels: Sequence[tuple[NDArray[np.uint8], FlipZoom]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`labels` (L, H, W) uint8 class of each pixel, 255 where there is none."""
    seen = [apply_maps(mask, view, IGNORE) for mask, view in labels]
    return {"labels": torch.from_numpy(np.array(seen, np.uint8).reshape(-1, *size))}


def stack_depths(labels: Sequence[tuple[NDArray[np.float32], FlipZoom]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`labels` (L, H, W) float32 depth in m, NaN where there is none.

    Raises:
        UserError: the augmentation zooms, which changes the size of things but not their depth.
    """
    if any(abs(side) != 1.0 for _, view in labels for side in view.scale):
        raise UserError("augmentation.zoom", "zoom augmentation is not supported for depth", "set it to 0")
    seen = [apply_maps(depth, view, np.nan) for depth, view in labels]
    return {"labels": torch.from_numpy(np.array(seen, np.float32).reshape(-1, *size))}


def pad_boxes(labels: Sequence[tuple[Boxes, FlipZoom]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`boxes` (L, M, 5) float32: class, left, top, right and bottom in px, M being the most of a label, at least 1.

    A label with fewer is padded with boxes of the class `NO_BOX`.
    """
    seen = [transform_boxes(boxes, view) for boxes, view in labels]
    most = max([1, *(len(boxes.label) for boxes in seen)])
    padded = np.full((len(seen), most, 5), NO_BOX, np.float32)
    for row, boxes in zip(padded, seen, strict=True):
        row[: len(boxes.label)] = np.column_stack([boxes.label, boxes.corners])
    return {"boxes": torch.from_numpy(padded)}


class StepBatches(Dataset[dict[str, Tensor]]):
    """Histograms and `fresh` flags of the lanes by step; subclasses add masks or labels.

    The batches of all shards, one after the other, are the whole batch.

    Attributes:
        lanes: number of lanes of this shard.
        segments: windows per chunk.
        left_out: names of the recordings that are shorter than a chunk and never played.
        has_no_continuation: whether streams are to be played, and none of them has a second chunk.
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
        longest = max(lanes.lengths, default=0)
        if not lanes.playable:
            where = recordings[0].path.parent if recordings else "recordings"
            what = f"none has the {lanes.segments} windows of a chunk, the longest has {longest}"
            raise UserError(where, what, f"set segments to {longest} or fewer" if longest else "give longer ones")
        self._share = lanes_of(lanes.count, shard)
        self.lanes, self.segments = len(self._share), lanes.segments
        self.left_out = tuple(recording.name for recording in recordings if len(recording) < lanes.segments)
        self.has_no_continuation = lanes.has_no_continuation
        self._recordings, self._lanes, self._bins, self._rule = recordings, lanes, bins, rule
        self._augmentation, self._size = augmentation, (recordings[0].region.height, recordings[0].region.width)
        self._on_device = False

    def count_on_device(self) -> None:
        """From now on items hold packed events in place of `histograms`, which `arrived` counts where they are then.

        Raises:
            UserError: a recording has no packed events.
        """
        for recording in self._recordings:
            if not recording.has_words:
                what = f"{recording.name} is read as histograms, and so has no packed events"
                raise UserError("--count-on-device", what, "leave it out")
        self._on_device = True

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

    def _views(self, slots: Sequence[Slot]) -> list[FlipZoom]:
        """How each lane sees the recording that it plays."""
        generators = (
            self._lanes.generator("augmentation", lane, slot.pass_index)
            for lane, slot in zip(self._share, slots, strict=True)
        )
        return [sample_flip_zoom(generator, self._augmentation, *self._size) for generator in generators]

    def _events(self, slots: Sequence[Slot], views: Sequence[FlipZoom]) -> dict[str, Tensor]:
        """Histograms of the lanes, or what `arrived` makes them of, and `fresh` flags."""
        played = [(self._recordings[slot.recording], slot.first) for slot in slots]
        fresh = {"fresh": torch.tensor([slot.fresh for slot in slots])}
        if self._on_device:
            found = [each.words(first, self.segments, self._bins, self._rule) for each, first in played]
            return fresh | {
                WORDS: torch.from_numpy(np.concatenate([words for words, _ in found]).view(np.int32)),
                COUNTS: torch.from_numpy(np.stack([counts for _, counts in found])),
                ROWS: torch.from_numpy(np.stack([view.rows for view in views])),
                COLUMNS: torch.from_numpy(np.stack([view.columns for view in views])),
            }
        histograms = np.empty((len(slots), self.segments, 2 * self._bins, *self._size), np.uint8)
        for histogram, (recording, first), view in zip(histograms, played, views, strict=True):
            recording.fill(histogram, first, self._bins, self._rule, view)
        return fresh | {"histograms": torch.from_numpy(histograms)}


class PretrainBatches(StepBatches):
    """Batches of a pre-training on events.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool and, where masks are drawn, `mask`
    (B, ceil(H/unit), ceil(W/unit)) bool, True where the events are masked.
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
        slots = self._slots(step)
        batch = self._events(slots, self._views(slots))
        if self._mask is None:
            return batch
        rows, columns = (-(-side // self._mask.unit) for side in self._size)
        generators = [self._lanes.generator("mask", lane, step) for lane in self._share]
        masks = [draw_mask(generator, rows, columns, self._mask.ratio) for generator in generators]
        return batch | {"mask": torch.stack(masks)}


def draw_mask(seed: int | np.random.Generator, rows: int, cols: int, ratio: float) -> Tensor:
    """Draw the mask of one lane, (rows, cols) bool, True in exactly round(ratio * rows * cols) places.

    Raises:
        ValueError: ratio outside of 0 to 1.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"a mask ratio lies between 0 and 1, not at {ratio}")
    mask = np.zeros(rows * cols, dtype=bool)
    mask[np.random.default_rng(seed).permutation(mask.size)[: round(ratio * mask.size)]] = True
    return torch.from_numpy(mask.reshape(rows, cols))


class LabelledBatches(StepBatches):
    """Batches of a fine-tuning.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool, `label_place` (L, 2) int64, lane and
    segment of each label, lane by lane, and what `collate` makes of the labels. Of each chunk the setting
    `labels_per_chunk` takes that many labels, drawn for each lane and step, the last one always among them. Random
    chunks end at a label.
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
        views = self._views(slots)
        places: list[tuple[int, int]] = []
        labels: list[tuple[Any, FlipZoom]] = []
        for row, (lane, slot) in enumerate(zip(self._share, slots, strict=True)):
            recording = self._labelled[slot.recording]
            for label in self._choose(recording.labels_in(slot.first, self.segments), lane, step):
                places.append((row, int(recording.labelled[label]) - slot.first))
                labels.append((recording.labels[label], views[row]))
        place = {"label_place": torch.tensor(places, dtype=torch.int64).reshape(-1, 2)}
        return self._events(slots, views) | place | self._collate(labels, self._size)

    def _choose(self, labels: range, lane: int, step: int) -> list[int]:
        if self._per_chunk is None or len(labels) <= self._per_chunk:
            return list(labels)
        last = len(labels) - 1
        others = self._lanes.generator("labels", lane, step).permutation(last)[: self._per_chunk - 1]
        return [labels[index] for index in sorted([*others.tolist(), last])]


class LabelledSegment(NamedTuple):
    """Where the prediction for one label stands in a batch, and whose label it is."""

    lane: int
    segment: int
    recording: int
    label: int


class EvaluationBatch(NamedTuple):
    """One step of an evaluation.

    Attributes:
        histograms: (B, T, 2*bins, H, W) uint8.
        fresh: (B,) bool, whether a lane's state is reset.
        place: (L, 2) int64 lane and segment of each label.
        frames: of the L labels; other segments are played without being scored, or are padding.
        labels: as the recordings give them.
    """

    histograms: Tensor
    fresh: Tensor
    place: Tensor
    frames: list[LabelledSegment]
    labels: list[Any]


class _Chunk(NamedTuple):
    recording: int
    first: int
    windows: int
    labels: range  # those that are scored there


class EvaluationBatches(Dataset[EvaluationBatch]):
    """Every label of every recording exactly once, in batches of at most `lanes` x `segments` windows.

    A lane that has no more windows is padded with empty ones, which are in no batch's `frames`.

    Args:
        recordings: to evaluate on.
        lanes: recordings played side by side; fewer if there are fewer.
        segments: windows per lane and batch.
        bins: time bins per window.
        rule: binning rule, see `event_histogram`.
        stateful: whether each recording is played in order on one lane, with its state carried from begin to end. If
            not, the state is reset with every batch.
        clips: what is played without state: for each label the `segments` windows that end at it, fewer at the
            beginning of a recording; or each window once.
        shard: which lanes are played; all shards together play every label once.

    Attributes:
        lanes: lanes of this shard.
        windows: windows that this shard plays, without padding.
    """

    def __init__(
        self,
        recordings: Sequence[LabelledRecording],
        lanes: int,
        segments: int,
        bins: int,
        rule: str,
        *,
        stateful: bool = True,
        clips: bool = False,
        shard: Shard = WHOLE,
    ) -> None:
        cut = _clips if clips and not stateful else _contiguous
        chunks = [cut(index, recording, segments) for index, recording in enumerate(recordings)]
        if stateful:
            dealt = balance_lanes(lengths_of(recordings), lanes)
            playlists = [[chunk for index in playlist for chunk in chunks[index]] for playlist in dealt]
        else:
            flat = [chunk for each in chunks for chunk in each]
            playlists = [flat[lane::lanes] for lane in range(min(lanes, len(flat)))]
        self._playlists = playlists[shard[0] :: shard[1]]
        self._recordings, self._bins, self._rule, self._stateful = recordings, bins, rule, stateful
        self.lanes, self.segments = len(self._playlists), segments
        self.windows = sum(chunk.windows for playlist in self._playlists for chunk in playlist)

    def __len__(self) -> int:
        return max(map(len, self._playlists), default=0)

    def __iter__(self) -> Iterator[EvaluationBatch]:
        return (self[step] for step in range(len(self)))

    def __getitem__(self, step: int) -> EvaluationBatch:
        region = self._recordings[0].region
        shape = (self.lanes, self.segments, 2 * self._bins, region.height, region.width)
        histograms, fresh = np.zeros(shape, np.uint8), np.full(self.lanes, not self._stateful)
        frames, labels = [], []
        for lane, playlist in enumerate(self._playlists):
            if step >= len(playlist):
                continue
            index, first, count, scored = playlist[step]
            recording = self._recordings[index]
            recording.fill(histograms[lane, :count], first, self._bins, self._rule)
            fresh[lane] |= first == 0
            frames += [LabelledSegment(lane, int(recording.labelled[label]) - first, index, label) for label in scored]
            labels += [recording.labels[label] for label in scored]
        place = torch.tensor([frame[:2] for frame in frames], dtype=torch.int64).reshape(-1, 2)
        return EvaluationBatch(torch.from_numpy(histograms), torch.from_numpy(fresh), place, frames, labels)


def evaluation_of(
    settings: Finetuning, recordings: Sequence[LabelledRecording], shard: Shard = WHOLE, *, single_windows: bool = False
) -> EvaluationBatches:
    """The batches on which a network that was trained by `settings` is evaluated.

    `single_windows` leaves out memory: each label's own window from a zero state.
    """
    stateful = settings.carries_state and not single_windows
    return EvaluationBatches(
        recordings,
        (settings.evaluation_lanes if stateful else settings.batch_size) * shard[1],
        1 if single_windows else settings.segments,
        settings.bins,
        settings.rule,
        stateful=stateful,
        clips=settings.recurrent,
        shard=shard,
    )


def _contiguous(index: int, recording: LabelledRecording, segments: int) -> list[_Chunk]:
    counts = {first: min(segments, len(recording) - first) for first in range(0, len(recording), segments)}
    return [_Chunk(index, first, count, recording.labels_in(first, count)) for first, count in counts.items()]


def _clips(index: int, recording: LabelledRecording, segments: int) -> list[_Chunk]:
    return [
        _Chunk(index, max(0, end - segments + 1), min(segments, end + 1), range(label, label + 1))
        for label, end in enumerate(recording.labelled.tolist())
    ]
