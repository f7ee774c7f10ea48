"""Semantic segmentation as a task: its data, its model, and its scores."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tespec.datasets.collate import stack_masks
from tespec.datasets.evaluation import evaluation_batches
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.steps import LabelledSteps, Steps
from tespec.errors import UserError
from tespec.evaluation.segmentation import DEFINITION, SegmentationScorer
from tespec.models import EventSwin, SegmentationModel
from tespec.models.padding import padded_size
from tespec.models.state import reset
from tespec.registry import TASKS
from tespec.settings import Finetuning
from tespec.training.labelled import groups_of, named, open_dataset
from tespec.training.progress import progress
from tespec.training.task import Evaluation
from tespec.typed import build


@dataclass(frozen=True)
class SegmentationHead:
    """Width and dropout of UperNet."""

    channels: int
    dropout: float


@TASKS.register_module(name="segmentation")
class SegmentationTask:
    """A data set with masks, an UperNet head on the backbone, and mIoU.

    Args:
        settings: the cell's settings.
        root: folder of the data set.

    Raises:
        UserError: the data cannot be read.
    """

    def __init__(self, settings: Finetuning, root: Path) -> None:
        self._settings = settings
        self._head = build(SegmentationHead, settings.head, "head")
        labels = settings.batch_size * min(settings.labels_per_chunk or settings.segments, settings.segments)
        if labels < 2:
            raise UserError("batch_size", "a step has a single label, and batch normalisation needs two", "give more")
        self.dataset = open_dataset(settings, root)
        self.train, self.test = self.dataset.recordings("train"), self.dataset.recordings("test")

    @property
    def splits(self) -> tuple[list[LabelledRecording], list[LabelledRecording]]:
        """Recordings trained on, and those evaluated."""
        return self.train, self.test

    def model(self) -> SegmentationModel:
        """A fresh backbone with a fresh head."""
        settings, region = self._settings, self.train[0].region
        backbone = EventSwin(
            arch=settings.width,
            recurrent=settings.recurrent,
            bins=settings.bins,
            img_size=padded_size(region.height, region.width),
        )
        return SegmentationModel(backbone, len(settings.classes), self._head.channels, self._head.dropout)

    def steps(self, seed: int) -> Steps:
        """Batches of the training by step."""
        return LabelledSteps(self.train, self._settings, seed, stack_masks)

    def small_batch(self) -> dict[str, Tensor]:
        """Two labelled segments without a single event, for measuring what a step costs."""
        settings, region = self._settings, self.train[0].region
        lanes, segments = (1, 2) if settings.segments > 1 else (2, 1)
        height, width = region.height, region.width
        return {
            "histograms": torch.zeros(lanes, segments, 2 * settings.bins, height, width, dtype=torch.uint8),
            "fresh": torch.ones(lanes, dtype=torch.bool),
            "labels": torch.zeros(lanes * segments, height, width, dtype=torch.uint8),
            "label_place": torch.cartesian_prod(torch.arange(lanes), torch.arange(segments)),
        }

    def protocol(self) -> dict[str, str]:
        """What the scores mean, in words."""
        return {
            "train": named(self.train),
            "test": named(self.test),
            **self.dataset.describe(),
            "scored": "every test label once; no test-time augmentation",
            "histograms": f"{self._settings.bins} bins, rule {self._settings.rule}",
            "scores": DEFINITION,
        }

    @torch.no_grad()
    def evaluate(self, model: Any, device: torch.device) -> Evaluation:
        """Play the test recordings once and score every label."""
        settings, began = self._settings, time.monotonic()
        scorer, state, done = SegmentationScorer(settings.classes), None, 0
        total = sum(map(len, self.test))
        lanes = settings.evaluation_lanes if settings.recurrent else settings.batch_size
        model.eval()
        with progress("evaluation", "labels") as advance:
            for batch in evaluation_batches(
                self.test, lanes, settings.segments, settings.bins, settings.rule, stateful=settings.recurrent
            ):
                state = reset(state, batch.fresh.to(device))
                logits, state = model.predict(batch.histograms.to(device), state)
                classes = logits.argmax(dim=2).to(torch.uint8).cpu().numpy()
                for frame in batch.frames:
                    recording = self.test[frame.recording]
                    scorer.update(
                        classes[frame.lane, frame.segment],
                        recording.labels[frame.label],
                        recording.name,
                        groups_of(recording, frame.label),
                    )
                done += len(batch.frames)
                advance(done, total, "")
        overall = scorer.overall()
        return Evaluation(
            metrics=overall.metrics(),
            groups={name: each.metrics() for name, each in scorer.by("group").items()},
            recordings={name: each.metrics() for name, each in scorer.by("recording").items()},
            classes=dict(zip(settings.classes, overall.iou, strict=True)),
            seconds=time.monotonic() - began,
        )
