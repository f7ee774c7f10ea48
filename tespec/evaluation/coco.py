"""COCO's average precision of boxes, on arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.boxes import Boxes
from tespec.evaluation.matching import match

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of intersection over union
AT_50, AT_75 = 0, 5  # places of 0.50 and 0.75 among them
MAX_DETECTIONS = 100  # of a class in a frame; those of the highest scores
RECALLS = np.linspace(0.0, 1.0, 101)  # at which precision is read


def average_precision(truth: Sequence[Boxes], predicted: Sequence[Boxes], classes: int) -> NDArray[np.float64]:
    """Average precision of each class and threshold: all areas, 101 recall points, `MAX_DETECTIONS`.

    Boxes of the same score are ranked in the order in which they are given. The numbers are those of pycocotools.

    Args:
        truth: ground truth of each frame, of one at least; boxes have sides above 0, as `filter_boxes` leaves them.
        predicted: predictions for the same frames, likewise.
        classes: number of classes; labels are 0 to classes - 1.

    Returns:
        (classes, 10) shares in [0, 1] by class and `THRESHOLDS`; NaN where a class has no ground truth.
    """
    known, found = _Grouped(truth, classes), _Grouped(predicted, classes, MAX_DETECTIONS)
    hits = match(found.boxes, known.boxes, found.ends, known.ends, THRESHOLDS)
    shares = np.full((classes, len(THRESHOLDS)), np.nan)
    for label in range(classes):
        of_truth, of_found = known.of_class(label), found.of_class(label)
        count = of_truth.stop - of_truth.start
        if count:
            order = np.argsort(-found.score[of_found], kind="stable")
            shares[label] = _read_precision(hits[:, of_found][:, order], count).mean(axis=1)
    return shares


class _Grouped:
    """Boxes of all frames in one list, class after class, in each frame after frame and by falling score.

    Attributes:
        boxes: (N, 4) left, top, width, height.
        score: (N,).
        ends: (classes * frames + 1,) where the boxes of a class in a frame begin and end.
    """

    def __init__(self, frames: Sequence[Boxes], classes: int, most: int | None = None) -> None:
        corners, label, score = (np.concatenate(column) for column in zip(*frames, strict=True))
        frame = np.repeat(np.arange(len(frames)), [len(boxes.label) for boxes in frames])
        group = label * len(frames) + frame
        order = np.lexsort((-score, group))
        group = group[order]
        if most is not None:
            rank = np.arange(len(group)) - np.searchsorted(group, group)
            order, group = order[rank < most], group[rank < most]
        corners = corners[order].astype(np.float64)
        self.boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
        self.score = score[order]
        self.ends = np.searchsorted(group, np.arange(classes * len(frames) + 1))
        self._frames = len(frames)

    def of_class(self, label: int) -> slice:
        """Which of the boxes are of one class."""
        return slice(int(self.ends[label * self._frames]), int(self.ends[(label + 1) * self._frames]))


def _read_precision(hits: NDArray[np.bool_], truths: int) -> NDArray[np.float64]:
    """(K, 101) best precision from each recall on, of boxes by falling score that are right or wrong (K, P)."""
    right = hits.cumsum(axis=1, dtype=np.float64)
    precision = right / (np.arange(1, hits.shape[1] + 1) + np.spacing(1))
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    read = np.zeros((len(hits), len(RECALLS)))
    for row, recalls, of_recall in zip(read, right / truths, best, strict=True):
        places = np.searchsorted(recalls, RECALLS)
        reached = places < len(recalls)
        row[reached] = of_recall[places[reached]]
    return read
