"""Batches of recordings, to train networks and to play them.

Item k is the batch of step k, a pure function of the arguments.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.settings import SAMPLING, Finetuning, HistogramSpec, Pretraining
from tespec.datasets.augment import FlipZoom, apply_maps, sample_flip_zoom, transform_boxes
from tespec.datasets.labels import IGNORE
from tespec.datasets.lanes import FULL_BATCH, Indices, Lanes, Shard, Slot, balance_lanes, lanes_of
from tespec.datasets.recording import LabelledRecording, Recording

NO_BOX = -1  # class of the padding of a label's boxes
# Takes the labels of a step, each with its lane's flip and zoom, and the (H, W) of the histograms;
# returns tensors.
Collate = Callable[..., dict[str, Tensor]]


def stack_masks(
    labels: Sequence[tuple[NDArray[np.uint8], FlipZoom]], size: tuple[int, int]
) -> dict[str, Tensor]:
    """Stack masks.

    Args:
        labels: L masks (H, W) of a step, each with its lane's flip and zoom.
        size: (H, W) of the histograms.

    Returns:
        `labels` (L, H, W) uint8: the class of each pixel, 255 for unlabelled pixels.
    """
    masks = [apply_maps(mask, flip_zoom, IGNORE) for mask, flip_zoom in labels]
    return {"labels": torch.from_numpy(np.array(masks, np.uint8).reshape(-1, *size))}


def stack_depths(
    labels: Sequence[tuple[NDArray[np.float32], FlipZoom]], size: tuple[int, int]
) -> dict[str, Tensor]:
    """Stack depth maps; `Task` refuses to zoom them.

    Args:
        labels: L depth maps (H, W) of a step, each with its lane's flip and zoom.
        size: (H, W) of the histograms.

    Returns:
        `labels` (L, H, W) float32 in m, NaN for unknown depth.
    """
    depths = [apply_maps(depth, flip_zoom, np.nan) for depth, flip_zoom in labels]
    return {"labels": torch.from_numpy(np.array(depths, np.float32).reshape(-1, *size))}


def pad_boxes(labels: Sequence[tuple[Boxes, FlipZoom]], size: tuple[int, int]) -> dict[str, Tensor]:
    """Stack boxes, padded to the same number.

    Args:
        labels: boxes of L labels of a step, each with its lane's flip and zoom.
        size: (H, W) of the histograms.

    Returns:
        `boxes` (L, M, 5) float32: class, left, top, right and bottom in px. M is the largest number
        of boxes of a label, at least 1. Padding has the class `NO_BOX`.
    """
    transformed = [transform_boxes(boxes, flip_zoom) for boxes, flip_zoom in labels]
    most = max([1, *(len(boxes.label) for boxes in transformed)])
    padded = np.full((len(labels), most, 5), NO_BOX, np.float32)  # (L, M, 5)
    for row, boxes in zip(padded, transformed, strict=True):
        row[: len(boxes.label)] = np.column_stack([boxes.label, boxes.corners])
    return {"boxes": torch.from_numpy(padded)}


class StepBatches(Dataset[dict[str, Tensor]]):
    """Batches of event histograms, or of another representation.

    Item k holds `histograms` (B, T, C, H, W) as the settings' `binning` says, 2*bins channels of
    uint8 by default, and `is_first` (B,) bool, True where a lane's state is reset. The batches of
    all shards, concatenated, are the full batch.

    Args:
        recordings: with histograms of one size; those shorter than a chunk are never played, and
            named in `left_out`.
        settings: of the training.
        seed: seed of the order and the augmentation.
        shard: index and number of the shards.
        ends: windows at which random chunks end, as in `Lanes`.

    Raises:
        UserError: every recording is shorter than a chunk.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        settings: Pretraining | Finetuning,
        seed: int,
        shard: Shard = FULL_BATCH,
        ends: tuple[Indices, ...] | None = None,
    ) -> None:
        lengths = tuple(map(len, recordings))
        segments = settings.segments
        self._lanes = Lanes(
            lengths, segments, settings.batch_size, seed, SAMPLING[settings.sampling], ends
        )
        if not self._lanes.playable:
            longest = max(lengths, default=0)
            raise UserError(
                recordings[0].path.parent if recordings else "recordings",
                f"no recording has the {segments} windows of a chunk, the longest has {longest}",
                f"set segments to {longest} or fewer" if longest else "give longer recordings",
            )
        self._recordings: Sequence[Any] = recordings
        self._settings = settings
        self._shard_lanes = lanes_of(settings.batch_size, shard)
        self._size = recordings[0].region.height, recordings[0].region.width
        self.segments = segments
        self.has_no_continuation = self._lanes.has_no_continuation
        self.left_out = tuple(
            recording.name for recording in recordings if len(recording) < segments
        )

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        return self._event_tensors(slots, self._flip_zooms(slots))

    def names(self, step: int) -> list[str]:
        """Names of the recordings played at a step."""
        return sorted({self._recordings[slot.recording].name for slot in self._slots(step)})

    def _slots(self, step: int) -> list[Slot]:
        return [self._lanes.slot(lane, step) for lane in self._shard_lanes]

    def _flip_zooms(self, slots: Sequence[Slot]) -> list[FlipZoom]:
        """Sample the flip and zoom of each lane, fixed within a pass over a recording."""
        settings = self._settings.augmentation
        flip_zooms = []
        for lane, slot in zip(self._shard_lanes, slots, strict=True):
            generator = self._lanes.generator("augmentation", lane, slot.pass_index)
            flip_zooms.append(sample_flip_zoom(generator, settings, *self._size))
        return flip_zooms

    def _event_tensors(
        self, slots: Sequence[Slot], flip_zooms: Sequence[FlipZoom]
    ) -> dict[str, Tensor]:
        binning = self._settings.binning
        shape = (len(slots), self.segments, binning.channels, *self._size)
        histograms = np.empty(shape, binning.dtype)
        for histogram, slot, flip_zoom in zip(histograms, slots, flip_zooms, strict=True):
            self._recordings[slot.recording].fill(histogram, slot.first, binning, flip_zoom)
        return {
            "is_first": torch.tensor([slot.is_first for slot in slots]),
            "histograms": torch.from_numpy(histograms),
        }


class LabelledBatches(StepBatches):
    """Batches of event histograms with labels.

    Item k also holds `label_position` (L, 2) int64 (lane and segment of each label, lane by lane),
    and the labels as tensors from `collate`. The setting `labels_per_chunk` limits the labels of a
    chunk: they are drawn at random for each lane and step and always include the last one. Random
    chunks end at a label.

    Args:
        recordings: recordings with labels, and histograms of one size.
        settings: settings of the fine-tuning.
        seed: seed of the order, the augmentation and the choice of labels.
        collate: function of the labels of a step, such as `stack_masks`.
        shard: index and number of the shards.
    """

    def __init__(
        self,
        recordings: Sequence[LabelledRecording],
        settings: Finetuning,
        seed: int,
        collate: Collate,
        shard: Shard = FULL_BATCH,
    ) -> None:
        ends = tuple(recording.label_indices for recording in recordings)
        super().__init__(recordings, settings, seed, shard, ends=ends)
        self._limit = settings.labels_per_chunk
        self._collate = collate

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        flip_zooms = self._flip_zooms(slots)
        positions: list[tuple[int, int]] = []
        labels: list[tuple[Any, FlipZoom]] = []
        for row, (lane, slot) in enumerate(zip(self._shard_lanes, slots, strict=True)):
            recording = self._recordings[slot.recording]
            for label in self._choose(recording.labels_in(slot.first, self.segments), lane, step):
                positions.append((row, int(recording.label_indices[label]) - slot.first))
                labels.append((recording.labels[label], flip_zooms[row]))
        label_positions = torch.tensor(positions, dtype=torch.int64).reshape(-1, 2)  # (L, 2)
        batch = self._event_tensors(slots, flip_zooms) | {"label_position": label_positions}
        return batch | self._collate(labels, self._size)

    def _choose(self, labels: range, lane: int, step: int) -> list[int]:
        """Choose at most `labels_per_chunk` of a chunk's labels, the last one among them."""
        if self._limit is None or len(labels) <= self._limit:
            return list(labels)
        last = len(labels) - 1
        order = self._lanes.generator("labels", lane, step).permutation(last)
        return [labels[index] for index in sorted([*order[: self._limit - 1].tolist(), last])]


class PlayBatch(NamedTuple):
    """One step in which a network plays recordings."""

    histograms: Tensor  # (B, T, C, H, W), of channels and type of the network's input
    is_first: Tensor  # (B,) bool, whether a lane's state is reset
    # (L, 2) int64 lane and segment of each chosen window; other segments are padding or lead up to
    # them
    label_position: Tensor
    # indices of the recording and of the window among its chosen ones, for each of the L
    frames: list[tuple[int, int]]
    labels: list[Any]  # as the recordings return them; None if windows were chosen


class PlayBatches(Dataset[PlayBatch]):
    """Batches in which a network plays recordings and predicts every chosen window exactly once.

    If the state is carried, a lane plays recordings one after the other, from their first window to
    the last chosen one. If it is reset, a lane plays a segment of windows for each chosen one,
    which ends it. A lane with nothing left to play is padded with empty windows. Together, the
    shards play every chosen window once.

    Args:
        spec: of the network.
        recordings: with histograms of the same size.
        lanes: maximum number of lanes of a shard.
        shard: index and number of the shards.
        windows: rising indices (K,) of the chosen windows of each recording; default: those that
            end at a label, and the batches hold these labels.
    """

    def __init__(
        self,
        spec: HistogramSpec,
        recordings: Sequence[Any],
        lanes: int,
        shard: Shard = FULL_BATCH,
        windows: Sequence[Indices] | None = None,
    ) -> None:
        self._spec = spec
        self._recordings = recordings
        self._with_labels = windows is None
        self._windows = windows or [recording.label_indices for recording in recordings]
        chunks = [self._chunks(recording) for recording in range(len(recordings))]
        index, shards = shard
        total = lanes * shards
        if spec.reset:
            all_chunks = list(chain.from_iterable(chunks))
            playlists = [all_chunks[lane::total] for lane in range(min(total, len(all_chunks)))]
        else:
            played = balance_lanes(list(map(len, recordings)), total)  # recordings of each lane
            playlists = [[*chain.from_iterable(chunks[i] for i in lane)] for lane in played]
        self._playlists = playlists[index::shards]

    def _chunks(self, recording: int) -> list[tuple[int, int, range]]:
        """Chunks of a recording: its index, the first window, and the chosen windows to predict."""
        chosen = self._windows[recording]
        segments = self._spec.segments
        if self._spec.reset:
            firsts = np.maximum(chosen - segments + 1, 0).tolist()
            return [(recording, first, range(i, i + 1)) for i, first in enumerate(firsts)]
        firsts = np.arange(0, chosen.max(initial=-1) + 1, segments)
        begins, ends = np.searchsorted(chosen, (firsts, firsts + segments)).tolist()
        return [
            (recording, first, range(begin, end))
            for first, begin, end in zip(firsts.tolist(), begins, ends, strict=True)
        ]

    def __len__(self) -> int:
        return max(map(len, self._playlists), default=0)

    def __getitem__(self, step: int) -> PlayBatch:
        spec = self._spec
        region = self._recordings[0].region
        lanes = len(self._playlists)
        shape = (lanes, spec.segments, spec.channels, region.height, region.width)
        histograms = torch.from_numpy(np.zeros(shape, spec.dtype))
        is_first = torch.full((lanes,), spec.reset)
        positions: list[tuple[int, int]] = []
        frames: list[tuple[int, int]] = []
        labels: list[Any] = []
        for lane, playlist in enumerate(self._playlists):
            if step >= len(playlist):
                continue
            number, first, indices = playlist[step]  # as in `_chunks`
            recording = self._recordings[number]
            recording.fill(histograms[lane, : len(recording) - first].numpy(), first, spec)
            is_first[lane] |= first == 0
            for index in indices:
                positions.append((lane, int(self._windows[number][index]) - first))
                frames.append((number, index))
                labels.append(recording.labels[index] if self._with_labels else None)
        label_positions = torch.tensor(positions, dtype=torch.int64).reshape(-1, 2)  # (L, 2)
        return PlayBatch(histograms, is_first, label_positions, frames, labels)
