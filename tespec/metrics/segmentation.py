"""Metrics of semantic segmentation from one confusion matrix over all pixels of a test set."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.metrics import FrameScorer, MeasuredFrame, Scores, incomplete_means

IGNORE = 255

DEFINITION = (
    "one confusion matrix over all labelled pixels of the test recordings, label 255 ignored; "
    "miou: mean over all classes of TP / (TP + FP + FN), 0 for a class neither labelled nor "
    "predicted; mean_class_acc: mean over the labelled classes of TP / (TP + FN); "
    "pixel_acc: share of correct pixels"
)


def confusion(
    predicted: NDArray[np.integer], labels: NDArray[np.integer], classes: int
) -> NDArray[np.int64]:
    """Count pixels by label and prediction, ignoring label 255.

    Args:
        predicted: (H, W) classes.
        labels: (H, W) classes.
        classes: number of classes.

    Returns:
        (classes, classes), rows are labels and columns predictions.
    """
    if predicted.shape != labels.shape:
        raise ValueError(
            f"predictions {predicted.shape} and labels {labels.shape} have different shapes"
        )
    valid = labels != IGNORE
    target = labels[valid].astype(np.int64)
    output = predicted[valid].astype(np.int64)
    for name, values in (("labels", target), ("predictions", output)):
        if values.size and not 0 <= values.min() <= values.max() < classes:
            raise ValueError(
                f"{name} range from {values.min()} to {values.max()}, not within 0 to {classes - 1}"
            )
    counts = np.bincount(target * classes + output, minlength=classes * classes)
    return counts.reshape(classes, classes)


def scores(matrix: NDArray[np.int64], names: Sequence[str]) -> Scores:
    """Compute the scores of `DEFINITION` from a confusion matrix.

    IoU follows uzh-rpg/ess, evaluation/metrics.py, whose "acc" is pixel_acc. mean_class_acc is that
    of ECDDP (Yan98/Event-Camera-Data-Dense-Pre-training, eval_seg.py) where every class is
    labelled, as in DDD17 and DSEC. A class without labelled pixels, which ECDDP counts as 0, has no
    recall, as in mmsegmentation, evaluation/metrics/iou_metric.py.

    Args:
        matrix: (classes, classes), as returned by `confusion`.
        names: class names.

    Returns:
        scores in percent, and the IoU of every class.
    """
    hits = matrix.diagonal().astype(np.float64)
    labelled = matrix.sum(1)
    iou = 100 * hits / np.maximum(labelled + matrix.sum(0) - hits, 1)
    has_labels = labelled > 0
    n_labelled = int(has_labels.sum())
    recall = 100 * hits[has_labels] / labelled[has_labels]
    values = {
        "miou": float(iou.mean()),
        "mean_class_acc": float(recall.mean()) if n_labelled else 0.0,
        "pixel_acc": float(100 * hits.sum() / max(int(matrix.sum()), 1)),
    }
    partial = incomplete_means({"mean_class_acc": n_labelled}, len(matrix), "classes")
    return Scores(values, partial, dict(zip(names, iou.tolist(), strict=True)))


class SegmentationScorer(FrameScorer[MeasuredFrame]):
    """IoU and accuracy of a test set, and of its recordings and named groups of frames."""

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
        """Add one frame.

        Args:
            predicted: (H, W) classes.
            labels: (H, W) classes, 255 where unlabelled.
            recording: name of the recording.
            groups: names of the groups that include the frame.
        """
        matrix = confusion(predicted, labels, len(self.classes))
        self._frames.append(MeasuredFrame(recording, tuple(groups), matrix))

    def definition(self) -> str:
        """Describe the metrics and name the classes that are never labelled."""
        labelled = self._sum(self._frames).sum(1)
        absent = [self.classes[label] for label in np.flatnonzero(labelled == 0)]
        if not absent or not labelled.any():
            return DEFINITION
        return f"{DEFINITION}; no pixel is labelled {', '.join(absent)}"

    def overall(self) -> Scores:
        """Scores over all frames."""
        return self._scores(self._frames)

    def _scores(self, frames: Sequence[MeasuredFrame]) -> Scores:
        return scores(self._sum(frames), self.classes)

    def _sum(self, frames: Sequence[MeasuredFrame]) -> NDArray[np.int64]:
        zeros = np.zeros((len(self.classes), len(self.classes)), np.int64)
        return sum((frame.measured for frame in frames), zeros)
