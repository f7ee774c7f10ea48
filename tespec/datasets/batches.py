"""Batches of training and of playing recordings: item k, a pure function of the arguments, is the batch of step k."""

from collections.abc import Callable, Sequence
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
from tespec.datasets.lanes import WHOLE, Indices, Lanes, Shard, Slot, balance_lanes, lanes_of
from tespec.datasets.recording import LabelledRecording, Recording

NO_BOX = -1  # class of the padding of a label's boxes
# Takes the labels of a step, each with its lane's flip and zoom, and the (H, W) of the histograms;
# returns tensors.
Collate = Callable[..., dict[str, Tensor]]


def stack_masks(
    labels: Sequence[tuple[NDArray[np.uint8], FlipZoom]], size: tuple[int, int]
) -> dict[str, Tensor]:
    """Stack masks to `labels` (L, H, W) uint8: the class of each pixel, 255 for unlabelled pixels."""
    masks = [apply_maps(mask, flip_zoom, IGNORE) for mask, flip_zoom in labels]
    return {"labels": torch.from_numpy(np.array(masks, np.uint8).reshape(-1, *size))}


def stack_depths(
    labels: Sequence[tuple[NDArray[np.float32], FlipZoom]], size: tuple[int, int]
) -> dict[str, Tensor]:
    """Stack depth maps to `labels` (L, H, W) float32 in m, NaN for unknown depth; `Task` refuses to zoom them."""
    depths = [apply_maps(depth, flip_zoom, np.nan) for depth, flip_zoom in labels]
    return {"labels": torch.from_numpy(np.array(depths, np.float32).reshape(-1, *size))}


def pad_boxes(labels: Sequence[tuple[Boxes, FlipZoom]], size: tuple[int, int]) -> dict[str, Tensor]:
    """Pad boxes to `boxes` (L, M, 5) float32: class, left, top, right and bottom in px.

    M is the largest number of boxes of a label, at least 1. Padding has the class `NO_BOX`.
    """
    moved = [transform_boxes(boxes, flip_zoom) for boxes, flip_zoom in labels]
    padded = np.full(
        (len(moved), max([1, *(len(boxes.label) for boxes in moved)]), 5), NO_BOX, np.float32
    )
    for row, boxes in zip(padded, moved, strict=True):
        row[: len(boxes.label)] = np.column_stack([boxes.label, boxes.corners])
    return {"boxes": torch.from_numpy(padded)}


class StepBatches(Dataset[dict[str, Tensor]]):
    """Batches of event histograms.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8 and `fresh` (B,) bool. The batches of all
    shards, concatenated, are the full batch. `ends` is as in `Lanes`. `left_out` names the
    recordings that are shorter than a chunk and never played; without any other recording, the
    settings are refused.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        settings: Pretraining | Finetuning,
        seed: int,
        shard: Shard = WHOLE,
        ends: tuple[Indices, ...] | None = None,
    ) -> None:
        lengths, segments = tuple(map(len, recordings)), settings.segments
        self._lanes = Lanes(
            lengths, segments, settings.batch_size, seed, SAMPLING[settings.sampling], ends
        )
        if not self._lanes.playable:
            where, longest = (
                recordings[0].path.parent if recordings else "recordings",
                max(lengths, default=0),
            )
            what = f"no recording has the {segments} windows of a chunk, the longest has {longest}"
            raise UserError(
                where,
                what,
                f"set segments to {longest} or fewer" if longest else "give longer recordings",
            )
        self._recordings, self._settings = recordings, settings
        self._share = lanes_of(settings.batch_size, shard)
        self._size = recordings[0].region.height, recordings[0].region.width
        self.segments, self.has_no_continuation = segments, self._lanes.has_no_continuation
        self.left_out = tuple(
            recording.name for recording in recordings if len(recording) < segments
        )

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        return self._events(slots, self._flip_zooms(slots))

    def names(self, step: int) -> list[str]:
        """Names of the recordings played at a step."""
        return sorted({self._recordings[slot.recording].name for slot in self._slots(step)})

    def _slots(self, step: int) -> list[Slot]:
        return [self._lanes.slot(lane, step) for lane in self._share]

    def _flip_zooms(self, slots: Sequence[Slot]) -> list[FlipZoom]:
        """Sample the flip and zoom of each lane, fixed within a pass over a recording."""
        passes = zip(self._share, slots, strict=True)
        generators = (
            self._lanes.generator("augmentation", lane, slot.pass_index) for lane, slot in passes
        )
        return [
            sample_flip_zoom(each, self._settings.augmentation, *self._size) for each in generators
        ]

    def _events(self, slots: Sequence[Slot], flip_zooms: Sequence[FlipZoom]) -> dict[str, Tensor]:
        binning = self._settings.binning
        histograms = np.empty((len(slots), self.segments, 2 * binning.bins, *self._size), np.uint8)
        for histogram, slot, flip_zoom in zip(histograms, slots, flip_zooms, strict=True):
            self._recordings[slot.recording].fill(histogram, slot.first, binning, flip_zoom)
        fresh = torch.tensor([slot.fresh for slot in slots])
        return {"fresh": fresh, "histograms": torch.from_numpy(histograms)}


class LabelledBatches(StepBatches):
    """Batches of event histograms with labels.

    Item k also holds `label_place` (L, 2) int64 (lane and segment of each label, lane by lane), and
    the labels as tensors from `collate`. The setting `labels_per_chunk` limits the labels of a
    chunk: they are drawn at random for each lane and step and always include the last one. Random
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
        super().__init__(
            recordings, settings, seed, shard, ends=tuple(each.labelled for each in recordings)
        )
        self._labelled, self._per_chunk, self._collate = (
            recordings,
            settings.labels_per_chunk,
            collate,
        )

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        flip_zooms = self._flip_zooms(slots)
        places: list[tuple[int, int]] = []
        labels: list[tuple[Any, FlipZoom]] = []
        for row, (lane, slot) in enumerate(zip(self._share, slots, strict=True)):
            recording = self._labelled[slot.recording]
            for label in self._choose(recording.labels_in(slot.first, self.segments), lane, step):
                places.append((row, int(recording.labelled[label]) - slot.first))
                labels.append((recording.labels[label], flip_zooms[row]))
        place = {"label_place": torch.tensor(places, dtype=torch.int64).reshape(-1, 2)}
        return self._events(slots, flip_zooms) | place | self._collate(labels, self._size)

    def _choose(self, labels: range, lane: int, step: int) -> list[int]:
        if self._per_chunk is None or len(labels) <= self._per_chunk:
            return list(labels)
        last = len(labels) - 1
        others = self._lanes.generator("labels", lane, step).permutation(last)[
            : self._per_chunk - 1
        ]
        return [labels[index] for index in sorted([*others.tolist(), last])]


class PlayBatch(NamedTuple):
    """One step in which a network plays recordings."""

    histograms: Tensor  # (B, T, 2*bins, H, W) uint8
    fresh: Tensor  # (B,) bool, whether a lane's state is reset
    # (L, 2) int64 lane and segment of each chosen window; other segments are padding or lead up to
    # them
    place: Tensor
    # indices of the recording and of the window among its chosen ones, for each of the L
    frames: list[tuple[int, int]]
    labels: list[Any]  # as the recordings return them; None if windows were chosen


class PlayBatches(Dataset[PlayBatch]):
    """Batches in which a network plays recordings to predict every chosen window of each exactly once.

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
        shard: Shard = WHOLE,
        windows: Sequence[Indices] | None = None,
    ) -> None:
        self._spec, self._recordings, self._with_labels = spec, recordings, windows is None
        self._windows = (
            [recording.labelled for recording in recordings] if windows is None else windows
        )
        chunks = [self._chunks(number) for number in range(len(recordings))]
        total = lanes * shard[1]
        if spec.reset:
            every = [chunk for each in chunks for chunk in each]
            playlists = [every[lane::total] for lane in range(min(total, len(every)))]
        else:
            dealt = balance_lanes([len(recording) for recording in recordings], total)
            playlists = [[chunk for number in lane for chunk in chunks[number]] for lane in dealt]
        self._playlists = playlists[shard[0] :: shard[1]]

    def _chunks(self, number: int) -> list[tuple[int, int, range]]:
        """Chunks of a recording: its index, the first window, and the indices of the chosen windows to predict."""
        chosen, segments = self._windows[number], self._spec.segments
        if self._spec.reset:
            firsts = np.maximum(chosen - segments + 1, 0).tolist()
            return [(number, first, range(index, index + 1)) for index, first in enumerate(firsts)]
        firsts = range(0, chosen.max(initial=-1) + 1, segments)
        return [
            (number, first, range(*np.searchsorted(chosen, (first, first + segments)).tolist()))
            for first in firsts
        ]

    def __len__(self) -> int:
        return max(map(len, self._playlists), default=0)

    def __getitem__(self, step: int) -> PlayBatch:
        spec, region, lanes = self._spec, self._recordings[0].region, len(self._playlists)
        histograms = np.zeros(
            (lanes, spec.segments, 2 * spec.bins, region.height, region.width), np.uint8
        )
        fresh = np.full(lanes, spec.reset)
        places, frames = [], []
        for lane, playlist in enumerate(self._playlists):
            if step < len(playlist):
                number, first, indices = playlist[step]
                recording = self._recordings[number]
                recording.fill(histograms[lane, : len(recording) - first], first, spec)
                fresh[lane] |= first == 0
                places += [(lane, int(self._windows[number][index]) - first) for index in indices]
                frames += [(number, index) for index in indices]
        place = torch.tensor(places, dtype=torch.int64).reshape(-1, 2)
        labels = [
            self._recordings[number].labels[index] if self._with_labels else None
            for number, index in frames
        ]
        return PlayBatch(
            torch.from_numpy(histograms), torch.from_numpy(fresh), place, frames, labels
        )
