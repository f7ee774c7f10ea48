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
from tespec.metrics import FrameScorer, Scores, fewer

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of intersection over union
AT_50, AT_75 = 0, 5  # indices of 0.50 and 0.75 in `THRESHOLDS`
MAX_DETECTIONS = 100  # per class and frame; those with the highest scores
RECALLS = np.linspace(0.0, 1.0, 101)  # at which precision is sampled
# As in pycocotools, cocoeval.py.
CLOSEST = 1 - 1e-10  # an IoU that always suffices
SMALLEST = np.spacing(1)  # avoids division by 0


@njit(cache=True, nogil=True)
def match(predicted, truth, ends_predicted, ends_truth, thresholds):  # type: ignore[no-untyped-def]
    """Match predicted boxes (P, 4) with ground truth (N, 4) per class and frame, in the layout of `Grouped`.

    A predicted box is matched with the unmatched ground-truth box that it overlaps most, the later
    one of equal overlaps. Arithmetic and order are those of pycocotools, so results are identical
    to the bit.

    Returns:
        (K, P) bool, whether a predicted box is matched at each of K thresholds of intersection over
        union.
    """
    found = np.zeros((len(thresholds), len(predicted)), np.bool_)
    overlaps = np.empty((np.diff(ends_predicted).max(), np.diff(ends_truth).max()))
    for group in range(len(ends_truth) - 1):
        boxes = predicted[ends_predicted[group] : ends_predicted[group + 1]]
        known = truth[ends_truth[group] : ends_truth[group + 1]]
        if not len(boxes) or not len(known):
            continue
        _overlap(boxes, known, overlaps)
        for k in range(len(thresholds)):
            taken = np.zeros(len(known), np.bool_)
            for i in range(len(boxes)):
                best, place = min(thresholds[k], CLOSEST), -1
                for j in range(len(known)):
                    if not taken[j] and overlaps[i, j] >= best:
                        best, place = overlaps[i, j], j
                if place >= 0:
                    taken[place] = True
                    found[k, ends_predicted[group] + i] = True
    return found


@njit(cache=True, nogil=True)
def _overlap(boxes, known, overlaps):  # type: ignore[no-untyped-def]
    """Intersection over union, as pycocotools computes it (maskApi.c, bbIou)."""
    for i in range(len(boxes)):
        left, top, width, height = boxes[i]
        for j in range(len(known)):
            other_left, other_top, other_width, other_height = known[j]
            overlaps[i, j] = 0.0
            wide = min(left + width, other_left + other_width) - max(left, other_left)
            if wide <= 0:
                continue
            high = min(top + height, other_top + other_height) - max(top, other_top)
            if high <= 0:
                continue
            shared = wide * high
            overlaps[i, j] = shared / (width * height + other_width * other_height - shared)


@njit(cache=True, nogil=True)
def read_precision(hits, truths):  # type: ignore[no-untyped-def]
    """Best precision (K, 101) at or above each of `RECALLS`, from hits (K, P) of boxes by decreasing score."""
    read = np.zeros((len(hits), len(RECALLS)))
    for k in range(len(hits)):
        right = hits[k].cumsum()
        best = right / (np.arange(1, len(right) + 1) + SMALLEST)
        for i in range(len(best) - 2, -1, -1):
            best[i] = max(best[i], best[i + 1])
        for j, place in enumerate(np.searchsorted(right / truths, RECALLS)):
            if place < len(best):
                read[k, j] = best[place]
    return read


class Grouped(NamedTuple):
    """Boxes of all frames in one array, sorted by class, then frame, then decreasing score."""

    boxes: NDArray[np.float64]  # (N, 4) left, top, width, height
    score: NDArray[np.float32]  # (N,)
    # (classes * frames + 1,) boundaries of the boxes of each class and frame
    ends: NDArray[np.int64]
    of_class: NDArray[np.int64]  # (classes + 1,) boundaries of the boxes of each class


def group_boxes(
    boxes: Boxes, frame: NDArray[np.int64], frames: int, classes: int, most: float = np.inf
) -> Grouped:
    """Group the boxes of all frames; `frame` (N,) is the index of each box's frame, of `frames`.

    Labels are 0 to `classes` - 1. At most `most` boxes remain per class and frame, those with the
    highest scores; equal scores keep their order.
    """
    group = boxes.label * frames + frame
    order = np.lexsort((-boxes.score, group))
    group = group[order]
    inside = np.arange(len(group)) - np.searchsorted(group, group) < most
    kept, ends = (
        boxes.keep(order[inside]),
        np.searchsorted(group[inside], np.arange(classes * frames + 1)),
    )
    corners = kept.corners.astype(np.float64)
    corners[:, 2:] -= corners[:, :2]
    return Grouped(corners, kept.score, ends, ends[::frames])


def average_precision(truth: Grouped, predicted: Grouped) -> NDArray[np.float64]:
    """Average precision per class and threshold as in pycocotools: all areas, 101 recall points.

    Boxes must have positive sides, as after `BoxFilter`, and at most `MAX_DETECTIONS` predictions
    per class and frame.

    Returns:
        (classes, 10) shares in [0, 1] by class and `THRESHOLDS`; NaN where a class has no ground
        truth.
    """
    hits = match(predicted.boxes, truth.boxes, predicted.ends, truth.ends, THRESHOLDS)
    counts = np.diff(truth.of_class)
    shares = np.full((len(counts), len(THRESHOLDS)), np.nan)
    for label in np.flatnonzero(counts):
        found = slice(*predicted.of_class[label : label + 2])
        order = np.argsort(-predicted.score[found], kind="stable")  # equal scores by frame
        shares[label] = read_precision(hits[:, found][:, order], counts[label]).mean(axis=1)
    return shares


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
        least = np.float32(self.min_side)
        kept = (width >= least) & (height >= least) & (width > 0) & (height > 0)
        return kept & (width * width + height * height >= np.float32(self.min_diagonal**2))

    def describe(self) -> str:
        """Describe the filter."""
        sides = f"diagonal >= {self.min_diagonal:g} px, width and height >= {self.min_side:g} px"
        return f"time > {self.skip_us / 1e6:g} s, {sides}"


DEFINITION = (
    f"COCO average precision in percent over all frames of the test recordings together: IoU {THRESHOLDS[0]:.2f} to "
    f"{THRESHOLDS[-1]:.2f} in steps of 0.05, all areas, at most {MAX_DETECTIONS} detections per class and frame, boxes "
    "in px of the histograms and not clipped to the image; only frames that have ground truth after filtering are "
    "scored; map: mean over thresholds and over the classes that have ground truth; ap50, ap75: at IoU 0.50, 0.75"
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

    `score` describes the predictions' scores and their threshold, for the definition.
    """

    def __init__(self, classes: Sequence[str], filters: BoxFilter, score: str) -> None:
        super().__init__()
        self.classes, self.filters, self.score = tuple(classes), filters, score

    def update(
        self,
        predicted: Boxes,
        truth: Boxes,
        recording: str,
        time_us: int,
        groups: Sequence[str] = (),
    ) -> None:
        """Add one labelled frame: boxes, which may exceed the image, and its time in us since the recording's start."""
        self._frames.append(
            DetectionFrame(recording, int(time_us), tuple(groups), truth, predicted)
        )

    def definition(self) -> str:
        """Describe the metrics, the scored frames and the classes without ground truth."""
        text = (
            f"{DEFINITION}; filters of ground truth and predictions: {self.filters.describe()}; "
            f"classes: {', '.join(self.classes)}; scores of predictions: {self.score}"
        )
        if not self._frames:
            return text
        truth, frame = self._kept(self._counted(self._frames), "truth")
        absent = [name for label, name in enumerate(self.classes) if label not in truth.label]
        scored = f"{len(np.unique(frame))} of {len(self._frames)} labelled frames scored"
        text += f"; {scored}, with {len(truth.label)} boxes"
        return text + (
            f"; without ground truth, so not in the means: {', '.join(absent)}" if absent else ""
        )

    def overall(self) -> Scores:
        """Scores over all frames; `ValueError` if a frame was added twice, or a box, label or score is invalid."""
        scores = self._scores(self._frames)
        if scores is None:
            what = f"no labelled frame is left after the filters ({self.filters.describe()})"
            remedy = "evaluate recordings with boxes that pass them, or relax the filters"
            raise UserError("detection scores", what, remedy)
        return scores

    def _counted(self, frames: Sequence[DetectionFrame]) -> list[DetectionFrame]:
        """Frames after the skipped time, sorted by recording and time.

        Equal scores are ranked by frame, so the order of frames must not depend on which process
        evaluated them.
        """
        ordered = sorted(
            (each for each in frames if each.time_us > self.filters.skip_us),
            key=lambda each: each[:2],
        )
        for before, each in pairwise(ordered):
            if before[:2] == each[:2]:
                raise ValueError(f"{each.recording} at {each.time_us} us is scored twice")
        return ordered

    def _scores(self, frames: Sequence[DetectionFrame]) -> Scores | None:
        ordered = self._counted(frames)
        truth, of_truth = self._kept(ordered, "truth")
        predicted, of_predicted = self._kept(ordered, "predicted")
        if not len(truth.label):
            return None
        inside, count = (
            np.bincount(of_truth, minlength=len(ordered))[of_predicted] > 0,
            len(self.classes),
        )
        predicted, of_predicted = predicted.keep(inside), of_predicted[inside]
        shares = average_precision(
            group_boxes(truth, of_truth, len(ordered), count),
            group_boxes(predicted, of_predicted, len(ordered), count, MAX_DETECTIONS),
        )
        of_class = {
            name: 100 * each
            for name, each in zip(self.classes, shares, strict=True)
            if not np.isnan(each[0])
        }
        percent = np.array([*of_class.values()])
        values = {
            "map": percent.mean(),
            "ap50": percent[:, AT_50].mean(),
            "ap75": percent[:, AT_75].mean(),
        }
        return Scores(
            {name: float(value) for name, value in values.items()},
            fewer(dict.fromkeys(values, len(of_class)), count, "classes"),
            dict(zip(of_class, percent.mean(axis=1).tolist(), strict=True)),
        )

    def _kept(self, frames: Sequence[DetectionFrame], name: str) -> tuple[Boxes, NDArray[np.int64]]:
        """Boxes of all frames that pass the filter, "truth" or "predicted", and the index of each box's frame."""
        given: list[Boxes] = [getattr(frame, name) for frame in frames]
        none = make_boxes(np.empty((0, 4)), np.empty(0, np.int64))
        boxes = Boxes(*(np.concatenate(column) for column in zip(none, *given, strict=True)))
        frame = np.repeat(np.arange(len(frames)), [len(each.label) for each in given])
        sound = (
            np.isfinite(boxes.corners).all(axis=1) & np.isfinite(boxes.score) & (boxes.score >= 0)
        )
        sound &= (boxes.label >= 0) & (boxes.label < len(self.classes))
        if not sound.all():
            wrong = frames[frame[sound.argmin()]]
            where = f"{name} boxes of {wrong.recording} at {wrong.time_us} us"
            raise ValueError(
                f"{where}: a label outside the {len(self.classes)} classes, or an invalid box or score"
            )
        kept = self.filters.keeps(boxes)
        return boxes.keep(kept), frame[kept]
