"""Batches by step: item k of a dataset is the batch of training step k, whatever was asked for before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tespec.datasets.augment import Maps, apply_maps, draw_maps
from tespec.datasets.lanes import Lanes, Slot, lengths_of
from tespec.datasets.masks import IGNORE
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.errors import UserError
from tespec.pretraining.masking import draw_mask
from tespec.settings import Augmentation, Finetuning, Pretraining


class Steps(Dataset[dict[str, Tensor]]):
    """Histograms and `fresh` flags of the lanes; subclasses add what belongs to them.

    Attributes:
        lanes: batch size.
        segments: windows per chunk.
        left_out: names of the recordings that are shorter than a chunk and hence never played.
    """

    def __init__(
        self, recordings: Sequence[Recording], lanes: Lanes, bins: int, rule: str, augmentation: Augmentation
    ) -> None:
        if not lanes.playable:
            where = recordings[0].path.parent if recordings else "recordings"
            what = f"none has the {lanes.segments} windows of a chunk, the longest has {max(lanes.lengths, default=0)}"
            raise UserError(where, what, "set fewer segments")
        self.lanes, self.segments = lanes.count, lanes.segments
        self.left_out = tuple(recording.name for recording in recordings if len(recording) < lanes.segments)
        self._recordings, self._lanes, self._bins, self._rule = recordings, lanes, bins, rule
        self._augmentation = augmentation

    def _slots(self, step: int) -> list[Slot]:
        return [self._lanes.slot(lane, step) for lane in range(self._lanes.count)]

    def _maps(self, lane: int, slot: Slot) -> Maps:
        region = self._recordings[slot.recording].region
        generator = self._lanes.generator("augmentation", lane, slot.play)
        return draw_maps(generator, self._augmentation, region.height, region.width)

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
    """Batches of a pre-training.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool and `mask` (B, ceil(H/unit), ceil(W/unit))
    bool, True where the events are hidden.
    """

    def __init__(self, recordings: Sequence[Recording], settings: Pretraining, seed: int) -> None:
        lanes = Lanes(lengths_of(recordings), settings.segments, settings.batch_size, seed)
        super().__init__(recordings, lanes, settings.bins, settings.rule, settings.augmentation)
        self._mask = settings.mask

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        batch = self._common(slots, [self._maps(lane, slot) for lane, slot in enumerate(slots)])
        rows, columns = (-(-side // self._mask.unit) for side in batch["histograms"].shape[-2:])
        generators = [self._lanes.generator("mask", lane, step) for lane in range(len(slots))]
        masks = [draw_mask(generator, rows, columns, self._mask.ratio) for generator in generators]
        return batch | {"mask": torch.stack(masks)}


class LabelledSteps(Steps):
    """Batches of a fine-tuning.

    Item k holds `histograms` (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool, `labels` (B, K, H, W) uint8 with 255 where
    there is none, and `label_segment` (B, K) int64, the segment that each label belongs to. K is the setting
    `labels_per_chunk`: that many of the T labels, drawn for each lane and step, the last one always among them.
    """

    def __init__(self, recordings: Sequence[LabelledRecording], settings: Finetuning, seed: int) -> None:
        lanes = Lanes(lengths_of(recordings), settings.segments, settings.batch_size, seed, settings.random_share)
        super().__init__(recordings, lanes, settings.bins, settings.rule, settings.augmentation)
        self._labelled = recordings
        self._per_chunk = min(settings.labels_per_chunk or settings.segments, settings.segments)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        slots = self._slots(step)
        maps = [self._maps(lane, slot) for lane, slot in enumerate(slots)]
        chosen = np.stack([self._choose(lane, step) for lane in range(len(slots))])
        labels = [
            [apply_maps(self._labelled[slot.recording].labels[slot.first + index], maps[lane], IGNORE) for index in row]
            for lane, (slot, row) in enumerate(zip(slots, chosen.tolist(), strict=True))
        ]
        return self._common(slots, maps) | {
            "labels": torch.from_numpy(np.array(labels)),
            "label_segment": torch.from_numpy(chosen),
        }

    def _choose(self, lane: int, step: int) -> NDArray[np.int64]:
        last = self._lanes.segments - 1
        others = self._lanes.generator("labels", lane, step).permutation(last)[: self._per_chunk - 1]
        return np.sort(np.append(others, last)).astype(np.int64)
