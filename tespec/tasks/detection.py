"""Object detection as a task: YOLOX on the backbone, and COCO AP by the Prophesee protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.registry import TASKS
from tespec.core.settings import Finetuning, build
from tespec.datasets.batches import WHOLE, LabelledSteps, Shard, Steps, join_boxes
from tespec.datasets.recording import LabelledRecording, cut_at_gaps
from tespec.metrics.detection import BoxFilter, DetectionScorer
from tespec.models import Backbone, DetectionModel
from tespec.models.detection import SCORES
from tespec.tasks.base import LabelledTask, groups_of


@dataclass(frozen=True)
class DetectionHead:
    """The YOLOX neck and head, what they predict, and which boxes are scored.

    Attributes:
        channels: width of neck and head; None: twice that of the backbone's first stage.
        neck_blocks: bottlenecks of each CSP layer of the neck.
        score: "class" or "objectness_x_class", what predictions are ranked by.
        score_threshold: predictions whose product of both is below are dropped.
        min_diagonal: smallest diagonal of a box that is scored, in px of the histograms.
        min_side: smallest side, likewise.
        skip_ms: labels up to this time of a recording are not scored.
    """

    channels: int | None
    neck_blocks: int
    score: str
    score_threshold: float
    min_diagonal: float
    min_side: float
    skip_ms: float


@TASKS.register_module(name="detection")
class DetectionTask(LabelledTask):
    """A data set with boxes; see `LabelledTask`."""

    collate = join_boxes

    def __init__(self, settings: Finetuning, root: Path) -> None:
        self._head = head_of(settings)
        super().__init__(settings, root)

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> DetectionModel:
        """`backbone` with fresh neck and head."""
        head = head_of(settings)
        return DetectionModel(
            backbone,
            len(settings.classes),
            head.channels,
            head.neck_blocks,
            head.score,
            head.score_threshold,
        )

    def steps(self, seed: int, shard: Shard = WHOLE) -> Steps:
        """Batches of the training by step; stretches without labels are left out."""
        recordings = cut_at_gaps(self.train, self.settings.segments)
        return LabelledSteps(recordings, self.settings, seed, join_boxes, shard)

    def small_labels(self, count: int) -> dict[str, Tensor]:
        """One box in the middle of each label."""
        height, width = self.size
        box = [0, width / 4, height / 4, 3 * width / 4, 3 * height / 4]
        return {"boxes": torch.tensor([[float(row), *box] for row in range(count)])}

    def scorer(self) -> DetectionScorer:
        """A scorer that has seen nothing."""
        head = self._head
        ranked = "class score" if head.score == "class" else "objectness times class score"
        described = f"{ranked}, of predictions with objectness times class score from {head.score_threshold:g}"
        filters = BoxFilter(head.min_diagonal, head.min_side, round(head.skip_ms * 1000))
        return DetectionScorer(self.settings.classes, filters, described)

    @staticmethod
    def read(predictions: Sequence[Boxes]) -> Sequence[Boxes]:
        """Boxes of each labelled segment."""
        return predictions

    def score(self, scorer: Any, predicted: Boxes, recording: LabelledRecording, label: int) -> None:
        """Tell the scorer of one prediction, and of the time by the recording's clock."""
        time_us = int(recording.label_times[label])
        scorer.update(predicted, recording.labels[label], recording.name, time_us, groups_of(recording, label))

    def of_classes(self, overall: Any) -> dict[str, float]:
        """AP of each class that has ground truth."""
        return dict(overall.classes)


def head_of(settings: Finetuning) -> DetectionHead:
    """Settings of neck, head and score.

    Raises:
        UserError: an unknown score.
    """
    head = build(DetectionHead, settings.head, "head")
    if head.score not in SCORES:
        raise UserError("head.score", f"unknown value {head.score!r}", f"choose from {', '.join(SCORES)}")
    return head
