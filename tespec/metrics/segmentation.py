"""Scores of semantic segmentation from one confusion matrix over all pixels of a test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.metrics.frames import FrameScorer, fewer

IGNORE = 255

DEFINITION = (
    "one confusion matrix over all labelled pixels of the test recordings, label 255 ignored; "
    "miou: mean over all classes of TP / (TP + FP + FN), a class that occurs nowhere counting as 0; "
    "mean_class_acc: mean over the classes that are labelled of TP / (TP + FN); "
    "pixel_acc: share of pixels that are right"
)


@dataclass(frozen=True)
class Scores:
    """Scores in percent; see `DEFINITION`.

    Attributes:
        miou: mean intersection over union.
        mean_class_acc: the mAcc of ECDDP, TESPEC and mmsegmentation.
        pixel_acc: the "acc" of ESS.
        iou: of each class.
        partial: metrics whose mean leaves classes out, and over how many it is.
    """

    miou: float
    mean_class_acc: float
    pixel_acc: float
    iou: tuple[float, ...]
    partial: dict[str, str]

    def metrics(self) -> dict[str, float]:
        """The three overall scores by name."""
        return {"miou": self.miou, "mean_class_acc": self.mean_class_acc, "pixel_acc": self.pixel_acc}


def confusion(predicted: NDArray[np.integer], labels: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """(classes, classes) int64 number of pixels by label (row) and prediction (column); labels of 255 are left out.

    Raises:
        ValueError: shapes differ, or a pixel that counts has another class than 0 to classes - 1.
    """
    if predicted.shape != labels.shape:
        raise ValueError(f"predictions {predicted.shape} and labels {labels.shape} have different shapes")
    kept = labels != IGNORE
    truth, found = labels[kept].astype(np.int64), predicted[kept].astype(np.int64)
    for name, values in (("labels", truth), ("predictions", found)):
        if values.size and not 0 <= values.min() <= values.max() < classes:
            raise ValueError(f"{name} from {values.min()} to {values.max()} for {classes} classes")
    return np.bincount(truth * classes + found, minlength=classes * classes).reshape(classes, classes)


def scores(matrix: NDArray[np.int64]) -> Scores:
    """Scores of a confusion matrix (classes, classes).

    IoU as uzh-rpg/ess, evaluation/metrics.py, defines it; mean class accuracy as mmsegmentation,
    evaluation/metrics/iou_metric.py, does: a class without labelled pixels has no recall.
    """
    hits = matrix.diagonal().astype(np.float64)
    labelled, predicted = matrix.sum(1), matrix.sum(0)
    iou = 100 * hits / np.maximum(labelled + predicted - hits, 1)
    there = labelled > 0
    recall = float((100 * hits[there] / labelled[there]).mean()) if there.any() else 0.0
    overall = 100 * hits.sum() / max(int(matrix.sum()), 1)
    partial = fewer({"mean_class_acc": int(there.sum())}, len(matrix), "classes")
    return Scores(float(iou.mean()), recall, float(overall), tuple(iou.tolist()), partial)


class SegmentationFrame(NamedTuple):
    """Confusion matrix of one frame, its recording and its groups."""

    recording: str
    groups: tuple[str, ...]
    matrix: NDArray[np.int64]


class SegmentationScorer(FrameScorer[SegmentationFrame, Scores]):
    """Confusion matrices of a whole test set, of each recording and of each named group of frames."""

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__()
        self.classes = tuple(classes)

    def update(
        self, predicted: NDArray[np.integer], labels: NDArray[np.integer], recording: str, groups: Sequence[str] = ()
    ) -> None:
        """Count one frame: predicted and labelled classes (H, W), its recording and the groups it belongs to."""
        self.add(confusion(predicted, labels, len(self.classes)), recording, groups)

    def add(self, matrix: NDArray[np.int64], recording: str, groups: Sequence[str] = ()) -> None:
        """Add the confusion matrix of one frame."""
        self._frames.append(SegmentationFrame(recording, tuple(groups), matrix))

    def definition(self) -> str:
        """What the scores mean, and which classes are not labelled anywhere."""
        labelled = self._sum(self._frames).sum(1)
        absent = [name for name, count in zip(self.classes, labelled, strict=True) if not count and labelled.any()]
        return DEFINITION + (f"; no pixel is labelled {', '.join(absent)}" if absent else "")

    def overall(self) -> Scores:
        """Scores over all frames."""
        return self._scores(self._frames)

    def _scores(self, frames: Sequence[SegmentationFrame]) -> Scores:
        return scores(self._sum(frames))

    def _sum(self, frames: Sequence[SegmentationFrame]) -> NDArray[np.int64]:
        return sum((frame.matrix for frame in frames), np.zeros((len(self.classes), len(self.classes)), np.int64))
