"""COCO's average precision of boxes, on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.boxes import Boxes

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of intersection over union
AT_50, AT_75 = 0, 5  # places of 0.50 and 0.75 among them
MAX_DETECTIONS = 100  # of a class in a frame; those of the highest scores
ANY_AREA = [0.0, 1e10]


def average_precision(truth: Sequence[Boxes], predicted: Sequence[Boxes], classes: int) -> NDArray[np.float64]:
    """Average precision of each class and threshold: all areas, 101 recall points, `MAX_DETECTIONS`.

    Boxes of the same score are ranked in the order in which they are given.

    Args:
        truth: ground truth of each frame, of one at least.
        predicted: predictions for the same frames.
        classes: number of classes; labels are 0 to classes - 1.

    Returns:
        (classes, 10) shares in [0, 1] by class and `THRESHOLDS`; NaN where a class has no ground truth.
    """
    known, found = _Flat(truth), _Flat(predicted)
    return np.stack([_of_class(known, found, label) for label in range(classes)])


class _Flat:
    """Boxes of all frames in one list, with the number of each one's frame."""

    def __init__(self, frames: Sequence[Boxes]) -> None:
        self.frame = np.repeat(np.arange(len(frames)), [len(boxes.label) for boxes in frames])
        self.boxes = Boxes(*(np.concatenate(column) for column in zip(*frames, strict=True)))

    def annotations(self, label: int) -> list[dict[str, Any]]:
        """The boxes of one class in COCO's form, counted from 1, since COCO takes 0 for "not matched"."""
        chosen = np.flatnonzero(self.boxes.label == label)
        corners = self.boxes.corners[chosen].astype(np.float64)
        sides = corners[:, 2:] - corners[:, :2]
        columns = (self.frame[chosen], np.hstack([corners[:, :2], sides]), sides.prod(axis=1), self.boxes.score[chosen])
        return [
            {"id": number, "image_id": frame, "category_id": 1, "bbox": box, "area": area, "score": score, "iscrowd": 0}
            for number, (frame, box, area, score) in enumerate(zip(*(c.tolist() for c in columns), strict=True), 1)
        ]


def _of_class(known: _Flat, found: _Flat, label: int) -> NDArray[np.float64]:
    """(10,) average precision of one class; one at a time, because COCO's form takes about 1 kB of memory per box."""
    from faster_coco_eval import COCO, COCOeval_faster  # a tenth of a second that only scores of boxes need

    truth, predictions = known.annotations(label), found.annotations(label)
    if not truth:
        return np.full(len(THRESHOLDS), np.nan)
    frames = sorted({box["image_id"] for box in (*truth, *predictions)})
    common = {"images": [{"id": frame} for frame in frames], "categories": [{"id": 1}]}
    evaluator = COCOeval_faster(
        COCO({**common, "annotations": truth}), COCO({**common, "annotations": predictions}), "bbox"
    )
    parameters = evaluator.params
    parameters.areaRng, parameters.areaRngLbl = [ANY_AREA], ["all"]
    parameters.iouThrs, parameters.maxDets = THRESHOLDS, [MAX_DETECTIONS]
    evaluator.evaluate()
    evaluator.accumulate()
    precision: NDArray[np.float64] = np.reshape(evaluator.eval["precision"], (len(THRESHOLDS), -1))
    return precision.mean(axis=1)
