"""Batches by step: item k of a dataset is the batch of training step k, whatever was asked for before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.errors import UserError
from tespec.core.settings import Augmentation, Finetuning, Mask, Pretraining
from tespec.datasets.augment import Maps, apply_maps, draw_maps
from tespec.datasets.collate import Collate
from tespec.datasets.lanes import Lanes, Slot, lengths_of
from tespec.datasets.parts import WHOLE, Part, share_of
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.pretraining.masking import draw_mask


class Steps(Dataset[dict[str, Tensor]]):
    """Histograms and `fresh` flags of the lanes; subclasses add what belongs to them.

    With several processes, each plays its part of the lanes: process number part[0] of part[1]. Their batches, one
    after the other, are the batch of a single process.

    Attributes:
        lanes: batch size of this process.
        segments: windows per chunk.
        left_out: names of the recordings that are shorter than a chunk and hence never played.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        lanes: Lanes,
        bins: int,
        rule: str,
        augmentation: Augmentation,
        part: Part = WHOLE,
    ) -> None:
        if not lanes.playable:
            where = recordings[0].path.parent if recordings else "recordings"
            what = f"none has the {lanes.segments} windows of a chunk, the longest has {max(lanes.lengths, default=0)}"
            raise UserError(where, what, "set fewer segments")
        self._share = share_of(lanes.count, part)
        self.lanes, self.segments = len(self._share), lanes.segments
        self.left_out = tuple(recording.name for recording in recordings if len(recording) < lanes.segments)
        self._recordings, self._lanes, self._bins, self._rule = recordings, lanes, bins, rule
        self._augmentation = augmentation

    def names(self, step: int) -> list[str]:
        """Names of the recordings that are played at a step."""
        return sorted({self._recordings[slot.recording].name for slot in self._slots(step)})

    def _slots(self, step: int) -> list[Slot]:
        return [self._lanes.slot(lane, step) for lane in self._share]

    def _maps(self, slots: Sequence[Slot]) -> list[Maps]:
        """How each lane sees the recording it plays."""
        drawn = []
        for lane, slot in zip(self._share, slots, strict=True):
            region = self._recordings[slot.recording].region
            generator = self._lanes.generator("augmentation", lane, slot.play)
            drawn.append(draw_maps(generator, self._augmentation, region.height, region.width))
        return drawn

    def _common(self, slots: Sequence[Slot], maps: Sequence[Maps]) -> dict[str, Tensor]:
        region = self._recordings[slots[0].recording].region
        shape = (len(slots), self._lanes.segments, 2 * self._bins, region.height, region.width)
        histograms = np.empty(shape, np.uint8)
        for lane, slot in enumerate(slots):
            played = self._recordings[slot.recording].histograms(
                slot.first, self._lanes.segments, self._bins, self._rule
            )
            histograms[lane] = apply_maps(played, maps[lane], 0)
        return {
            "histograms": torch.from_numpy(histograms),
            "fresh": torch.tensor([slot.fresh for slot in slots]),
        }


class PretrainSteps(Steps):
    """Batches of a pre-training on events.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool and, where masks are drawn, `mask`
    (B, ceil(H/unit), ceil(W/unit)) bool, True where the events are hidden.

    Args:
        recordings: what is played.
        settings: of the pre-training.
        seed: of the run.
        part: which process of how many.
        mask: how masks are drawn; None: none are.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        settings: Pretraining,
        seed: int,
        part: Part = WHOLE,
        mask: Mask | None = None,
    ) -> None:
        lanes = Lanes(lengths_of(recordings), settings.segments, settings.batch_size, seed, settings.random_share)
        super().__init__(recordings, lanes, settings.bins, settings.rule, settings.augmentation, part)
        self._mask = mask

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        batch = self._common(slots, self._maps(slots))
        if self._mask is None:
            return batch
        rows, columns = (-(-side // self._mask.unit) for side in batch["histograms"].shape[-2:])
        generators = [self._lanes.generator("mask", lane, step) for lane in self._share]
        masks = [draw_mask(generator, rows, columns, self._mask.ratio) for generator in generators]
        return batch | {"mask": torch.stack(masks)}


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
        part: which process of how many.
    """

    def __init__(
        self,
        recordings: Sequence[LabelledRecording],
        settings: Finetuning,
        seed: int,
        collate: Collate,
        part: Part = WHOLE,
    ) -> None:
        ends = tuple(recording.labelled for recording in recordings)
        lanes = Lanes(lengths_of(recordings), settings.segments, settings.batch_size, seed, settings.random_share, ends)
        super().__init__(recordings, lanes, settings.bins, settings.rule, settings.augmentation, part)
        self._labelled, self._per_chunk, self._collate = recordings, settings.labels_per_chunk, collate

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        maps = self._maps(slots)
        batch = self._common(slots, maps)
        places: list[tuple[int, int]] = []
        labels: list[tuple[Any, Maps]] = []
        for row, (lane, slot) in enumerate(zip(self._share, slots, strict=True)):
            recording = self._labelled[slot.recording]
            for label in self._choose(recording.labels_in(slot.first, self.segments), lane, step):
                places.append((row, int(recording.labelled[label]) - slot.first))
                labels.append((recording.labels[label], maps[row]))
        size = (batch["histograms"].shape[-2], batch["histograms"].shape[-1])
        place = torch.tensor(places, dtype=torch.int64).reshape(-1, 2)
        return batch | {"label_place": place} | self._collate(labels, size)

    def _choose(self, labels: range, lane: int, step: int) -> list[int]:
        if self._per_chunk is None or len(labels) <= self._per_chunk:
            return list(labels)
        last = len(labels) - 1
        others = self._lanes.generator("labels", lane, step).permutation(last)[: self._per_chunk - 1]
        return [labels[index] for index in sorted([*others.tolist(), last])]
