"""Scores of semantic segmentation from one confusion matrix over all pixels of a test set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tespec.metrics.frames import Kind, counted

IGNORE = 255

DEFINITION = (
    "one confusion matrix over all labelled pixels of the test recordings, label 255 ignored; "
    "miou: mean over all classes of TP / (TP + FP + FN), a class that occurs nowhere counting as 0; "
    "mean_class_acc: mean over the classes that are labelled of TP / (TP + FN); "
    "pixel_acc: share of pixels that are right"
)


@dataclass(frozen=True)
class Scores:
    """Scores in percent.

    Attributes:
        miou: mean intersection over union.
        mean_class_acc: mean recall of the classes that are labelled (the mAcc of ECDDP, TESPEC and mmsegmentation).
        pixel_acc: overall accuracy (the "acc" of ESS).
        iou: intersection over union of each class.
        labelled: number of classes that are labelled.
    """

    miou: float
    mean_class_acc: float
    pixel_acc: float
    iou: tuple[float, ...]
    labelled: int

    def metrics(self) -> dict[str, float]:
        """The three overall scores by name."""
        return {"miou": self.miou, "mean_class_acc": self.mean_class_acc, "pixel_acc": self.pixel_acc}

    @property
    def partial(self) -> str:
        """Which mean is over fewer classes than there are; "" if none."""
        return counted({"mean_class_acc": self.labelled}, len(self.iou), "classes")


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
    """Scores of a confusion matrix.

    IoU as uzh-rpg/ess, evaluation/metrics.py, defines it; mean class accuracy as mmsegmentation,
    evaluation/metrics/iou_metric.py, does: a class without labelled pixels has no recall.
    """
    hits = matrix.diagonal().astype(np.float64)
    labelled, predicted = matrix.sum(1), matrix.sum(0)
    iou = 100 * hits / np.maximum(labelled + predicted - hits, 1)
    there = labelled > 0
    recall = float((100 * hits[there] / labelled[there]).mean()) if there.any() else 0.0
    overall = 100 * hits.sum() / max(int(matrix.sum()), 1)
    return Scores(float(iou.mean()), recall, float(overall), tuple(iou.tolist()), int(there.sum()))


SegmentationState = dict[tuple[str, str], NDArray[np.int64]]


class SegmentationScorer:
    """Confusion matrices of a whole test set, of each recording and of each named group of frames."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        self._matrices: SegmentationState = {}

    def update(
        self, predicted: NDArray[np.integer], labels: NDArray[np.integer], recording: str, groups: Sequence[str] = ()
    ) -> None:
        """Count one frame: predicted and labelled classes (H, W), its recording and the groups it belongs to."""
        self.add(confusion(predicted, labels, len(self.classes)), recording, groups)

    def add(self, matrix: NDArray[np.int64], recording: str, groups: Sequence[str] = ()) -> None:
        """Add the confusion matrix of one frame."""
        self.merge(
            [dict.fromkeys((("all", ""), ("recording", recording), *(("group", each) for each in groups)), matrix)]
        )

    def state(self) -> SegmentationState:
        """All counts, as a value for `merge` of another process."""
        return dict(self._matrices)

    def merge(self, states: Iterable[SegmentationState]) -> None:
        """Add the counts of other scorers; the scores do not depend on how frames were distributed."""
        for state in states:
            for key, matrix in state.items():
                self._matrices[key] = self._matrices.get(key, 0) + matrix

    def definition(self) -> str:
        """What the scores mean, and which classes are not labelled anywhere."""
        labelled = self._matrices.get(("all", ""), np.ones((len(self.classes), 1))).sum(1)
        absent = [name for name, count in zip(self.classes, labelled, strict=True) if not count]
        return DEFINITION + (f"; no pixel is labelled {', '.join(absent)}" if absent else "")

    def overall(self) -> Scores:
        """Scores over all frames."""
        empty = np.zeros((len(self.classes), len(self.classes)), np.int64)
        return scores(self._matrices.get(("all", ""), empty))

    def by(self, kind: Kind) -> dict[str, Scores]:
        """Scores of each "recording" or "group", by name."""
        return {name: scores(matrix) for (each, name), matrix in sorted(self._matrices.items()) if each == kind}
