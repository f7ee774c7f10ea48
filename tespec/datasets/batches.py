"""Training and evaluation batches by step: item k is the batch of step k, in any order of access.

Slot i of a training batch plays lane i: an endless seeded playlist of recordings, cut into chunks of consecutive
windows. Batches are pure functions of the arguments: worker processes and interruptions do not change them, and
computing a step does not replay earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.settings import SAMPLING, Finetuning, Mask, Pretraining
from tespec.datasets.augment import sample_flip_zoom, transform_boxes
from tespec.datasets.labels import IGNORE
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.events.histogram import FlipZoom, apply_maps

Indices = NDArray[np.int64]
NO_BOX = -1  # class of the padding of a label's boxes
Shard = tuple[int, int]  # index and number of the shards of a batch: one per rank and gradient accumulation step
WHOLE: Shard = (0, 1)
# Takes the labels of a step, each with its lane's view, and the (H, W) of the histograms; returns tensors by name.
Collate = Callable[..., dict[str, Tensor]]


class Slot(NamedTuple):
    """Chunk that a lane plays at a step.

    Attributes:
        recording: index of the recording.
        first: index of the chunk's first window.
        pass_index: index of the pass over a recording within the lane; augmentation is sampled once per pass.
        fresh: whether the state is reset.
    """

    recording: int
    first: int
    pass_index: int
    fresh: bool


@dataclass(frozen=True)
class Lanes:
    """Playlists of a batch.

    A pass over a recording plays as many complete chunks as fit; recordings shorter than a chunk are never played. The
    offset of the first chunk changes with each epoch, so that every window is played within as many epochs as a chunk
    has windows.

    Attributes:
        lengths: number of windows of each recording.
        segments: windows per chunk.
        count: number of lanes, the batch size.
        seed: seed of the run.
        random_share: share of the lanes, rounded to complete lanes, that play a random chunk with a reset state at
            each step instead of streams (RVT's mixed sampling).
        ends: windows of each recording, rising, at which random chunks end; None: any. A chunk that would begin before
            the recording begins with it instead.
    """

    lengths: tuple[int, ...]
    segments: int
    count: int
    seed: int
    random_share: float = 0.0
    ends: tuple[Indices, ...] | None = None
    # Cache of each lane's current playlist, so that the cost of a step does not grow with the number of recordings.
    _known: dict[int, tuple[int, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def playable(self) -> bool:
        """Whether any recording holds a complete chunk."""
        return bool(self._chunks.any()) and (not self.random_lanes or len(self._random_chunks) > 0)

    @property
    def has_no_continuation(self) -> bool:
        """Whether lanes play streams, but no recording has a second chunk to carry a state to."""
        return self.random_lanes < self.count and max(self.lengths, default=0) < 2 * self.segments

    @property
    def random_lanes(self) -> int:
        """Number of lanes that play random chunks: the first ones."""
        return round(self.random_share * self.count)

    def slot(self, lane: int, step: int) -> Slot:
        """Return the chunk that `lane` plays at `step`."""
        if lane < self.random_lanes:
            position = int(self.generator("random", lane, step).integers(len(self._random_chunks)))
            recording, first = self._random_chunks[position].tolist()
            return Slot(recording, first, step, True)
        total = int(self._chunks.sum())
        # Lanes start spread over the playlist, so that they differ even with a single recording.
        start = int((lane + self.generator("start", lane).random()) * total / self.count)
        epoch, position = divmod(start + step, total)
        order, ends, phases = self._playlist(lane, epoch)
        index = int(np.searchsorted(ends, position, side="right"))
        recording = int(order[index])
        chunk = position - int(ends[index] - self._chunks[recording])
        first = int(phases[recording]) + chunk * self.segments
        return Slot(recording, first, epoch * len(order) + index, chunk == 0 or step == 0)

    @cached_property
    def _chunks(self) -> Indices:
        """Number of complete chunks of each recording."""
        return np.array(self.lengths, np.int64) // self.segments

    def _playlist(self, lane: int, epoch: int) -> tuple[Indices, Indices, Indices]:
        """Order of the recordings in an epoch, cumulative number of chunks, and first window by recording."""
        if self._known.get(lane, (None,))[0] != epoch:
            order = self.generator("order", lane, epoch).permutation(len(self._chunks))
            phases = np.array(self.lengths, np.int64) % self.segments + 1
            first = (self.generator("phase", lane).integers(phases) + epoch) % phases
            self._known[lane] = epoch, (order, self._chunks[order].cumsum(), first)
        playlist: tuple[Indices, Indices, Indices] = self._known[lane][1]
        return playlist

    @cached_property
    def _random_chunks(self) -> Indices:
        """Recording and first window (N, 2) of each possible random chunk."""
        found = [np.empty((0, 2), np.int64)]
        for number, length in enumerate(self.lengths):
            ends = np.arange(length) if self.ends is None else self.ends[number]
            firsts = np.unique(np.maximum(ends - self.segments + 1, 0)) if length >= self.segments else ends[:0]
            found.append(np.column_stack([np.full_like(firsts, number), firsts]))
        return np.concatenate(found)

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """Random generator for one purpose, a pure function of the seed, the purpose and the numbers."""
        return np.random.default_rng([self.seed, *purpose.encode(), *numbers])


def shuffled(positions: Sequence[int], count: int, seed: int) -> list[int]:
    """Items at positions of an endless sequence; each epoch shows all `count` items once, in a different order."""
    return [int(_order(count, seed, position // count)[position % count]) for position in positions]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Indices:
    """Order of an epoch; it is as long as the data, so it is drawn once and not for each position."""
    return np.random.default_rng([seed, *b"order", epoch]).permutation(count)


def balance_lanes(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Deal recordings to lanes by decreasing length, back and forth, so that lanes end at about the same time."""
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    for place, recording in enumerate(np.argsort(lengths, kind="stable")[::-1]):
        turn, offset = divmod(place, lanes)
        dealt[offset if turn % 2 == 0 else lanes - 1 - offset].append(int(recording))
    return [lane for lane in dealt if lane]


def lanes_of(count: int, shard: Shard) -> range:
    """Lanes of a batch with `count` lanes that a shard plays; the shards together play each lane once."""
    number, shards = shard
    return range(number * count // shards, (number + 1) * count // shards)


def stack_masks(labels: Sequence[tuple[NDArray[np.uint8], FlipZoom]], size: tuple[int, int]) -> dict[str, Tensor]:
    """Stack masks to `labels` (L, H, W) uint8: the class of each pixel, 255 for unlabelled pixels."""
    seen = [apply_maps(mask, view, IGNORE) for mask, view in labels]
    return {"labels": torch.from_numpy(np.array(seen, np.uint8).reshape(-1, *size))}


def stack_depths(labels: Sequence[tuple[NDArray[np.float32], FlipZoom]], size: tuple[int, int]) -> dict[str, Tensor]:
    """Stack depth maps to `labels` (L, H, W) float32 in m, NaN for unknown depth; `Task` refuses views that zoom."""
    seen = [apply_maps(depth, view, np.nan) for depth, view in labels]
    return {"labels": torch.from_numpy(np.array(seen, np.float32).reshape(-1, *size))}


def pad_boxes(labels: Sequence[tuple[Boxes, FlipZoom]], size: tuple[int, int]) -> dict[str, Tensor]:
    """Pad boxes to `boxes` (L, M, 5) float32: class, left, top, right and bottom in px.

    M is the largest number of boxes of a label, at least 1. Padding has the class `NO_BOX`.
    """
    seen = [transform_boxes(boxes, view) for boxes, view in labels]
    padded = np.full((len(seen), max([1, *(len(boxes.label) for boxes in seen)]), 5), NO_BOX, np.float32)
    for row, boxes in zip(padded, seen, strict=True):
        row[: len(boxes.label)] = np.column_stack([boxes.label, boxes.corners])
    return {"boxes": torch.from_numpy(padded)}


class StepBatches(Dataset[dict[str, Tensor]]):
    """Histograms and `fresh` flags of the lanes by step; subclasses add masks or labels.

    The batches of all shards, concatenated, are the full batch. `ends` is as in `Lanes`.

    Attributes:
        segments: windows per chunk.
        left_out: names of the recordings that are shorter than a chunk and never played.
        has_no_continuation: whether lanes play streams, but no recording has a second chunk.

    Raises:
        UserError: no recording is as long as a chunk.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        settings: Pretraining | Finetuning,
        seed: int,
        shard: Shard = WHOLE,
        ends: tuple[NDArray[np.int64], ...] | None = None,
    ) -> None:
        lengths, segments = tuple(map(len, recordings)), settings.segments
        self._lanes = Lanes(lengths, segments, settings.batch_size, seed, SAMPLING[settings.sampling], ends)
        if not self._lanes.playable:
            where, longest = recordings[0].path.parent if recordings else "recordings", max(lengths, default=0)
            what = f"no recording has the {segments} windows of a chunk, the longest has {longest}"
            raise UserError(where, what, f"set segments to {longest} or fewer" if longest else "give longer recordings")
        self._recordings, self._settings, self._share = recordings, settings, lanes_of(settings.batch_size, shard)
        self._size = recordings[0].region.height, recordings[0].region.width
        self.segments, self.has_no_continuation = segments, self._lanes.has_no_continuation
        self.left_out = tuple(recording.name for recording in recordings if len(recording) < segments)

    def names(self, step: int) -> list[str]:
        """Names of the recordings played at a step."""
        return sorted({self._recordings[slot.recording].name for slot in self._slots(step)})

    def _slots(self, step: int) -> list[Slot]:
        return [self._lanes.slot(lane, step) for lane in self._share]

    def _views(self, slots: Sequence[Slot]) -> list[FlipZoom]:
        """Sample the flip and zoom of each lane, fixed within a pass over a recording."""
        passes = zip(self._share, slots, strict=True)
        generators = (self._lanes.generator("augmentation", lane, slot.pass_index) for lane, slot in passes)
        return [sample_flip_zoom(each, self._settings.augmentation, *self._size) for each in generators]

    def _events(self, slots: Sequence[Slot], views: Sequence[FlipZoom]) -> dict[str, Tensor]:
        """Histograms of the lanes and their `fresh` flags."""
        bins, rule = self._settings.bins, self._settings.rule
        histograms = np.empty((len(slots), self.segments, 2 * bins, *self._size), np.uint8)
        for histogram, slot, view in zip(histograms, slots, views, strict=True):
            self._recordings[slot.recording].fill(histogram, slot.first, bins, rule, view)
        fresh = torch.tensor([slot.fresh for slot in slots])
        return {"fresh": fresh, "histograms": torch.from_numpy(histograms)}


class PretrainBatches(StepBatches):
    """Batches for pre-training on events.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool and, if `mask` is given, `mask`
    (B, ceil(H/unit), ceil(W/unit)) bool, True where events are masked.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        settings: Pretraining,
        seed: int,
        shard: Shard = WHOLE,
        mask: Mask | None = None,
    ) -> None:
        super().__init__(recordings, settings, seed, shard)
        self._mask = mask

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        batch = self._events(slots, self._views(slots))
        if self._mask is None:
            return batch
        rows, columns = (-(-side // self._mask.unit) for side in self._size)
        generators = [self._lanes.generator("mask", lane, step) for lane in self._share]
        return batch | {"mask": torch.stack([draw_mask(each, rows, columns, self._mask.ratio) for each in generators])}


def draw_mask(seed: int | np.random.Generator, rows: int, cols: int, ratio: float) -> Tensor:
    """Draw the mask of one lane, (rows, cols) bool, True in exactly round(ratio * rows * cols) places."""
    mask = np.zeros(rows * cols, dtype=bool)
    mask[np.random.default_rng(seed).permutation(mask.size)[: round(ratio * mask.size)]] = True
    return torch.from_numpy(mask.reshape(rows, cols))


class LabelledBatches(StepBatches):
    """Batches for fine-tuning.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool, `label_place` (L, 2) int64 (lane and
    segment of each label, lane by lane), and the labels as tensors from `collate`. The setting `labels_per_chunk`
    limits the labels of a chunk: they are drawn at random for each lane and step and always include the last one.
    Random chunks end at a label.
    """

    def __init__(
        self,
        recordings: Sequence[LabelledRecording],
        settings: Finetuning,
        seed: int,
        collate: Collate,
        shard: Shard = WHOLE,
    ) -> None:
        super().__init__(recordings, settings, seed, shard, tuple(recording.labelled for recording in recordings))
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


class EvaluationBatch(NamedTuple):
    """One step of an evaluation.

    Attributes:
        histograms: (B, T, 2*bins, H, W) uint8.
        fresh: (B,) bool, whether a lane's state is reset.
        place: (L, 2) int64 lane and segment of each label; other segments are padding or not scored.
        frames: indices of the recording and the label in it, for each of the L labels.
        labels: labels as the recordings return them.
    """

    histograms: Tensor
    fresh: Tensor
    place: Tensor
    frames: list[tuple[int, int]]
    labels: list[Any]


class EvaluationBatches(Dataset[EvaluationBatch]):
    """Batches that evaluate a network trained with `settings` on every label of every recording exactly once.

    A network that carries a state plays each recording in order on one lane. Other recurrent networks play, for each
    label, a clip of windows that ends at it; feed-forward networks play each window once. A lane without windows left
    is padded with empty ones. Together, the shards play every label once.
    """

    def __init__(
        self,
        settings: Finetuning,
        recordings: Sequence[LabelledRecording],
        shard: Shard = WHOLE,
    ) -> None:
        self._settings, self._recordings = settings, recordings
        self._segments, self._stateful = settings.segments, settings.carries_state
        lanes = (settings.evaluation_lanes if self._stateful else settings.batch_size) * shard[1]
        chunks = [self._chunks(number) for number in range(len(recordings))]
        if self._stateful:
            dealt = balance_lanes([len(recording) for recording in recordings], lanes)
            playlists = [[chunk for number in lane for chunk in chunks[number]] for lane in dealt]
        else:
            every = [chunk for each in chunks for chunk in each]
            playlists = [every[lane::lanes] for lane in range(min(lanes, len(every)))]
        self._playlists = playlists[shard[0] :: shard[1]]

    def _chunks(self, number: int) -> list[tuple[int, int, int, range]]:
        """Chunks of a recording: its index, the first window, the number of windows, and the labels to score."""
        recording, most = self._recordings[number], self._segments
        if self._settings.recurrent and not self._stateful:
            return [
                (number, max(0, end - most + 1), min(most, end + 1), range(label, label + 1))
                for label, end in enumerate(recording.labelled.tolist())
            ]
        return [
            (number, first, min(most, len(recording) - first), recording.labels_in(first, most))
            for first in range(0, len(recording), most)
        ]

    def __len__(self) -> int:
        return max(map(len, self._playlists), default=0)

    def __iter__(self) -> Iterator[EvaluationBatch]:
        return (self[step] for step in range(len(self)))

    def __getitem__(self, step: int) -> EvaluationBatch:
        settings, region, lanes = self._settings, self._recordings[0].region, len(self._playlists)
        histograms = np.zeros((lanes, self._segments, 2 * settings.bins, region.height, region.width), np.uint8)
        fresh = np.full(lanes, not self._stateful)
        places, frames = [], []
        for lane, playlist in enumerate(self._playlists):
            if step < len(playlist):
                number, first, count, scored = playlist[step]
                recording = self._recordings[number]
                recording.fill(histograms[lane, :count], first, settings.bins, settings.rule)
                fresh[lane] |= first == 0
                places += [(lane, int(recording.labelled[label]) - first) for label in scored]
                frames += [(number, label) for label in scored]
        place = torch.tensor(places, dtype=torch.int64).reshape(-1, 2)
        labels = [self._recordings[number].labels[label] for number, label in frames]
        return EvaluationBatch(torch.from_numpy(histograms), torch.from_numpy(fresh), place, frames, labels)
