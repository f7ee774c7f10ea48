"""Metrics of object detection: the Prophesee protocol as in RVT's evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError
from tespec.metrics import FrameScorer, Scores, incomplete_means

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of intersection over union
AT_50, AT_75 = 0, 5  # indices of 0.50 and 0.75 in `THRESHOLDS`
MAX_DETECTIONS = 100  # per class and frame; those with the highest scores
RECALLS = np.linspace(0.0, 1.0, 101)  # at which precision is sampled
EPS = np.spacing(1)  # avoids division by 0, as in pycocotools, cocoeval.py


@njit(cache=True, nogil=True)
def match(predicted, truth, ends_predicted, ends_truth):  # type: ignore[no-untyped-def]
    """Match predicted boxes with ground truth per frame, in the layout of `GroupedBoxes`.

    A predicted box is matched with the unmatched ground-truth box that it overlaps most, the later
    one of equal overlaps. Arithmetic and order are those of pycocotools, so results are identical
    to the bit.

    Args:
        predicted: (P, 4) left, top, width, height.
        truth: (N, 4) left, top, width, height.
        ends_predicted: (frames + 1,) boundaries of the predicted boxes of each frame.
        ends_truth: (frames + 1,) boundaries of the ground-truth boxes.

    Returns:
        (10, P) bool, whether a predicted box is matched at each of `THRESHOLDS`.
    """
    matched = np.zeros((len(THRESHOLDS), len(predicted)), np.bool_)
    overlaps = np.empty((np.diff(ends_predicted).max(), np.diff(ends_truth).max()))
    for frame in range(len(ends_truth) - 1):
        boxes = predicted[ends_predicted[frame] : ends_predicted[frame + 1]]
        targets = truth[ends_truth[frame] : ends_truth[frame + 1]]
        _overlap(boxes, targets, overlaps)
        for k in range(len(THRESHOLDS)):
            taken = np.zeros(len(targets), np.bool_)
            for i in range(len(boxes)):
                best = THRESHOLDS[k]
                index = -1
                for j in range(len(targets)):
                    if not taken[j] and overlaps[i, j] >= best:
                        best = overlaps[i, j]
                        index = j
                if index >= 0:
                    taken[index] = True
                    matched[k, ends_predicted[frame] + i] = True
    return matched


@njit(cache=True, nogil=True)
def _overlap(boxes, targets, overlaps):  # type: ignore[no-untyped-def]
    """Intersection over union, as pycocotools computes it (maskApi.c, bbIou)."""
    for i in range(len(boxes)):
        left, top, width, height = boxes[i]
        for j in range(len(targets)):
            other_left, other_top, other_width, other_height = targets[j]
            wide = min(left + width, other_left + other_width) - max(left, other_left)
            high = min(top + height, other_top + other_height) - max(top, other_top)
            overlaps[i, j] = 0.0
            if wide > 0 and high > 0:
                shared = wide * high
                overlaps[i, j] = shared / (width * height + other_width * other_height - shared)


class GroupedBoxes(NamedTuple):
    """Boxes of one class in all frames, sorted by frame, then decreasing score."""

    boxes: NDArray[np.float64]  # (N, 4) left, top, width, height
    score: NDArray[np.float32]  # (N,)
    ends: NDArray[np.int64]  # (frames + 1,) boundaries of the boxes of each frame


def group_boxes(
    boxes: Boxes, frame: NDArray[np.int64], frames: int, most: float = np.inf
) -> GroupedBoxes:
    """Group boxes by frame.

    Args:
        boxes: N boxes of one class.
        frame: (N,) index of the box's frame.
        frames: number of frames.
        most: maximum number of boxes per frame; those with the highest scores remain, and equal
            scores keep their order.
    """
    order = np.lexsort((-boxes.score, frame))
    frame = frame[order]
    is_top = np.arange(len(frame)) - np.searchsorted(frame, frame) < most
    top = boxes.keep(order[is_top])
    ends = np.searchsorted(frame[is_top], np.arange(frames + 1))
    corners = top.corners.astype(np.float64)
    corners[:, 2:] -= corners[:, :2]  # left, top, width, height
    return GroupedBoxes(corners, top.score, ends)


def sample_precision(matched: NDArray[np.bool_], count: int) -> NDArray[np.float64]:
    """Sample the best precision at each of `RECALLS` or above.

    Args:
        matched: (P,) bool, whether boxes, by decreasing score, have a match.
        count: number of boxes of the ground truth.

    Returns:
        Precision (101,); 0 beyond the highest recall.
    """
    true_positives = matched.cumsum()
    precision = true_positives / (np.arange(1, len(matched) + 1) + EPS)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return np.append(best, 0.0)[np.searchsorted(true_positives / count, RECALLS)]


def average_precision(truth: GroupedBoxes, predicted: GroupedBoxes) -> NDArray[np.float64]:
    """Compute the average precision of a class as in pycocotools: all areas, 101 recall points.

    Boxes must have positive sides, as after `BoxFilter`, and at most `MAX_DETECTIONS` predictions
    per frame; at least one is ground truth.

    Returns:
        (10,) in [0, 1] by `THRESHOLDS`.
    """
    matched = match(predicted.boxes, truth.boxes, predicted.ends, truth.ends)
    order = np.argsort(-predicted.score, kind="stable")  # equal scores by frame
    samples = [sample_precision(row[order], len(truth.boxes)) for row in matched]
    return np.mean(samples, axis=1)


@dataclass(frozen=True)
class BoxFilter:
    """Box filter for ground truth and predictions, as in RVT's evaluation of Gen1 and 1Mpx.

    Sizes are float32 differences of the corners, without tolerance. This holds for ground truth
    too, because RVT's loader derives label sizes from clamped float32 corners: a box of 10 px may
    fail a limit of 10 px, depending on how its position is rounded.

    Source: uzh-rpg/RVT, utils/evaluation/prophesee/io/box_filtering.py; data/genx_utils/labels.py,
    clamp_to_frame_.
    """

    min_diagonal: float  # px of the histograms
    # minimum width and height in px of the histograms; boxes without an area are always dropped
    min_side: float
    skip_us: int = 500_000  # frames up to this time after a recording's start are ignored

    def keeps(self, boxes: Boxes) -> NDArray[np.bool_]:
        """Mask (N,) of boxes that are large enough."""
        width, height = boxes.size.T
        shorter = np.minimum(width, height)
        large = width * width + height * height >= np.float32(self.min_diagonal**2)
        return large & (shorter >= np.float32(self.min_side)) & (shorter > 0)

    def describe(self) -> str:
        """Describe the filter."""
        sides = f"diagonal >= {self.min_diagonal:g} px, width and height >= {self.min_side:g} px"
        return f"time > {self.skip_us / 1e6:g} s, {sides}"


DEFINITION = (
    "COCO average precision in percent over all frames of the test recordings together: IoU "
    f"{THRESHOLDS[0]:.2f} to {THRESHOLDS[-1]:.2f} in steps of 0.05, all areas, at most "
    f"{MAX_DETECTIONS} detections per class and frame, boxes in px of the histograms and not "
    "clipped to the image; only frames that have ground truth after filtering are scored; map: "
    "mean over thresholds and over the classes that have ground truth; ap50, ap75: at IoU 0.50, "
    "0.75"
)


class DetectionFrame(NamedTuple):
    """Boxes of one labelled frame, its time in us since the recording's start, and its groups."""

    recording: str
    time_us: int
    groups: tuple[str, ...]
    truth: Boxes
    predicted: Boxes


class DetectionScorer(FrameScorer[DetectionFrame]):
    """Average precision of a test set, over all frames, by recording and by named group of frames.

    Args:
        classes: names by label.
        filters: filter of ground truth and predictions.
    """

    def __init__(self, classes: Sequence[str], filters: BoxFilter) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.filters = filters

    def update(
        self,
        predicted: Boxes,
        truth: Boxes,
        recording: str,
        time_us: int,
        groups: Sequence[str] = (),
    ) -> None:
        """Add one labelled frame.

        Args:
            predicted: boxes in px, which may exceed the image.
            truth: boxes in px.
            recording: name of the recording.
            time_us: time in us since the recording's start.
            groups: names of the groups that include the frame.
        """
        frame = DetectionFrame(recording, int(time_us), tuple(groups), truth, predicted)
        self._frames.append(frame)

    def definition(self) -> str:
        """Describe the metrics, the scored frames and the classes without ground truth."""
        text = (
            f"{DEFINITION}; filters of ground truth and predictions: {self.filters.describe()}; "
            f"classes: {', '.join(self.classes)}"
        )
        if not self._frames:
            return text
        truth, frame = self._filtered(self._sorted(self._frames), "truth")
        scored = f"{len(np.unique(frame))} of {len(self._frames)} labelled frames scored"
        text += f"; {scored}, with {len(truth.label)} boxes"
        absent = [name for label, name in enumerate(self.classes) if label not in truth.label]
        missing = f"; without ground truth, so not in the means: {', '.join(absent)}"
        return text + (missing if absent else "")

    def overall(self) -> Scores:
        """Scores over all frames.

        Raises:
            UserError: no labelled frame passes the filters.
            ValueError: a frame was added twice, or a box, label or score is invalid.
        """
        scores = self._scores(self._frames)
        if scores is None:
            raise UserError(
                "detection scores",
                f"no labelled frame is left after the filters ({self.filters.describe()})",
                "evaluate recordings with boxes that pass them, or relax the filters",
            )
        return scores

    def _sorted(self, frames: Sequence[DetectionFrame]) -> list[DetectionFrame]:
        """Frames after the skipped time, sorted by recording and time.

        Equal scores are ranked by frame, so the order of frames must not depend on which process
        evaluated them.
        """
        late = (frame for frame in frames if frame.time_us > self.filters.skip_us)
        ordered = sorted(late, key=lambda frame: (frame.recording, frame.time_us))
        for previous, frame in pairwise(ordered):
            if (previous.recording, previous.time_us) == (frame.recording, frame.time_us):
                raise ValueError(f"{frame.recording} at {frame.time_us} us is scored twice")
        return ordered

    def _scores(self, frames: Sequence[DetectionFrame]) -> Scores | None:
        ordered = self._sorted(frames)
        truth, truth_frame = self._filtered(ordered, "truth")
        predicted, predicted_frame = self._filtered(ordered, "predicted")
        is_scored = np.isin(predicted_frame, truth_frame)  # frames without truth are not
        precision = {}
        for label in np.unique(truth.label):
            targets = truth.label == label
            boxes = is_scored & (predicted.label == label)
            precision[self.classes[label]] = 100 * average_precision(
                group_boxes(truth.keep(targets), truth_frame[targets], len(ordered)),
                group_boxes(
                    predicted.keep(boxes), predicted_frame[boxes], len(ordered), MAX_DETECTIONS
                ),
            )
        if not precision:
            return None
        percent = np.array([*precision.values()])  # (classes with ground truth, 10)
        values = {
            "map": float(percent.mean()),
            "ap50": float(percent[:, AT_50].mean()),
            "ap75": float(percent[:, AT_75].mean()),
        }
        counts = dict.fromkeys(values, len(precision))
        return Scores(
            values,
            incomplete_means(counts, len(self.classes), "classes"),
            dict(zip(precision, percent.mean(axis=1).tolist(), strict=True)),
        )

    def _filtered(
        self, frames: Sequence[DetectionFrame], name: str
    ) -> tuple[Boxes, NDArray[np.int64]]:
        """Boxes "truth" or "predicted" of all frames that pass the filter, and their frame indices.

        The indices are (N,).
        """
        by_frame: list[Boxes] = [getattr(frame, name) for frame in frames]
        none = make_boxes(np.empty((0, 4)), np.empty(0, np.int64))
        boxes = Boxes(*(np.concatenate(column) for column in zip(none, *by_frame, strict=True)))
        frame = np.repeat(np.arange(len(frames)), [len(boxes.label) for boxes in by_frame])
        valid = np.isfinite(boxes.corners).all(axis=1) & np.isfinite(boxes.score)
        valid &= (boxes.score >= 0) & (boxes.label >= 0) & (boxes.label < len(self.classes))
        if not valid.all():
            wrong = frames[frame[valid.argmin()]]
            raise ValueError(
                f"{name} boxes of {wrong.recording} at {wrong.time_us} us: a label outside the "
                f"{len(self.classes)} classes, or an invalid box or score"
            )
        large = self.filters.keeps(boxes)
        return boxes.keep(large), frame[large]
