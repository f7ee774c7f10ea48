"""Metrics of semantic segmentation from one confusion matrix over all pixels of a test set."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.metrics import FrameScorer, MeasuredFrame, Scores, fewer

IGNORE = 255

DEFINITION = (
    "one confusion matrix over all labelled pixels of the test recordings, label 255 ignored; "
    "miou: mean over all classes of TP / (TP + FP + FN), 0 for a class neither labelled nor predicted; "
    "mean_class_acc: mean over the labelled classes of TP / (TP + FN); "
    "pixel_acc: share of correct pixels"
)


def confusion(
    predicted: NDArray[np.integer], labels: NDArray[np.integer], classes: int
) -> NDArray[np.int64]:
    """Confusion matrix (classes, classes) int64 of labels (rows) and predictions (columns), ignoring label 255."""
    if predicted.shape != labels.shape:
        raise ValueError(
            f"predictions {predicted.shape} and labels {labels.shape} have different shapes"
        )
    kept = labels != IGNORE
    truth, found = labels[kept].astype(np.int64), predicted[kept].astype(np.int64)
    for name, values in (("labels", truth), ("predictions", found)):
        if values.size and not 0 <= values.min() <= values.max() < classes:
            raise ValueError(
                f"{name} range from {values.min()} to {values.max()}, not within 0 to {classes - 1}"
            )
    return np.bincount(truth * classes + found, minlength=classes * classes).reshape(
        classes, classes
    )


def scores(matrix: NDArray[np.int64], names: Sequence[str]) -> Scores:
    """Scores in percent (see `DEFINITION`) from a confusion matrix (classes, classes), and the IoU of each named class.

    IoU follows uzh-rpg/ess, evaluation/metrics.py, whose "acc" is pixel_acc. mean_class_acc is that
    of ECDDP (Yan98/Event-Camera-Data-Dense-Pre-training, eval_seg.py) where every class is
    labelled, as in DDD17 and DSEC. A class without labelled pixels, which ECDDP counts as 0, has no
    recall, as in mmsegmentation, evaluation/metrics/iou_metric.py.
    """
    hits = matrix.diagonal().astype(np.float64)
    labelled, predicted = matrix.sum(1), matrix.sum(0)
    iou = 100 * hits / np.maximum(labelled + predicted - hits, 1)
    there = labelled > 0
    recall = float((100 * hits[there] / labelled[there]).mean()) if there.any() else 0.0
    overall = 100 * hits.sum() / max(int(matrix.sum()), 1)
    partial = fewer({"mean_class_acc": int(there.sum())}, len(matrix), "classes")
    values = {"miou": float(iou.mean()), "mean_class_acc": recall, "pixel_acc": float(overall)}
    return Scores(values, partial, dict(zip(names, iou.tolist(), strict=True)))


class SegmentationScorer(FrameScorer[MeasuredFrame]):
    """IoU and accuracy of a test set, of each recording and of each named group of frames."""

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__()
        self.classes = tuple(classes)

    def update(
        self,
        predicted: NDArray[np.integer],
        labels: NDArray[np.integer],
        recording: str,
        groups: Sequence[str] = (),
    ) -> None:
        """Add one frame: predicted and labelled classes (H, W), its recording and its groups."""
        matrix = confusion(predicted, labels, len(self.classes))
        self._frames.append(MeasuredFrame(recording, tuple(groups), matrix))

    def definition(self) -> str:
        """Describe the metrics and name the classes that are never labelled."""
        labelled = self._sum(self._frames).sum(1)
        absent = [
            name
            for name, count in zip(self.classes, labelled, strict=True)
            if not count and labelled.any()
        ]
        return DEFINITION + (f"; no pixel is labelled {', '.join(absent)}" if absent else "")

    def overall(self) -> Scores:
        """Scores over all frames."""
        return self._scores(self._frames)

    def _scores(self, frames: Sequence[MeasuredFrame]) -> Scores:
        return scores(self._sum(frames), self.classes)

    def _sum(self, frames: Sequence[MeasuredFrame]) -> NDArray[np.int64]:
        return sum(
            (frame.measured for frame in frames),
            np.zeros((len(self.classes), len(self.classes)), np.int64),
        )
