"""Batches by step: item k of a dataset is the batch of training step k, whatever was asked for before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
from tespec.settings import Augmentation, Finetuning, Mask, Pretraining


class _Steps(Dataset[dict[str, Tensor]]):
    """Histograms and `fresh` flags of the lanes; subclasses add what belongs to them."""

    def __init__(
        self, recordings: Sequence[Recording], lanes: Lanes, bins: int, rule: str, augmentation: Augmentation
    ) -> None:
        if not lanes.playable:
            longest = max(lanes.lengths, default=0)
            where = recordings[0].path.parent if recordings else Path()
            raise UserError(
                where, f"no recording has {lanes.segments} windows, the longest {longest}", "set fewer segments"
            )
        self.lanes = lanes.count
        self._recordings, self._lanes, self._bins, self._rule = recordings, lanes, bins, rule
        self._augmentation = augmentation

    def _slots(self, step: int) -> list[Slot]:
        return [self._lanes.slot(lane, step) for lane in range(self._lanes.count)]

    def _maps(self, lane: int, slot: Slot) -> Maps:
        region = self._recordings[slot.recording].region
        generator = self._lanes.generator("augmentation", lane, slot.play)
        return draw_maps(generator, self._augmentation, region.height, region.width)

    def _histograms(self, slot: Slot, maps: Maps) -> NDArray[np.uint8]:
        recording = self._recordings[slot.recording]
        return apply_maps(recording.histograms(slot.first, self._lanes.segments, self._bins, self._rule), maps, 0)


class PretrainSteps(_Steps):
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
        histograms = [self._histograms(slot, self._maps(lane, slot)) for lane, slot in enumerate(slots)]
        masks = [self._draw(lane, step, self._mask, *histograms[lane].shape[-2:]) for lane in range(len(slots))]
        return {
            "histograms": torch.from_numpy(np.stack(histograms)),
            "fresh": torch.tensor([slot.fresh for slot in slots]),
            "mask": torch.stack(masks),
        }

    def slot(self, lane: int, step: int) -> tuple[Recording, int]:
        """Recording that a lane plays at a step, and the chunk's first window."""
        slot = self._lanes.slot(lane, step)
        return self._recordings[slot.recording], slot.first

    def _draw(self, lane: int, step: int, mask: Mask, height: int, width: int) -> Tensor:
        rows, columns = -(-height // mask.unit), -(-width // mask.unit)
        return draw_mask(self._lanes.generator("mask", lane, step), rows, columns, mask.ratio)


class LabelledSteps(_Steps):
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
        histograms, labels, segments = [], [], []
        for lane, slot in enumerate(slots):
            maps, chosen = self._maps(lane, slot), self._choose(lane, step)
            histograms.append(self._histograms(slot, maps))
            masks = self._labelled[slot.recording].labels
            labels.append(np.stack([apply_maps(masks[slot.first + int(index)], maps, IGNORE) for index in chosen]))
            segments.append(chosen)
        return {
            "histograms": torch.from_numpy(np.stack(histograms)),
            "fresh": torch.tensor([slot.fresh for slot in slots]),
            "labels": torch.from_numpy(np.stack(labels)),
            "label_segment": torch.from_numpy(np.stack(segments)),
        }

    def _choose(self, lane: int, step: int) -> NDArray[np.int64]:
        last = self._lanes.segments - 1
        others = self._lanes.generator("labels", lane, step).permutation(last)[: self._per_chunk - 1]
        return np.sort(np.append(others, last)).astype(np.int64)
